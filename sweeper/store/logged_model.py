"""A winner's model in MLflow: a plain torch module that loads without sweeper, with a signature from synthetic rows only."""

from __future__ import annotations

import datetime
import io
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus

from sweeper.checks import RequestError
from sweeper.store import schema
from sweeper.store.connection import Connection, hushed
from sweeper.store.release import Release, ReleasedTrial

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from torch import nn


def log_model(connection: Connection, run: Run, release: Release, trial: ReleasedTrial) -> str:
    """Id of the winner's logged model. Made once: what a kill left half written is written again under the same id."""
    client = connection.client
    experiment = run.info.experiment_id
    known = client.search_logged_models([experiment], filter_string=f"tags.`{schema.TRIAL_ID}` = '{trial.id}'")
    model = known[0] if known else _create(client, run, release, trial)
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory() as place:
            _save(Path(place) / "model", model, run.info.run_id, release, trial)
            client.log_model_artifacts(model.model_id, str(Path(place) / "model"))
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    linked = client.get_run(run.info.run_id).outputs
    if not linked or model.model_id not in [output.model_id for output in linked.model_outputs]:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def _create(client: MlflowClient, run: Run, release: Release, trial: ReleasedTrial) -> LoggedModel:
    return client.create_logged_model(
        run.info.experiment_id,
        name=re.sub(r"[^A-Za-z0-9_\-]", "_", release.sweep),
        source_run_id=run.info.run_id,
        tags={schema.TRIAL_ID: trial.id, schema.SUBMISSION: release.submission},
        params={name: schema.cut(text, schema.PARAM_LIMIT) for name, text in schema.flat(trial.settings, "").items()},
    )


def _save(path: Path, model: LoggedModel, run_id: str, release: Release, trial: ReleasedTrial) -> None:
    import mlflow.pytorch
    import torch
    from mlflow.models import Model, infer_signature

    assert release.build_model is not None  # checked by Release
    assert release.build_example is not None
    assert trial.params is not None
    module = release.build_model(trial.params).eval()
    rows = release.build_example()
    with torch.no_grad():
        answer = module(torch.from_numpy(rows.copy())).numpy()
    released = datetime.datetime.fromtimestamp(release.released_at, datetime.UTC).replace(tzinfo=None)
    described = Model(
        artifact_path=model.artifact_location,
        run_id=run_id,
        model_uuid=model.model_id,
        model_id=model.model_id,
        utc_time_created=str(released),
    )
    # A pickle names its classes: fine for torch's own, which everybody has. Anything else is traced into a graph that needs
    # no class (2 s more, once). Requirements are given, since MLflow would load the model in a process of its own to infer them.
    own = all(type(part).__module__.startswith("torch.nn.") for part in module.modules())
    with hushed():
        mlflow.pytorch.save_model(
            module,
            str(path),
            mlflow_model=described,
            signature=infer_signature(rows, answer),
            input_example=rows,
            pip_requirements=[f"{package}=={version(package).split('+')[0]}" for package in ("torch", "numpy")],
            serialization_format="pickle" if own else "pt2",
        )


def state_file(module: nn.Module) -> bytes:
    """A module's state dict as a file, for torch.load(..., weights_only=True)."""
    import torch

    content = io.BytesIO()
    torch.save(module.state_dict(), content)
    return content.getvalue()


def load_model(connection: Connection, uri: str) -> nn.Module:
    """The torch module behind a winner's `models:/m-...` address."""
    if not uri.startswith("models:/"):
        raise RequestError(f"{uri} is not a model: only winners have one, with an address like models:/m-... (see sweeper best)")
    import mlflow.pytorch

    with connection.reported(), hushed(), tempfile.TemporaryDirectory() as place:
        # Resolved here: MLflow would look a models:/ address up in the store of its global setting, not in this one.
        source = connection.client.get_logged_model(uri.removeprefix("models:/")).artifact_location
        where = mlflow.artifacts.download_artifacts(artifact_uri=source, dst_path=place, tracking_uri=connection.home.mlflow_uri)
        return mlflow.pytorch.load_model(where)
