"""The one table kind -> class. Adding a kind is one file, one row here and one row in its contract suite."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError, RequestError
from sweeper.spec.codec import spec_from_dict, spec_to_dict
from sweeper.spec.sweep import SweepSpec

KINDS: dict[str, dict[str, str]] = {
    "clip": {
        "fixed": "sweeper.clip.fixed:FixedClip",
        "percentile": "sweeper.clip.percentile:PercentileClip",
        "private-quantile": "sweeper.clip.private_quantile:PrivateQuantileClip",
        "adaptive-quantile": "sweeper.clip.adaptive_quantile:AdaptiveQuantileClip",
        "normalise": "sweeper.clip.normalise:Normalise",
        "decay": "sweeper.clip.decay:Decay",
        "per-layer": "sweeper.clip.per_layer:PerLayerClip",
        "heavy-tail": "sweeper.clip.heavy_tail:HeavyTailClip",
        "none": "sweeper.clip.none:NoClip",
    },
    "step": {
        "fixed": "sweeper.step.fixed:FixedStep",
        "coupled": "sweeper.step.coupled:CoupledStep",
        "theory": "sweeper.step.theory:TheoryStep",
        "exponential-search": "sweeper.step.exponential_search:ExponentialSearch",
        "backtracking": "sweeper.step.backtracking:Backtracking",
        "noisy-min": "sweeper.step.noisy_min:NoisyMinSearch",
        "none": "sweeper.step.none:NoStep",
    },
    "trainer": {
        "dp-sgd": "sweeper.trainers.dp_sgd:DpSgd",
        "dp-adam": "sweeper.trainers.dp_adam:DpAdam",
        "dp-nsgd": "sweeper.trainers.dp_nsgd:DpNsgd",
        "dp-blsgd": "sweeper.trainers.blsgd:DpBlsgd",
        "dp-blsgd-ac": "sweeper.trainers.blsgd:DpBlsgdAc",
        "dp-blgd": "sweeper.trainers.blsgd:DpBlgd",
        "dp-agd": "sweeper.trainers.dp_agd:DpAgd",
        "output-perturbation-sgd": "sweeper.trainers.output_perturbation_sgd:OutputPerturbationSgd",
        "output-perturbation-gd": "sweeper.trainers.output_perturbation_gd:OutputPerturbationGd",
        "objective-perturbation": "sweeper.trainers.objective_perturbation:ObjectivePerturbation",
        "privgene": "sweeper.trainers.privgene:PrivGene",
        "majority": "sweeper.trainers.majority:Majority",
        "non-private": "sweeper.trainers.non_private:NonPrivate",
    },
    "model": {
        "logistic": "sweeper.models.linear:Logistic",
        "softmax": "sweeper.models.linear:Softmax",
        "svm": "sweeper.models.linear:Svm",
        "squared": "sweeper.models.linear:Squared",
        "mlp": "sweeper.models.mlp:Mlp",
        "convnet": "sweeper.models.convnet:ConvNet",
        "module": "sweeper.models.module:ModuleModel",
    },
    "data": {
        "adult": "sweeper.data.adult:Adult",
        "fashion-mnist": "sweeper.data.fashion_mnist:FashionMnist",
        "sms-spam": "sweeper.data.sms_spam:SmsSpam",
        "20newsgroups": "sweeper.data.newsgroups:Newsgroups",
        "cifar-10": "sweeper.data.cifar:Cifar10",
        "cifar-100": "sweeper.data.cifar:Cifar100",
        "emnist": "sweeper.data.emnist:Emnist",
        "emotion": "sweeper.data.tweets:Emotion",
        "tweet-eval": "sweeper.data.tweets:TweetEval",
        "csv": "sweeper.data.csv_file:CsvFile",
        "parquet": "sweeper.data.parquet_file:ParquetFile",
        "npz": "sweeper.data.npz_file:NpzFile",
        "module": "sweeper.data.module_table:ModuleTable",
    },
    "protocol": {
        "select-best": "sweeper.privacy.release:SelectBestProtocol",
        "subsample-tune": "sweeper.privacy.release:SubsampleTuneProtocol",
        "release-all": "sweeper.privacy.release:ReleaseAllProtocol",
        "public-proxy": "sweeper.privacy.release:PublicProxyProtocol",
        "no-tuning": "sweeper.privacy.release:NoTuningProtocol",
    },
    "search": {
        "random": "sweeper.spec.search:RandomSearch",
        "grid": "sweeper.spec.search:GridSearch",
    },
}
LARGEST_SPEC = 1_000_000  # bytes


def resolve(family: str, kind: object) -> type[Any]:
    """The class of a kind.

    Raises:
      FieldError: no such kind; names the closest one.
    """
    names = KINDS[family]
    if not isinstance(kind, str) or kind not in names:
        raise FieldError("kind", kind, f"must be one of {', '.join(names)}{checks.suggestion(kind, names)}")
    module, name = names[kind].split(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


@dataclass(frozen=True, kw_only=True)
class KindInfo:
    """One row of `sweeper kinds`."""

    family: str
    kind: str
    summary: str
    example: str
    fields: Mapping[str, str]  # field -> its default, or "required"


def kinds(family: str | None = None) -> list[KindInfo]:
    """Every kind with a line and an example, in the order of the table."""
    if family is not None:
        checks.one_of(KINDS, family=family)
    return [_info(f, kind) for f in KINDS if family in (None, f) for kind in KINDS[f]]


def _info(family: str, kind: str) -> KindInfo:
    cls = resolve(family, kind)
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    own = {}
    for f in fields(cls):
        own[f.name] = repr(f.default) if f.default is not NO_DEFAULT else "required"
        if f.default_factory is not NO_DEFAULT:
            own[f.name] = repr(f.default_factory())
    return KindInfo(family=family, kind=kind, summary=summary, example=f"{family}: {cls.example}", fields=own)


def published() -> list[str]:
    """The data sources that need no word from the user: published tables."""
    return [row.kind for row in kinds("data") if "required" not in row.fields.values()]


def sweep_from_dict(data: Mapping[str, Any]) -> SweepSpec:
    """A SweepSpec from a plain mapping of the YAML shape."""
    return spec_from_dict(data, resolve)


def load_spec(path: str | Path) -> SweepSpec:
    """The sweep in a YAML 1.2 file.

    Raises:
      RequestError: one line that starts with the file and names the field, its value and the rule.
    """
    data = _beside(Path(path), _read(Path(path)))
    try:
        return sweep_from_dict(data)
    except FieldError as error:
        raise RequestError(f"{path}: {_line(str(error))}") from None


def _beside(path: Path, data: Any) -> Any:
    """The sweep with a relative path of its data taken from the folder of the sweep's file."""
    section = data.get("data") if isinstance(data, Mapping) else None
    source = section.get("source") if isinstance(section, Mapping) else None
    where = source.get("path") if isinstance(source, Mapping) else None
    if not isinstance(where, str) or not where or where.startswith("~"):
        return data
    return {**data, "data": {**section, "source": {**source, "path": str(path.absolute().parent / where)}}}


def _line(text: str, limit: int = 500) -> str:
    """A message that quotes a file, on one printable line: keys may hold line breaks, terminal escapes and worse."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def dump_spec(spec: SweepSpec) -> str:
    """The sweep as YAML that `load_spec` reads back to an equal spec."""
    import io

    from ruamel.yaml import YAML

    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(spec_to_dict(spec), out)
    return out.getvalue()


def _read(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RequestError(f"{path}: is not a regular file; name a YAML file")
        if path.stat().st_size > LARGEST_SPEC:
            raise RequestError(f"{path}: is larger than {LARGEST_SPEC:,} bytes, which no sweep is")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RequestError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise RequestError(f"{path}: is a folder; name a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot be read as UTF-8 text ({error.__class__.__name__})") from None
    if any(token in text for token in ("&", "*")) and _has_alias(text):
        raise RequestError(f"{path}: uses YAML anchors or aliases, which sweeps do not; write the values out")
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RequestError(f"{path}: {where}not valid YAML: {_line(error.problem or 'unreadable', 200)}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not valid YAML: {_line(str(error), 200)}") from None


def _has_alias(text: str) -> bool:
    """Whether the text holds an anchor or an alias (they can make a small file explode)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.tokens import AliasToken, AnchorToken

    try:
        return any(isinstance(token, (AliasToken, AnchorToken)) for token in YAML(typ="safe", pure=True).scan(text))
    except (YAMLError, ValueError):
        return False  # the loader names what is wrong
