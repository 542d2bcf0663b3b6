"""From a plan to its release. Ray reads these settings while it is imported, so they stand before everything here."""

import os

for _name, _value in {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # their files would hold configs and scores
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C must reach the driver, which ends things in order
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(_name, _value)
