"""Malformed sweep files: each is ONE line `file: field = value rule. hint`, and never another exception than RequestError."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweeper.catalog import KINDS, LARGEST_SPEC, load_spec
from sweeper.checks import RequestError

GOOD = """\
name: adult-clip
data: {source: adult, holdout: 0.2}
model: {kind: logistic}
trainer: {kind: dp-sgd, batch_size: 256, steps: 2000, sampling: poisson, average: tail}
privacy: {epsilon: 2.0, delta: 1e-5, unit: record, budget_of: adult}
protocol: {kind: select-best, law: tnb, eta: 2, mean_trials: 12, max_trials: 64}
score: {metric: accuracy, split: holdout, epsilon: 0.1}
space:
  clip: {policy: fixed, range: [0.05, 2.0], scale: log}
  step: {policy: coupled, range: [0.3, 10.0], scale: log}
resources: {cpu: 1}
"""
CLIPS, MODELS, TRAINERS, SOURCES = (", ".join(KINDS[family]) for family in ("clip", "model", "trainer", "data"))
HUGE = "1" + "0" * 400
LONG = "0x" + "f" * 5000  # Python will not write it in decimal


def refusal(folder: Path, content: str | bytes) -> str:
    """What `load_spec` says of a file, without the file's name."""
    path = folder / "sweep.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(RequestError) as caught:
        load_spec(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 700 + len(str(path))
    return text.removeprefix(f"{path}: ")


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def section(name: str, body: str) -> str:
    """GOOD with one whole section replaced (an empty body: the section is null)."""
    found = re.sub(rf"(?m)^{name}:.*\n(  .*\n)*", lambda _: f"{name}: {body}\n", GOOD)
    assert found != GOOD
    return found


def with_search(body: str, text: str = GOOD) -> str:
    return text.replace("score:", f"search: {body}\nscore:")


RELEASE_ALL = section("protocol", "{kind: release-all, trials: 9}")


def test_the_file_that_all_others_are_made_from_is_good(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    assert load_spec(path).name == "adult-clip"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "spec = None must be a mapping of fields"),
        ("# nothing but a comment\n", "must be a mapping of fields"),
        ("- a\n- b\n", "spec = ['a', 'b'] must be a mapping"),
        ("hello", "spec = 'hello' must be a mapping"),
        (b"\xff\xfe\x00abc", "cannot be read as UTF-8 text"),
        (b"name: caf\xe9\n", "cannot be read as UTF-8 text"),
        ("name: a\0b\n", "not valid YAML"),
        ("name: x\n\tdata: y\n", "line 2, column 1: not valid YAML: found character '\\t' that cannot start any token"),
        ("name: a: b\n", "line 1, column 8: not valid YAML"),
        ("name: {a\n", "not valid YAML"),
        ("name: @x\n", "not valid YAML"),
        (GOOD + "name: other\n", 'found duplicate key "name"'),
        (edited("holdout: 0.2", "holdout: 0.2, holdout: 0.3"), 'found duplicate key "holdout"'),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "uses YAML anchors or aliases"),
        (GOOD + "---\nname: other\n", "not valid YAML: but found another document"),
        ("[" * 5000, "not valid YAML: maximum recursion depth"),
        ("name: !!python/object:os.system x\n", "could not determine a constructor"),
        (section("model", "!!set {kind, logistic}"), "must be a mapping of fields"),
        ("%YAML 9.9\n---\n" + GOOD, "not valid YAML"),
        (GOOD + "1: x\n", "1 is a key, and keys must be text"),
        (GOOD + "null: x\n", "None is a key, and keys must be text"),
        (GOOD + "[a, b]: x\n", "keys must be text"),
        (GOOD + "? {a: b}\n: x\n", "unhashable key"),
        (GOOD + '"a\\nb": x\n', "a b is not a field of a sweep"),
        (GOOD + '"\\e[31mred": x\n', "[31mred is not a field of a sweep"),
        (GOOD + '"\\ud800x": x\n', "x is not a field of a sweep"),
        (GOOD + f'? "{"k" * 90_000}"\n: 1\n', "kkk..."),
        (GOOD + "#" + "x" * LARGEST_SPEC, "is larger than 1,000,000 bytes"),
    ],
    ids=range(28),
)
def test_what_is_not_a_sweep_file_at_all(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(("name", "words"), [("nope.yaml", "no such file"), (".", "is a folder; name a YAML file")])
def test_what_is_no_file(tmp_path, name, words):
    with pytest.raises(RequestError) as caught:
        load_spec(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {words}"


UNKNOWN = [
    (GOOD + "privcy: {}\n", "privcy is not a field of a sweep; did you mean privacy?"),
    (edited("holdout: 0.2", "holdut: 0.2"), "data.holdut is not a field; did you mean holdout?"),
    (edited("kind: logistic", "kind: logistic, l3: 0.1"), "model.l3 is not a field of model logistic; did you mean l2?"),
    (edited("sampling: poisson", "momentom: 0.5"), "trainer.momentom is not a field of trainer dp-sgd; did you mean momentum?"),
    (edited("delta: 1e-5", "detla: 1e-5"), "privacy.detla is not a field; did you mean delta?"),
    (
        edited("mean_trials: 12", "mean_trails: 12"),
        "protocol.mean_trails is not a field of protocol select-best; did you mean mean_trials?",
    ),
    (edited("metric: accuracy", "metrc: accuracy"), "score.metrc is not a field; did you mean metric?"),
    (edited("cpu: 1", "cpus: 1"), "resources.cpus is not a field; did you mean cpu?"),
    (edited("  clip:", "  clp:"), "space.clp is not a field of a sweep; did you mean clip?"),
    (
        section("space", "{clip: {policy: fixed, clipnorm: 1}}"),
        "space.clip.clipnorm is not a field of clip policy fixed; did you mean clip_norm?",
    ),
    (
        edited("range: [0.05, 2.0], scale", "rnge: [0.05, 2.0], scale"),
        "space.clip.rnge is not a field of clip policy fixed; did you mean range?",
    ),
    (
        edited("fixed, range: [0.05, 2.0], scale: log", "fixed, clip_norm: {rng: [1, 2]}"),
        "space.clip.clip_norm.rng is not one of value, values",
    ),
    (
        edited("kind: logistic", "kind: logstic"),
        f"model.kind = 'logstic' must be one of {MODELS}; did you mean logistic?",
    ),
    (edited("kind: dp-sgd", "kind: dpsgd"), f"trainer.kind = 'dpsgd' must be one of {TRAINERS}; did you mean dp-sgd?"),
    (edited("source: adult", "source: adlt"), f"data.source = 'adlt' must be one of {SOURCES}; did you mean adult?"),
    (edited("policy: fixed", "policy: fixd"), f"space.clip.policy = 'fixd' must be one of {CLIPS}; did you mean fixed?"),
    (
        edited("kind: select-best", "kind: subsample-tun"),
        "protocol.kind = 'subsample-tun' must be one of select-best, subsample-tune, release-all, public-proxy, no-tuning; did you",
    ),
    (
        edited("law: tnb", "law: geometrik"),
        "protocol.law = 'geometrik' must be one of tnb, logarithmic, geometric, binomial, fixed, poisson, auto; did you mean geo",
    ),
    (with_search("{kind: rndom}"), "search.kind = 'rndom' must be one of random, grid; did you mean random?"),
    (with_search("{kind: grid, point: 3}"), "search.point is not a field of search grid; did you mean points?"),
]

MISSING = [
    *((section(name, ""), f"{name} is missing") for name in ("name", "data", "model", "trainer", "privacy", "protocol", "space")),
    (section("score", ""), "score = None must be a mapping of fields"),
    (section("resources", "~"), "resources = None must be a mapping of fields"),
    (section("data", "{}"), "data.source is missing. See: sweeper kinds data."),
    (section("data", "{source: ~}"), "data.source is missing"),
    (section("model", "{}"), "model.kind is missing. See: sweeper kinds model."),
    (section("trainer", "{kind: dp-sgd, steps: 3}"), "trainer.batch_size is missing"),
    (section("privacy", "{epsilon: 2}"), "privacy.delta is missing"),
    (section("privacy", "{delta: 1e-5}"), "privacy.epsilon is missing, and so is noise_multiplier: one must be given"),
    (
        section("privacy", "{delta: 1e-5, epsilon: 2, noise_multiplier: 1}"),
        "privacy.epsilon = 2 and noise_multiplier = 1 are both given",
    ),
    (section("privacy", "{delta: ~, epsilon: 2}"), "privacy.delta is missing"),
    (section("protocol", "{law: tnb}"), "protocol.kind is missing"),
    (section("protocol", "{kind: public-proxy}"), "protocol.proxy is missing"),
    (section("space", "{}"), "space.clip is missing. See: sweeper kinds clip."),
    (section("space", "{clip: {policy: fixed, value: 1}, step: ~}"), "space.step is missing. See: sweeper kinds step."),
    (section("space", "{clip: {value: 1}}"), "space.clip.policy is missing"),
    (
        section("space", "{clip: {policy: fixed}}"),
        "space.clip.clip_norm is missing. Give value: or range:, as in {policy: fixed, range:",
    ),
]

TYPES = [
    *(
        (section(name, "[1]"), f"{name} = [1] must be a mapping")
        for name in ("data", "model", "trainer", "privacy", "protocol", "space")
    ),
    *((section(name, "3"), f"{name} = 3 must be a mapping") for name in ("score", "resources")),
    (with_search("asha"), "search = 'asha' must be a mapping of fields"),
    (with_search("{kind: [grid]}"), "search.kind = ['grid'] must be one of random, grid"),
    (with_search("{kind: grid, points: 2.5}"), "search.points = 2.5 must be a whole number"),
    (
        section("protocol", "{kind: select-best, law: poisson, may_return_nothing: 1}"),
        "protocol.may_return_nothing = 1 must be true or false",
    ),
    (edited("unit: record", "relation: 3"), "privacy.relation = 3 must be text"),
    (edited("delta: 1e-5", 'delta: "1e-5"'), "privacy.delta = '1e-5' must be a number. Write 1e-5 without quotes."),
    (edited("steps: 2000", 'steps: "2000"'), "trainer.steps = '2000' must be a whole number. Write 2000 without quotes."),
    (edited("steps: 2000", "steps: 1.5"), "trainer.steps = 1.5 must be a whole number"),
    (edited("steps: 2000", "steps: true"), "trainer.steps = True must be a whole number, not true or false"),
    (edited("steps: 2000", "steps: [2000]"), "trainer.steps = [2000] must be a whole number"),
    (edited("epsilon: 2.0", "epsilon: true"), "privacy.epsilon = True must be a number, not true or false"),
    (edited("average: tail", "average: 3"), "trainer.average = 3 must be text"),
    (edited("holdout: 0.2", "holdout: 0.2, public: yes"), "data.public = 'yes' must be true or false"),
    (edited("holdout: 0.2", "holdout: 0.2, public: 1"), "data.public = 1 must be true or false"),
    (edited("holdout: 0.2", "holdout: []"), "data.holdout = [] must be a number or text"),
    (edited("source: adult", "source: [adult]"), "data.source = ['adult'] must be one of"),
    (section("name", "2020-01-01"), "name = datetime.date(2020, 1, 1) must be text"),
    (section("name", "3"), "name = 3 must be text"),
    (edited("range: [0.05, 2.0]", "range: 1"), "space.clip.range = 1 must be a list"),
    (edited("range: [0.05, 2.0]", "range: {low: 1}"), "space.clip.range = {'low': 1} must be a list"),
    (edited("range: [0.05, 2.0]", 'range: ["1", 2]'), "space.clip.range = '1' must be a number. Write 1 without quotes."),
    (edited("range: [0.05, 2.0], scale: log", "values: 3"), "space.clip.values = 3 must be a list"),
    (edited("range: [0.05, 2.0], scale: log", "value: ~"), "space.clip.value = None must be a number"),
    (edited("policy: fixed", "policy: [fixed]"), f"space.clip.policy = ['fixed'] must be one of {CLIPS}"),
    (edited("scale: log}\n  step", "scale: [log]}\n  step"), "space.clip.scale = ['log'] must be one of linear, log"),
]

VALUES = [
    (section("name", "../../etc/passwd"), "name = '../../etc/passwd' must be 1 to 100 letters, digits"),
    (section("name", "/abs"), "name = '/abs' must be"),
    (section("name", '""'), "name = '' must be"),
    (section("name", '"a\\n"'), "name = 'a\\n' must be"),
    (section("name", "café"), "name = 'café' must be"),
    (section("name", "a" * 101), "must be 1 to 100 letters"),
    (edited("budget_of: adult", "budget_of: ../adult"), "privacy.budget_of = '../adult' must be"),
    (edited("budget_of: adult", 'budget_of: "a b"'), "privacy.budget_of = 'a b' must be"),
    (edited("holdout: 0.2", "holdout: 1.0"), "data.holdout = 1 must be at least 0 and below 1"),
    (edited("holdout: 0.2", "holdout: -0.1"), "data.holdout = -0.1 must be at least 0"),
    (edited("holdout: 0.2", "holdout: .nan"), "data.holdout = nan must be a finite number"),
    (edited("holdout: 0.2", f"holdout: {HUGE}"), "is too large a number"),
    (edited("holdout: 0.2", "holdout: tst"), "data.holdout = 'tst' must be a fraction below 1, or the word test"),
    (edited("holdout: 0.2", "holdout: test"), "needs a source with rows of its own set aside; adult has none"),
    (edited("holdout: 0.2", "holdout: 0"), "score.split = 'holdout' needs held-out rows, and data.holdout is 0"),
    (edited("holdout: 0.2", "holdout: 0.2, n: 1"), "data.n = 1 must be a whole number of at least 2"),
    (edited("holdout: 0.2", f"holdout: 0.2, n: {HUGE}"), "data.n = 1000"),
    (edited("holdout: 0.2", f"holdout: 0.2, n: {LONG}"), "data.n = a number too long to write must be"),
    (edited("holdout: 0.2", "holdout: 0.2, n: 50"), "trainer.batch_size = 256 must be at most the number of rows, 50"),
    (edited("holdout: 0.2", 'holdout: 0.2, split_key: "\\ud800"'), "data.split_key = '\\ud800' must be printable text"),
    (edited("source: adult", f"source: {LONG}"), "data.source = a number too long to write must be one of"),
    (edited("steps: 2000", "steps: 0"), "trainer.steps = 0 must be a whole number of at least 1"),
    (edited("steps: 2000", f"steps: {HUGE}"), "must be at most 1,000,000,000"),
    (edited("steps: 2000", f"steps: {LONG}"), "trainer.steps = a number too long to write must be at most"),
    (edited("batch_size: 256", "batch_size: 0"), "trainer.batch_size = 0 must be"),
    (edited("batch_size: 256", "batch_size: 40000"), "trainer.batch_size = 40000 must be at most the number of rows, 32,561"),
    (edited("sampling: poisson", "sampling: shuffle"), "trainer.sampling = 'shuffle' is refused"),
    (edited("sampling: poisson", "momentum: 1.0"), "trainer.momentum = 1 must be at least 0 and below 1"),
    (edited("kind: logistic", "kind: logistic, l2: -1"), "model.l2 = -1 must be at least 0"),
    (
        edited("delta: 1e-5", "delta: 1e-4"),
        'privacy.delta = 0.0001 must be below 1/n = 3.1e-05 (n = 32,561, stated by source "adult"). Try delta: 1e-05.',
    ),
    (
        edited("holdout: 0.2", "holdout: 0.2, n: 200000"),
        "must be below 1/n = 5e-06 (n = 200,000, stated by the user). Try delta: 1e-06.",
    ),
    (edited("delta: 1e-5", "delta: 0"), "privacy.delta = 0 must be above 0 and below 1"),
    (edited("delta: 1e-5", "delta: 1e-400"), "privacy.delta = 0 must be above 0"),
    (edited("epsilon: 2.0", "epsilon: 0"), "privacy.epsilon = 0 must be above 0"),
    (edited("epsilon: 2.0", "epsilon: .inf"), "privacy.epsilon = inf must be a finite number"),
    (edited("epsilon: 2.0", "epsilon: 1e400"), "privacy.epsilon = inf must be a finite number"),
    (edited("epsilon: 2.0", "noise_multiplier: -1"), "privacy.noise_multiplier = -1 must be above 0"),
    (edited("epsilon: 2.0", "noise_multiplier: 1e200"), "privacy.noise_multiplier = 1e+200 must be above 0 and at most 1e+09"),
    (
        edited("unit: record", "unit: user"),
        "privacy.unit = 'user' is refused: nothing here bounds what one user contributes. Use unit: record.",
    ),
    (edited("unit: record", "unit: rcord"), "privacy.unit = 'rcord' must be one of record; did you mean record?"),
    (edited("mean_trials: 12", "mean_trials: 1"), "protocol.mean_trials = 1 must be above 1"),
    (edited("max_trials: 64", "max_trials: 0"), "protocol.max_trials = 0 must be"),
    (edited("eta: 2,", "eta: -1,"), "protocol.eta = -1 must be at least 0"),
    (edited("law: tnb", "law: geometric"), "protocol.eta = 2 contradicts law geometric, whose eta is 1"),
    (
        section("protocol", "{kind: select-best, eta: 1000, mean_trials: 5000}"),
        "protocol.eta = 1000 with mean_trials 5000 gives a law too concentrated",
    ),
    (section("protocol", "{kind: select-best, release_every: 0}"), "protocol.release_every = 0 must be above 0"),
    (section("protocol", "{kind: release-all, trials: 0}"), "protocol.trials = 0 must be"),
    (section("protocol", "{kind: public-proxy, proxy: adult}"), "protocol.proxy = 'adult' is the private table itself"),
    (
        section("protocol", "{kind: public-proxy, proxy: adlt}"),
        f"protocol.proxy = 'adlt' must be one of {SOURCES}; did you mean adult?",
    ),
    (section("protocol", "{kind: public-proxy, proxy: fashion-mnist}"), "has 10 classes, and model logistic needs 2"),
    (section("protocol", "{kind: no-tuning}"), "space.clip.clip_norm is searched, but protocol no-tuning runs one setting"),
    (edited("source: adult", "source: fashion-mnist"), "model.kind = 'logistic' needs 2 classes; fashion-mnist has 10"),
    (section("space", "{clip: {policy: fixed, value: 1}, step: {policy: coupled, value: 1}}"), "space searches nothing"),
    (section("score", "{metric: auc}"), "score.metric = 'auc' must be one of accuracy"),
    (section("score", "{split: test}"), "score.split = 'test' must be one of holdout, training"),
    (section("score", "{epsilon: -1}"), "score.epsilon = -1 must be above 0"),
    (section("score", "{epsilon: 1e9}"), "score.epsilon = 1e+09 must be at least 1e-06 and at most 100"),
    (with_search("{kind: grid, points: 1}", RELEASE_ALL), "search.points = 1 must be a whole number of at least 2"),
    (
        with_search("{kind: grid, points: 4}", RELEASE_ALL),
        "protocol.trials = 9 is not the number of points of the grid, 16, which all run. Set protocol.trials: 16.",
    ),
    (with_search("{kind: grid, points: 1000}", RELEASE_ALL), "search.points makes more than 100,000 points. Lower it."),
    (
        section("protocol", "{kind: no-tuning}")
        .replace("range: [0.05, 2.0], scale: log", "value: 1")
        .replace("range: [0.3, 10.0], scale: log", "value: 1")
        .replace("score:", "search: {kind: grid}\nscore:"),
        "search.kind = 'grid' has nothing to search: no-tuning runs one setting. Leave search out.",
    ),
    (
        edited("sampling: poisson", "sampling: without-replacement").replace("kind: select-best", "kind: subsample-tune"),
        "trainer.sampling = 'without-replacement' is priced for replace-one, and subsample-tune draws its part of the rows for",
    ),
    (
        section("protocol", "{kind: select-best, law: auto, max_epsilon: 3}"),
        "protocol.max_epsilon = 3 is a limit for a given noise, and privacy.epsilon has the noise calibrated",
    ),
    (edited("unit: record", "relation: zero"), "privacy.relation = 'zero' must be one of zero-out, replace-one"),
    (section("resources", "{gpu: -1}"), "resources.gpu = -1 must be at least 0"),
    (section("resources", "{cpu: 0}"), "resources.cpu = 0 must be above 0"),
    (section("resources", "{max_concurrent: 0}"), "resources.max_concurrent = 0 must be"),
]

CLIPS = [
    ("range: []", "space.clip.range = [] must be two numbers [low, high]"),
    ("range: [1, 2, 3]", "space.clip.range = [1, 2, 3] must be two numbers"),
    ("range: [2, 1]", "space.clip.range = [2.0, 1.0] has its low end above its high end. Try [1, 2]."),
    ("range: [1, 1]", "space.clip.range = [1.0, 1.0] is empty: both ends are the same. Use value: 1 instead."),
    ("range: [0, 1], scale: log", "space.clip.range = [0.0, 1.0] must be above 0 on a log scale"),
    ("range: [0, 1]", "space.clip.clip_norm = 0 must be above 0"),
    ("range: [-1, 1]", "space.clip.clip_norm = -1 must be above 0"),
    ("range: [.nan, 1]", "space.clip.range = [nan, 1.0] must be two finite numbers"),
    ("range: [1, .inf]", "space.clip.range = [1.0, inf] must be two finite numbers"),
    ("range: [true, 2]", "space.clip.range = True must be a number, not true or false"),
    (f"range: [{LONG}, 2]", "space.clip.range = a number too long to write is too large a number"),
    ("scale: log", "needs exactly one of value, values, range; got none"),
    ("value: 1, range: [1, 2]", "needs exactly one of value, values, range; got value and range"),
    ("value: 1, scale: log", "space.clip.scale = 'log' belongs to a range. Drop it."),
    ("values: []", "space.clip.values = () must be a list of at least one value"),
    ("values: [1, 1.0]", "space.clip.values = [1.0, 1.0] must not repeat a value"),
    ("values: [1, -1]", "space.clip.clip_norm = -1 must be above 0"),
    ("values: [.nan]", "space.clip.clip_norm = nan must be a finite number"),
    ("value: -1", "space.clip.clip_norm = -1 must be above 0"),
    ("clip_norm: 1, value: 1", "space.clip.clip_norm = 1 and value are both given"),
    ("clip_norm: {}", "space.clip.clip_norm needs exactly one of value, values, range"),
    ("range: [1, 2], scale: lg", "space.clip.scale = 'lg' must be one of linear, log; did you mean log?"),
]
STEPS = [
    (
        "range: [1, 2], schedule: cosin",
        "space.step.schedule = 'cosin' must be one of constant, cosine, linear; did you mean cosine?",
    ),
    ("range: [1, 2], schedule: {range: [0, 1]}", "space.step.schedule = 0.5 must be one of constant"),
    ("range: [1, 2], warmup: {range: [0, 1]}", "space.step.warmup = 1 must be at least 0 and below 1"),
    ("range: [1, 2], warmup: {range: [0, 0.5], scale: log}", "space.step.warmup = [0.0, 0.5] must be above 0 on a log scale"),
    ("learning_rate: 1", "space.step.learning_rate is not a field of step policy coupled"),
]
CLIP, STEP = "range: [0.05, 2.0], scale: log", "range: [0.3, 10.0], scale: log"
DOMAINS = [(edited(CLIP, new), words) for new, words in CLIPS] + [(edited(STEP, new), words) for new, words in STEPS]


@pytest.mark.parametrize(("content", "words"), UNKNOWN, ids=[words[:40] for _, words in UNKNOWN])
def test_unknown_names_get_the_closest_one(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(("content", "words"), MISSING, ids=[words[:40] for _, words in MISSING])
def test_missing_and_double_fields(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(("content", "words"), TYPES, ids=[words[:40] for _, words in TYPES])
def test_wrong_types(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(("content", "words"), VALUES, ids=[words[:40] for _, words in VALUES])
def test_values_that_break_a_rule(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(("content", "words"), DOMAINS, ids=[words[:40] for _, words in DOMAINS])
def test_domains(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize("part", range(4))
def test_half_a_file_is_refused(tmp_path, part):
    """As a full disk or an editor leaves it, cut off anywhere before the last section, which may be left out."""
    for cut in range(part, GOOD.index("resources") - 1, 4):
        refusal(tmp_path, GOOD[:cut])
