"""Release protocols under one name: what may be seen of a sweep, how many runs are made, and the event of it all.

Each is one file of the folder protocols; sweeper/spec/protocols.py says what all of them offer.
"""

from __future__ import annotations

from sweeper.privacy.protocols.drawn_runs import AUTO, DrawnRuns
from sweeper.privacy.protocols.no_tuning import NoTuningProtocol
from sweeper.privacy.protocols.public_proxy import PublicProxyProtocol
from sweeper.privacy.protocols.release_all import ReleaseAllProtocol
from sweeper.privacy.protocols.select_best import SelectBestProtocol
from sweeper.privacy.protocols.subsample_tune import Part, SubsampleTuneProtocol

__all__ = [
    "AUTO",
    "DrawnRuns",
    "NoTuningProtocol",
    "Part",
    "PublicProxyProtocol",
    "ReleaseAllProtocol",
    "SelectBestProtocol",
    "SubsampleTuneProtocol",
]
