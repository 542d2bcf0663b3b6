"""Mappings <-> specs. Strict: an unknown key or a wrong type is an error with the closest known name. Opens no file.

Which class a `kind` means is an argument (`resolve`), so that this layer knows no policy by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.spec.refused import refusals
from sweeper.spec.search import ADAPTIVE, AdaptiveSearch, RandomSearch
from sweeper.spec.space import Choices, PolicySpace, Range, Space
from sweeper.spec.sweep import Arm, DataSpec, PrivacySpec, Resources, ScoreSpec, SweepSpec, too_few_arms
from sweeper.spec.values import DOMAIN_KEYS, as_mapping, as_text, inside, only_known, read_record, read_value, type_hints

Resolve = Callable[[str, object], type[Any]]  # (family, kind) -> class, or FieldError on field "kind"
SECTIONS = ("name", "data", "model", "trainer", "privacy", "protocol", "search", "score", "space", "arms", "resources")


def spec_from_dict(data: object, resolve: Resolve) -> SweepSpec:
    """The spec a mapping (from YAML, JSON or Python) describes.

    Raises:
      FieldError: the first field that breaks a rule, named by its path (`trainer.steps`).
    """
    top = as_mapping("spec", data)
    for found in refusals(top):
        raise found
    only_known("spec", top, SECTIONS, prefix=False)
    arms = None if top.get("arms") is None else as_mapping("arms", top["arms"])
    if arms is not None and top.get("space") is not None:
        hint = "Move clip and step of space into an arm, or leave arms out."
        raise FieldError("arms", checks.MISSING, "and space are both given: arms are several spaces", hint)
    if arms is not None and len(arms) < 2:
        raise too_few_arms()
    own_trainers = arms is not None and all(isinstance(arm, Mapping) and arm.get("trainer") for arm in arms.values())
    for key in ("name", "data", "model", "trainer", "privacy", "protocol", "space"):
        if top.get(key) is None and not (key == "space" and arms is not None) and not (key == "trainer" and own_trainers):
            hint = "Or give arms, to compare several." if key == "space" else ""
            raise FieldError(key, checks.MISSING, "is missing", hint)
    data_section = dict(as_mapping("data", top["data"]))
    source = data_section.pop("source", None)
    if source is None:
        raise FieldError("data.source", checks.MISSING, "is missing", "See: sweeper kinds data.")
    parts = {
        "data": inside("data", lambda: read_record(DataSpec, {**data_section, "source": _source(source, resolve)})),
        "model": _kinded("model", top["model"], resolve),
        "privacy": inside("privacy", lambda: read_record(PrivacySpec, top["privacy"])),
        "protocol": _kinded("protocol", top["protocol"], resolve),
    }
    if top.get("trainer") is not None:
        parts["trainer"] = _kinded("trainer", top["trainer"], resolve)
    if arms is None:
        parts["space"] = _space(top["space"], resolve)
    else:
        parts["arms"] = {name: _arm(name, arm, resolve) for name, arm in arms.items()}
    if "search" in top:
        parts["search"] = _search(top["search"], resolve)
    if "score" in top:
        parts["score"] = inside("score", lambda: read_record(ScoreSpec, top["score"]))
    if "resources" in top:
        parts["resources"] = inside("resources", lambda: read_record(Resources, top["resources"]))
    if parts["protocol"].kind == "public-proxy":
        proxy = inside("protocol", lambda: _source(parts["protocol"].proxy, resolve, "proxy")).description
        if getattr(parts["model"], "binary", False) and proxy.classes != 2:
            rule = f"has {proxy.classes} classes, and model {parts['model'].kind} needs 2"
            raise FieldError("protocol.proxy", parts["protocol"].proxy, rule, "Name another table, or use model: {kind: softmax}.")
    return SweepSpec(name=as_text("name", top["name"]), **parts)


def spec_to_dict(spec: SweepSpec) -> dict[str, Any]:
    """A plain mapping that `spec_from_dict` reads back to an equal spec; every default written out, except the default search.

    (A sweep that was sealed before searches had a name has the same fingerprint now, so that it can be resumed.)
    """
    search = {} if spec.search == RandomSearch() else {"search": _with_kind(spec.search)}
    arms = {name: _space_to_dict(arm.space) | {"trainer": _with_kind(arm.trainer)} for name, arm in spec.arms.items()}
    return {
        "name": spec.name,
        "data": {**_fields(spec.data), "source": _source_to_dict(spec.data.source)},
        "model": _with_kind(spec.model),
        **({} if arms else {"trainer": _with_kind(spec.trainer)}),
        "privacy": _fields(spec.privacy),
        "protocol": _with_kind(spec.protocol),
        **search,
        "score": _fields(spec.score),
        **({"arms": arms} if arms else {"space": _space_to_dict(spec.space)}),
        "resources": _fields(spec.resources),
    }


def fingerprint(spec: SweepSpec) -> str:
    """SHA-256 of the canonical form: the same whatever the order of keys, the notation of numbers, or defaults left out."""
    canonical = json.dumps(_whole(spec_to_dict(spec)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _whole(value: Any) -> Any:
    """2.0 as 2: a spec built in Python may hold either, and the two specs are equal."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _space_to_dict(space: Space) -> dict[str, Any]:
    return {part: _policy_to_dict(getattr(space, part)) for part in ("clip", "step")}


def _policy_to_dict(space: PolicySpace) -> dict[str, Any]:
    data: dict[str, Any] = {"policy": space.policy.kind}
    for key, value in space.settings.items():
        main = key == space.policy.searched
        if isinstance(value, Range):
            written = {"range": [value.low, value.high], "scale": value.scale}
            data.update(written if main else {key: written})
        elif isinstance(value, Choices):
            data.update({"values": list(value.values)} if main else {key: {"values": list(value.values)}})
        else:
            data["value" if main else key] = list(value) if isinstance(value, tuple) else value
    return data


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record) if getattr(record, f.name) is not None}


def _with_kind(record: Any) -> dict[str, Any]:
    return {"kind": record.kind, **_fields(record)}


def _source(section: object, resolve: Resolve, field: str = "source") -> Any:
    """A source by its kind alone, or by a mapping with its fields; `module:` alone says its kind."""
    if isinstance(section, Mapping) and field == "source":
        mapping = dict(as_mapping(field, section))
        kind = mapping.pop("kind", "module" if "module" in mapping else None)
        if kind is None:
            raise FieldError("source.kind", checks.MISSING, "is missing", "See: sweeper kinds data.")
        cls = inside("source", lambda: resolve("data", kind))
        return inside("source", lambda: read_record(cls, mapping, owner=f"data source {cls.kind}"))
    try:
        cls = resolve("data", section)
    except FieldError as error:
        raise FieldError(field, error.value, error.rule, error.hint) from None
    if required := [f.name for f in fields(cls) if f.default is NO_DEFAULT and f.default_factory is NO_DEFAULT]:
        if field != "source":
            raise FieldError(field, section, "is a table of the user's own, and must be a published one", "See: sweeper data list.")
        raise FieldError(field, section, f"needs {', '.join(required)}", f"As in data: {cls.example}.")
    return cls()


def _source_to_dict(source: Any) -> str | dict[str, Any]:
    """The kind alone where nothing else is stated, as files wrote it before sources had fields: the fingerprint stays."""
    stated = source.to_dict() if hasattr(source, "to_dict") else {}
    return {"kind": source.kind, **stated} if stated else str(source.kind)


def _kinded(family: str, section: object, resolve: Resolve) -> Any:
    mapping = dict(as_mapping(family, section))
    if family == "model" and "module" in mapping:  # says its kind
        mapping.setdefault("kind", "module")
    if "kind" not in mapping:
        raise FieldError(f"{family}.kind", checks.MISSING, "is missing", f"See: sweeper kinds {family}.")
    cls = inside(family, lambda: resolve(family, mapping.pop("kind")))
    return inside(family, lambda: read_record(cls, mapping, owner=f"{family} {cls.kind}"))


def _search(section: object, resolve: Resolve) -> Any:
    kind = section.get("kind") if isinstance(section, Mapping) else None
    if isinstance(kind, str) and kind in ADAPTIVE:
        return AdaptiveSearch(kind=kind)  # planning refuses it, with what the alternative costs
    return _kinded("search", section, resolve)


def _space(section: object, resolve: Resolve, place: str = "space") -> Space:
    mapping = as_mapping(place, section)
    only_known(place, mapping, ("clip", "step"))
    parts = {}
    for part in ("clip", "step"):
        if mapping.get(part) is None:
            raise FieldError(f"{place}.{part}", checks.MISSING, "is missing", f"See: sweeper kinds {part}.")
        parts[part] = inside(f"{place}.{part}", lambda part=part: _policy(part, mapping[part], resolve))  # type: ignore[misc]
    return Space(**parts)


def _arm(name: str, section: object, resolve: Resolve) -> Arm:
    place = f"arms.{name}"
    checks.name(arms=name)
    mapping = dict(as_mapping(place, section))
    only_known(place, mapping, ("clip", "step", "trainer"), what="an arm, which holds clip, step and trainer")
    trainer = mapping.pop("trainer", None)
    space = _space(mapping, resolve, place)
    if trainer is None:
        return Arm(space=space)
    return Arm(space=space, trainer=inside(place, lambda: _kinded("trainer", trainer, resolve)))


def _policy(family: str, section: object, resolve: Resolve) -> PolicySpace:
    mapping = dict(as_mapping(family, section, whole=True))
    if "policy" not in mapping:
        raise FieldError("policy", checks.MISSING, "is missing", f"See: sweeper kinds {family}.")
    try:
        cls = resolve(family, mapping.pop("policy"))
    except FieldError as error:
        raise FieldError("policy", error.value, error.rule, error.hint) from None
    own = {key: mapping.pop(key) for key in DOMAIN_KEYS if key in mapping}
    known = [f.name for f in fields(cls)]
    for key in mapping:
        if key not in known:
            names = [*known, *DOMAIN_KEYS, "policy"]
            raise FieldError(key, checks.MISSING, f"is not a field of {family} policy {cls.kind}{checks.suggestion(key, names)}")
    settings = {}
    for key, value in mapping.items():
        settings[key] = _setting(key, value, type_hints(cls)[key])
    if own and not cls.searched:
        raise FieldError(next(iter(own)), checks.MISSING, f"sets nothing: {family} policy {cls.kind} has no settings", "Drop it.")
    if own:
        if cls.searched in settings:
            raise FieldError(cls.searched, mapping[cls.searched], f"and {next(iter(own))} are both given: they set the same thing")
        settings[cls.searched] = _domain(own, type_hints(cls)[cls.searched])
    required = [f.name for f in fields(cls) if f.default is NO_DEFAULT and f.default_factory is NO_DEFAULT]
    for key in required:
        if key not in settings:
            raise FieldError(
                key,
                checks.MISSING,
                "is missing",
                f"Give {'value: or range:' if key == cls.searched else 'it a value'}, as in {cls.example}.",
            )
    return PolicySpace(policy=cls, settings=settings)


def _setting(key: str, value: Any, wanted: Any) -> Any:
    """A field of a policy: a plain value, or a mapping that says what to search."""
    if not isinstance(value, Mapping):
        return read_value(key, value, wanted)
    return inside(key, lambda: _domain(value, wanted), flat=True)


def _domain(own: Mapping[str, Any], wanted: Any) -> Any:
    """A value, Choices or Range from the keys value | values | range + scale."""
    for key in own:
        if key not in DOMAIN_KEYS:
            raise FieldError(
                str(key), checks.MISSING, f"is not one of value, values, range, scale{checks.suggestion(key, DOMAIN_KEYS)}"
            )
    given = [key for key in ("value", "values", "range") if key in own]
    if len(given) != 1:
        raise FieldError("range", checks.MISSING, f"needs exactly one of value, values, range; got {' and '.join(given) or 'none'}")
    if "scale" in own and given != ["range"]:
        raise FieldError("scale", own["scale"], "belongs to a range", "Drop it.")
    body = own[given[0]]
    if given == ["value"]:
        return read_value("value", body, wanted)
    if not isinstance(body, (list, tuple)):
        raise FieldError(given[0], body, "must be a list")
    if given == ["values"]:
        return Choices(values=tuple(read_value("values", item, wanted) for item in body))
    if len(body) != 2:
        raise FieldError("range", body, "must be two numbers [low, high]")
    low, high = (read_value("range", item, float) for item in body)
    return Range(low=low, high=high, scale=own.get("scale", "linear"))
