"""Reading what was released: every trial as a DataFrame, the best one, and groups side by side. Sees nothing that is sealed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import RequestError
from sweeper.store import schema
from sweeper.store.home import Home
from sweeper.store.release import WINNERS_ONLY

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Run

    from sweeper.store.connection import Connection
    from sweeper.store.sqlite_runs import ReadRun

RANKED = (  # tags that say which trial is the best
    schema.ROLE,
    schema.PARENT_RUN,
    schema.SUBMISSION,
    schema.SUPERSEDES,
    schema.STAGE,
    schema.METRIC,
    schema.BEST,
    schema.POSITION,
)
OWN: tuple[str, ...] = (
    "id",
    "score",
    "metric",
    "score_noise",
    "is_best",
    "clip_policy",
    "step_policy",
    "trainer",
    "arm",
    "arm_epsilon",
    "arm_relation",
    "noise_multiplier",
    "protocol",
    "public",
)
OWN += ("epsilon", "delta", "submission", "released_at", "position", "model_uri")
GROUPS: Mapping[str, str] = {
    "clip": "clip_policy",
    "step": "step_policy",
    "trainer": "trainer",
    "protocol": "protocol",
    "arm": "arm",
}


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best released trial of a sweep with the whole bill of the submission that released it."""

    sweep: str
    id: str
    submission: str
    arm: str | None  # of a sweep with arms: which one's winner it is
    settings: Mapping[str, Any]
    searched: Mapping[str, str]  # of them, what the search chose, by full name
    clip_norm: float | None
    learning_rate: float | None
    score: float
    metric: str
    score_noise: float | None  # standard deviation of the noise on the score
    epsilon: float  # infinite when nothing is protected
    delta: float
    guarantee: Mapping[str, Any]
    protocol: str
    public: bool
    model_uri: str | None
    ledger_head: str | None  # seq:hash of the ledger's last row at the release; None on public data
    statement: str
    load: str  # what to type for the model

    def to_dict(self) -> dict[str, Any]:
        """For JSON: an infinite epsilon becomes null."""
        return dict(schema.plain(asdict(self)))


def trials(sweep: str, home: Home | None = None) -> pd.DataFrame:
    """One row per released trial, of all submissions, oldest first; one column per setting. A diverged trial has no score.

    A setting whose name is one of the other columns appears as `setting/<name>`.

    Raises:
      RequestError: no such sweep in this store.
    """
    import pandas as pd

    connection = _connection(home)
    with connection.reported():
        parents, children = _released(connection, sweep)
        rows = [_row(connection, child, parents) for child in children]
    settings = list(dict.fromkeys(name for row in rows for name in row if name not in OWN))
    frame = pd.DataFrame(rows, columns=["id", *settings, *OWN[1:]])
    frame["released_at"] = pd.to_datetime(frame["released_at"], unit="ms", utc=True)
    return frame.sort_values(["released_at", "submission", "position"], kind="stable", ignore_index=True)


def best(sweep: str, home: Home | None = None) -> Best:
    """The released trial with the highest score; of equals the submission's winner, then the earliest.

    A diverged trial is never the best, nor is one that ran on a public proxy: its score is of another table.

    Raises:
      RequestError: no such sweep, nothing released, or no released trial has a score.
    """
    connection = _connection(home)
    with connection.reported():
        parents, children = _released(connection, sweep, RANKED, schema.SCORE_PREFIX)
        if not children and parents:
            raise RequestError(
                f"sweep {sweep} drew no run, as its law may: no answer is what it released, and the charge stands. Run it under "
                "another name, with a law that always makes a run"
            )
        if not children:
            raise RequestError(f"sweep {sweep} has released nothing yet. `sweeper run` or `sweeper resume` goes on with it")
        own = [child for child in children if child.data.tags.get(schema.STAGE) != schema.PROXY]
        scored = [(child, score) for child in own if (score := _score(child)) is not None]
        if not scored:
            raise RequestError(f"no released trial of sweep {sweep} has a finite score: all diverged. Try smaller step sizes")
        first, score = min(scored, key=lambda pair: (-pair[1], pair[0].data.tags[schema.BEST] != "true", *_age(pair[0])))
        child, parent = (connection.client.get_run(run) for run in (first.info.run_id, first.data.tags[schema.PARENT_RUN]))
        params, settings = child.data.params, _settings(connection, child)
        guarantee = json.loads(connection.text(parent, schema.GUARANTEE, schema.GUARANTEE_FILE))
    tags, metrics, prefix = child.data.tags, child.data.metrics, schema.CANDIDATE_PREFIX
    if schema.ARM in tags and tags[schema.PUBLIC] == "true":  # billed alone
        guarantee |= {"epsilon": schema.plain(_epsilon(tags)), "relation": tags[schema.ARM_RELATION] or guarantee["relation"]}
    return Best(
        sweep=sweep,
        id=tags[schema.TRIAL_ID],
        submission=tags[schema.SUBMISSION],
        arm=tags.get(schema.ARM),
        settings=settings,
        searched={name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)},
        clip_norm=_number(settings.get("clip_norm")),
        learning_rate=_number(settings.get("learning_rate")),
        score=score,
        metric=tags[schema.METRIC],
        score_noise=metrics.get(schema.SCORE_NOISE),
        epsilon=_epsilon(tags),
        delta=float(tags[schema.DELTA_TEXT]),
        guarantee=guarantee,
        protocol=tags[schema.PROTOCOL],
        public=tags[schema.PUBLIC] == "true",
        model_uri=tags.get(schema.MODEL_URI),
        ledger_head=parent.data.tags.get(schema.LEDGER_HEAD),
        statement=_statement(tags, guarantee, parent.data.tags.get(schema.TIMING, "")),
        load=f'sweeper.load("{sweep}")',
    )


def compare(sweep: str, by: str | None = None, home: Home | None = None) -> pd.DataFrame:
    """Released trials in groups: group, n, diverged, mean, std, best (of the finite scores), epsilon (the bill of the group).

    `by` is clip, step, trainer, protocol or arm; left out, it is arm in a sweep with arms, and else clip. When all trials share
    one clip policy, `clip` groups by clip norm, to 3 digits. `arm` gives a row per arm: what it is, its best score, its own bill.
    Bill: submissions on private data add up; on public data each is billed alone, as if private, and the largest counts.

    Raises:
      RequestError: no such sweep, an unknown `by`, or arms asked of a sweep that has none.
    """
    import pandas as pd

    if by is not None:
        checks.one_of(GROUPS, by=by)
    frame = trials(sweep, home)
    by = by or ("arm" if frame["arm"].notna().any() else "clip")
    if by == "arm":
        return _arms(sweep, frame)
    frame = frame[~frame["metric"].str.startswith(schema.PROXY + "_")]  # scores on a proxy table are of another task
    column = frame[GROUPS[by]]
    by_norm = by == "clip" and column.nunique() == 1 and "clip_norm" in frame and frame["clip_norm"].map(schema.finite).all()
    if by_norm:
        column = frame["clip_norm"].map(lambda norm: float(f"{norm:.3g}"))
    groups = []
    for name, group in frame.groupby(column, sort=True):
        scores = group["score"]
        groups.append(
            {
                "group": name,
                "n": len(group),
                "diverged": int(scores.isna().sum()),
                "mean": scores.mean(),
                "std": scores.std(),
                "best": scores.max(),
                "epsilon": _bill(group, "epsilon"),
            }
        )
    table = pd.DataFrame(groups, columns=["group", "n", "diverged", "mean", "std", "best", "epsilon"])
    return table if by_norm else table.sort_values("best", ascending=False, kind="stable", ignore_index=True)


def _bill(group: pd.DataFrame, column: str) -> float:
    """What looking at these trials costs: private submissions add up, public ones are billed alone."""
    private, public = group[~group["public"]], group.loc[group["public"], column]
    return float(max(private.groupby("submission")[column].max().sum(), public.max() if len(public) else 0.0))


def _arms(sweep: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A row per arm, the best first: arm, its policies and trainer, n, diverged, score (its best), epsilon (its own bill)."""
    import pandas as pd

    columns = ["arm", "clip_policy", "step_policy", "trainer", "n", "diverged", "score", "epsilon"]
    if frame["arm_relation"].nunique() > 1:
        columns.append("arm_relation")  # bills of two relations are not the same promise
    own = frame[~frame["metric"].str.startswith(schema.PROXY + "_") & frame["arm"].notna()]
    if len(frame) and not len(own):
        raise checks.FieldError("by", "arm", f"finds no arms: sweep {sweep} has none", "Use clip, step, trainer or protocol.")
    rows = []
    for name, group in own.groupby("arm", sort=False):
        first, scores = group.iloc[0], group["score"]
        rows.append(
            {column: first[column] for column in ("clip_policy", "step_policy", "trainer", "arm_relation")}
            | {"arm": name, "n": len(group), "diverged": int(scores.isna().sum())}
            | {"score": scores.max(), "epsilon": _bill(group, "arm_epsilon")}
        )
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def compare_note(sweep: str, home: Home | None = None) -> str:
    """What a comparison cannot show, the price of seeing it, and how the bills of arms belong together; or nothing."""
    connection = _connection(home)
    with connection.reported():
        parents, children = _released(connection, sweep)
    lines = []
    armed = [child for child in children if schema.ARM in child.data.tags]
    if armed:
        latest = max(armed, key=_age)
        bill = _epsilon(latest.data.tags)
        lines.append(
            "Public data: each arm is billed alone, as if private. On private data the bills of the arms would compose."
            if latest.data.tags[schema.PUBLIC] == "true"
            else f"The bills of the arms compose: by arm, epsilon is each one's own; the sweep was charged {bill:.2f} for all."
        )
    private = [parent for parent in parents.values() if parent.data.tags[schema.PUBLIC] == "false"]
    sealed = [parent for parent in private if parent.data.tags[schema.PROTOCOL] in WINNERS_ONLY]
    if sealed:
        latest = max(sealed, key=_age)
        unsealed = latest.data.metrics.get(schema.UNSEAL_EPSILON)
        bill = _epsilon(latest.data.tags)
        price = f"for epsilon {unsealed:.2f} instead of {bill:.2f}" if unsealed is not None else "for a new price"
        shown = "one winner of each arm" if armed else "one winner"
        lines += [
            f"{latest.data.tags[schema.PROTOCOL]} paid for winners only: {shown} is public, every other trial is sealed.",
            f"`sweeper unseal {sweep}` would publish every trial: {price}, priced as release-all of the most runs allowed.",
        ]
        if not armed:
            lines.append(
                "To compare policies at one bill, give them as arms: each has a winner of its own. A sweep with protocol "
                "release-all, or on data.public: true, compares more."
            )
    return "\n".join(lines)


def _connection(home: Home | None) -> Connection:
    from sweeper.store.connection import Connection

    return Connection(home or Home())


def _released(
    connection: Connection, sweep: str, marks: Sequence[str] | None = None, prefix: str = ""
) -> tuple[dict[str, Run | ReadRun], list[Run | ReadRun]]:
    """(finished parent runs by run id, their finished children). A submission counts as a whole or not at all.

    One that another supersedes is left out: its trials are in the other, and so is its bill.
    """
    known = {} if connection.empty else connection.sweeps()
    if sweep not in known:
        rule = f"is not a sweep in this store{checks.suggestion(sweep, known)}"
        raise checks.FieldError("sweep", sweep, rule, "A sweep appears once it has released something: `sweeper run FILE`.")
    runs = connection.finished(known[sweep], marks, prefix)
    found = [run for run in runs if run.data.tags.get(schema.ROLE) == schema.PARENT]
    gone = {run.data.tags.get(schema.SUPERSEDES) for run in found}
    parents = {run.info.run_id: run for run in found if run.data.tags.get(schema.SUBMISSION) not in gone}
    children = [run for run in runs if run.data.tags.get(schema.ROLE) == schema.TRIAL]
    return parents, [child for child in children if child.data.tags.get(schema.PARENT_RUN) in parents]


def _row(connection: Connection, child: Run | ReadRun, parents: Mapping[str, Run | ReadRun]) -> dict[str, Any]:
    tags = child.data.tags
    settings = _settings(connection, child)
    return {(f"setting/{name}" if name in OWN else name): value for name, value in settings.items()} | {
        "id": tags[schema.TRIAL_ID],
        "score": _score(child),
        "metric": tags[schema.METRIC],
        "score_noise": child.data.metrics.get(schema.SCORE_NOISE),
        "is_best": tags[schema.BEST] == "true",
        "clip_policy": tags[schema.CLIP_POLICY],
        "step_policy": tags[schema.STEP_POLICY],
        "trainer": tags[schema.TRAINER],
        "arm": tags.get(schema.ARM),
        "arm_epsilon": _epsilon(tags, schema.ARM_EPSILON_TEXT) if schema.ARM in tags else None,
        "arm_relation": tags.get(schema.ARM_RELATION) or None,
        "noise_multiplier": child.data.metrics.get(schema.NOISE_MULTIPLIER),
        "protocol": tags[schema.PROTOCOL],
        "public": tags[schema.PUBLIC] == "true",
        "epsilon": _epsilon(tags),
        "delta": float(tags[schema.DELTA_TEXT]),
        "submission": tags[schema.SUBMISSION],
        "released_at": child.info.start_time,
        "position": int(tags[schema.POSITION]),
        "model_uri": tags.get(schema.MODEL_URI),
    }


def _settings(connection: Connection, child: Run | ReadRun) -> dict[str, Any]:
    return dict(json.loads(connection.text(child, schema.SETTINGS, schema.SETTINGS_FILE)))


def _score(child: Run | ReadRun) -> float | None:
    """The score, or None for a diverged trial, whoever wrote it: a NaN or an infinity in the store is no score."""
    value = child.data.metrics.get(schema.SCORE_PREFIX + schema.key(child.data.tags[schema.METRIC]))
    return value if value is not None and math.isfinite(value) and abs(value) < 1e300 else None


def _age(run: Run | ReadRun) -> tuple[int, str, int]:
    tags = run.data.tags
    return run.info.start_time, tags[schema.SUBMISSION], int(tags.get(schema.POSITION, 0))


def _epsilon(tags: Mapping[str, str], name: str = schema.EPSILON_TEXT) -> float:
    text = tags[name]
    return math.inf if text == "infinite" else float(text)


def _number(value: Any) -> float | None:
    return float(value) if schema.finite(value) else None


def _statement(tags: Mapping[str, str], guarantee: Mapping[str, Any], timing: str) -> str:
    """One sentence that says what is promised, tuning included."""
    epsilon = _epsilon(tags)
    amount = f"epsilon {epsilon:.2f}" if math.isfinite(epsilon) else "epsilon infinite (no protection)"
    text = f"{amount} at delta {float(tags[schema.DELTA_TEXT]):g}, tuning included"
    if guarantee.get("relation"):
        text += f" ({guarantee['relation']}, per {guarantee.get('unit', 'record')})"
    if tags[schema.PUBLIC] == "true":
        text += "; as if private: the data is declared public"
    if guarantee.get("seeded"):
        text += "; seeded: not private to whoever knows the seed"
    return f"{text}; {timing}" if timing else text
