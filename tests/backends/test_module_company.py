"""Whatever a module does with its batch as a whole, one record moves the sum by at most the clip norm, or the module is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from small import blobs, table, without

from sweeper.backends import examine
from sweeper.backends.examine import Examination, examined
from sweeper.backends.opacus import ModuleProblem
from sweeper.backends.user_module import user_module
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

ROWS, CLIP = 60, FixedClip(clip_norm=1.0)
DESCRIPTION = Description(rows=ROWS, features=12, classes=3)
STREAMS = Streams(secret_from_seed("company"), 0)


def own(function: str, **more: object) -> ModuleModel:
    return ModuleModel(module=f"company_nets:{function}", **more)  # type: ignore[arg-type]


def look(model: ModuleModel) -> Examination:
    return examined(model, DESCRIPTION)


def unlike_the_rest(model: ModuleModel, value: float) -> Table:
    """Records in [0, 1], or tokens of any length, but for one."""
    draws = np.random.default_rng(0)
    if model.integers:
        features = draws.integers(1, 500, (ROWS, 12)).astype(np.float32)
        features[::3, 5:], features[7, 1:] = 0, 0
    else:
        features = draws.random((ROWS, 12)).astype(np.float32)
        features[7] = value
    return table(features, np.arange(ROWS) % 3)


def problems_of(model: ModuleModel, *tables: Table) -> list[ModuleProblem]:
    return [ModuleProblem(model=model, description=DESCRIPTION, table=some, rows=np.arange(ROWS)) for some in tables]


def moved_by(model: ModuleModel, full: Table, row: int) -> float:
    """How far one record moves the sum, in clip norms."""

    def summed(some: Table) -> torch.Tensor:
        problem = ModuleProblem(model=model, description=DESCRIPTION, table=some, rows=np.arange(ROWS))
        return problem.batch(np.arange(ROWS)).sum(problem.start(STREAMS), CLIP.factors)

    return float((summed(full) - summed(without(full, row))).norm())


READS = {
    "a threshold": (own("Rescaling"), r"company_nets.py:\d+ \(__bool__\)"),
    "a list": (own("Listing"), r"company_nets.py:\d+ \(tolist\)"),
    "an array": (own("ByNumpy"), r"company_nets.py:\d+ \(__array__\)"),
    "a count": (own("Picking"), r"company_nets.py:\d+ \(index\)"),
    "a mask": (own("Masked", args={"asks": True}, integers=True), r"company_nets.py:\d+ \(__bool__\)"),
    "an end": (own("Leaving"), r"company_nets.py:\d+ \(__bool__\)"),
    "a list of tensors": (own("Longest", integers=True), r"company_nets.py:\d+ \(tensor\)"),
    "a hook": (own("Hooked"), r"company_nets.py:\d+ \(a Python number\)"),
    "a rare token": (own("Filling", integers=True), r"company_nets.py:\d+ \(masked_scatter\)"),
    "a function": (own("Applied"), r"company_nets.py:\d+ \(apply_\)"),
    "a thread that waits": (own("Pooled"), r"company_nets.py:\d+ \(a thread\)"),
    "dropout as often as is wanted": (own("Early"), r"company_nets.py:\d+ \(__bool__\)"),
    "a scale for good": (own("Spiked"), r"company_nets.py:\d+ \(__bool__\)"),
    "a buffer for good": (own("Banked"), r"company_nets.py:\d+ \(__bool__\)"),
}


@pytest.mark.parametrize(("model", "place"), READS.values(), ids=READS)
def test_a_module_that_reads_numbers_gets_one_record_at_a_time(model: ModuleModel, place: str) -> None:
    found = look(model)
    assert found.sizes == (1,)
    assert re.search(f"one at a time, which is slow: it reads numbers out of them at {place}", found.notes[-1])
    for value in (1.5, -3.0, 300.0, 1e9):
        full = unlike_the_rest(model, value)
        assert all(moved_by(model, full, row) <= 1 + 1e-6 for row in (0, 7))
    with pytest.raises(FieldError, match=r"model.microbatch = 4 must be 1: the module reads numbers .* at company_nets.py"):
        look(ModuleModel(**{**vars(model), "microbatch": 4}))


def test_as_a_batch_one_record_would_move_it_by_several_clip_norms() -> None:
    """What the tests here would see if the module above were given its records together."""
    model = own("Rescaling")
    full = unlike_the_rest(model, 300.0)
    found = look(model)
    problems = [
        ModuleProblem(model=model, description=DESCRIPTION, table=t, rows=np.arange(ROWS)) for t in (full, without(full, 7))
    ]
    for problem in problems:
        problem._sizes, problem._chunk_Bd = (64,), torch.empty(64, 12)
    one, other = (problem.batch(np.arange(ROWS)).sum(problem.start(STREAMS), CLIP.factors) for problem in problems)
    assert found.sizes == (1,)
    assert (one - other).norm() > 2.0


REFUSED = {
    "decides inside torch": (own("WithoutAsking"), "gives a record another gradient when another one of its 8 is 2 times as large"),
    "mean of the first batch": (own("Centred"), "changes mean while it computes"),
    "mean in a closure": (own("CentredInside"), "changes prepare()['kept']['mean'] while it computes"),
    "mean in a global": (own("CentredByGlobal"), "changes company_nets.KEPT['mean'] while it computes"),
    "a loss that remembers": (own("Small", loss="company_nets:running_loss"), "changes loss.mean while it computes"),
    "a dropout of its own": (own("WithSpread"), "draws random numbers by itself"),
    "the longest record counts": (own("LongestWithoutAsking", integers=True), "gives a record another"),
    "no derivative": (own("OnlyWithout"), "raised NotImplementedError where a gradient is wanted: no backward pass here"),
    "weighs by counts": (own("Small", loss="company_nets:by_counts"), "gives a record another loss when another one of its 8 is"),
    "swaps": (own("Swapping"), "gives a record another gradient with dropout when another one of its 8"),
    "draws by signs": (own("Leaky"), "draws random numbers by itself"),
    "half done": (own("Stashing", integers=True), "gives the same records other numbers after a pass that ended in an error"),
    "catches an index": (
        own("Catching", args={"asks": False}, integers=True),
        "when another one of its 8 is of tokens beyond its tables",
    ),
    "catches another": (own("Gathering"), "gives a record another gradient when another one of its 8 is"),
    "near ones": (own("Near"), "when another one of its 8 is nearly the same as another"),
    "another kind of token": (own("Counted", args={"literal": True}, integers=True), "gives a record another gradient"),
    "one kind of token": (own("Counted", args={"literal": False}, integers=True), "when another one of its 8 is of special tokens"),
    "counts passes": (own("Annealed"), "changes passes while it computes"),
    "mixes in large batches": (own("LargeCentred", args={"least": 100, "most": 999}), "when another one of its 128 is of zeros"),
    "mixes in middling ones": (own("LargeCentred", args={"least": 17, "most": 40}), "when another one of its 32 is of zeros"),
    "reads in large batches": (own("LargeAsking", args={"least": 100, "most": 999}), "in batches of 128, and not of 8"),
    "neighbours": (own("Turned"), "gives a record another gradient"),
    "sorts": (own("Sorted", integers=True), "gives a record another gradient when another one of its 8 is of"),
    "crowds": (own("Crowded"), "gives a record another"),
    "rounds together": (own("Rounding"), "gives a record another"),
    "weighs by the batch": (own("Small", loss="company_nets:by_counts_quietly"), "gives a record another"),
    "Python's random": (own("Drawing", args={"numpy": False}), "draws random numbers by itself"),
    "numpy's random": (own("Drawing", args={"numpy": True}), "draws random numbers by itself"),
    "numpy's attributes": (own("Projected", args={"numpy": True}), "gives other parameters, buffers or attributes"),
    "overwrites its input": (own("OverwritesItsInput"), "of which no gradient can be taken: one of the variables needed"),
    "one row is none": (own("Squeezing", args={"asks": True}), "gives [3] for 1 records, and must give [1, 3]"),
    "scripted": (own("scripted", args={"inside": False}), "returned a module of torch.jit"),
    "scripted inside": (own("scripted", args={"inside": True}), "returned a module of torch.jit"),
    "positions for all": (
        own("Placed", args={"each": False}, integers=True),
        "calls places, a Embedding, on a tensor",
    ),
    "eight positions for all": (own("Placed", args={"each": False, "positions": 8}, integers=True), ""),
}


@pytest.mark.parametrize(("model", "rule"), REFUSED.values(), ids=REFUSED)
def test_what_no_way_of_batching_can_serve_is_refused(model: ModuleModel, rule: str) -> None:
    features = 8 if model.args.get("positions") == 8 else 12
    with pytest.raises(FieldError) as refused:
        examined(model, Description(rows=ROWS, features=features, classes=3))
    assert rule in refused.value.rule
    assert refused.value.hint or "must give" in rule


TAKEN = {
    "plain": own("Small"),
    "a table made once": own("Tabled"),
    "torch's attributes": own("Projected", args={"numpy": False}),
    "in place": own("Masked", args={"asks": False}, integers=True),
    "squeezes": own("Squeezing", args={"asks": False}),
    "arguments by name": own("Named"),
    "positions for each": own("Placed", args={"each": True}, integers=True),
    "padded": own("Padded", integers=True),
    "40 layers": own("deep", args={"layers": 40, "width": 64}),
    "40 norms": own("deep", args={"layers": 40, "width": 64, "norm": True}),
    "wide and deep": own("deep", args={"layers": 30, "width": 256}),
    "sets precision": own("Coarse"),
    "compiled": own("compiled", args={"how": "wrapped"}),
    "compiled in place": own("compiled", args={"how": "in place"}),
    "categories": own("Categorical"),
    "one-hot tokens": own("HotTokens", integers=True),
    "vmap inside": own("Vmapped"),
    "a loss that changes labels": own("Small", loss="company_nets:in_place"),
    "a part compiled": own("compiled", args={"how": "a part wrapped"}),
    "a layer compiled": own("compiled", args={"how": "a layer"}),
}


@pytest.mark.parametrize("model", TAKEN.values(), ids=TAKEN)
def test_sound_modules_are_not_refused(model: ModuleModel) -> None:
    found = look(model)
    assert found.sizes == (8, 16, 32, 64, 128)
    assert found.error < 1e-4
    for value in (1.5, -3.0, 300.0):
        assert all(moved_by(model, unlike_the_rest(model, value), row) <= 1 + 1e-6 for row in (0, 7))


def test_a_loss_may_not_count_any_class() -> None:
    model = own("ten_classes", loss="company_nets:by_one_class")
    with pytest.raises(FieldError, match=r"another loss when another one of its 8 is of another label \(one is 7\)"):
        examined(model, Description(rows=ROWS, features=12, classes=10))


@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("row", [0, 30, 59])
def test_an_error_leaves_nothing_half_done(row: int, microbatch: int | None) -> None:
    """The record that causes it is a null record, to sums, to losses along a line and to predictions."""
    model = own("StashingRows", microbatch=microbatch)
    full = unlike_the_rest(model, 1.5)
    full.features[row, 0] = -1e8
    one, other = problems_of(model, full, without(full, row))
    params_P = one.start(STREAMS)
    for _ in range(2):
        sums = [problem.batch(np.arange(ROWS)).sum(params_P, CLIP.factors) for problem in (one, other)]
        assert torch.equal(*sums)
        along = [p.batch(np.arange(ROWS)).losses_along(params_P, params_P, [0.1], lambda here, there: there) for p in (one, other)]
        assert torch.equal(*along)
    labels = [user_module(model).predict(params_P, torch.from_numpy(t.features)) for t in (full, without(full, row))]
    rest = np.arange(ROWS) != row
    assert labels[0][row] == -1
    assert torch.equal(labels[0][rest], labels[1][rest])


@pytest.mark.parametrize("function", ["Spiked", "Banked", "Early"])
def test_of_records_that_go_alone_none_leaves_the_next_anything(function: str) -> None:
    model = own(function)
    full = unlike_the_rest(model, 1e9)
    one, other = problems_of(model, full, without(full, 7))
    params_P = one.start(STREAMS)
    other.start(STREAMS)
    seen, before = [list[float](), list[float]()], torch.get_rng_state()
    for problem, norms in zip((one, other), seen, strict=True):
        for _ in range(2):  # the second draw begins where the first left the generator, whatever its records used up
            batch = problem.batch(np.arange(ROWS))
            batch.sum(params_P, lambda s, norms=norms: (norms.extend(s.flatten().tolist()), CLIP.factors(s))[1])
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's numbers are used up
    rest = [at for at in range(2 * ROWS) if at % ROWS != 7]
    assert [seen[0][at] for at in rest] == [seen[1][at] for at in rest]
    labels = [user_module(model).predict(params_P, torch.from_numpy(t.features)) for t in (full, without(full, 7))]
    assert torch.equal(labels[0][8:], labels[1][8:])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_module_that_rounds_by_itself_is_taken(precision: str) -> None:
    model = own("Rounded", precision=precision)
    assert 1e-4 < look(model).error < 0.1
    assert all(moved_by(model, unlike_the_rest(model, 300.0), row) <= 1 + 1e-6 for row in (0, 7))


def test_what_code_makes_once_it_makes_of_made_up_records_in_every_process() -> None:
    """A worker that goes by the driver's examination, and whose class has kept no number yet."""
    import company_nets

    model = own("ScaledByClass")
    company_nets.ScaledByClass.scale = None
    found = look(model)
    assert found.sizes == (1,)
    kept = company_nets.ScaledByClass.scale
    company_nets.ScaledByClass.scale = None
    examine._KNOWN.clear()
    examine.known(model, DESCRIPTION, found)
    assert company_nets.ScaledByClass.scale == kept
    full = unlike_the_rest(model, 300.0)
    assert all(moved_by(model, full, row) <= 1 + 1e-6 for row in (0, 7))


def test_expensive_modules_get_smaller_batches_and_say_what_they_are_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model, said = own("deep", args={"layers": 2, "width": 99}), list[str]()
    monkeypatch.setattr(examine, "_WORK", 1e8)  # 60 passes of 40,194 operations for a record: 41 records in all sizes
    monkeypatch.setattr(examine, "_QUIET", -1.0)
    found = examined(model, DESCRIPTION, said.append)
    assert found.sizes == (8, 16)
    assert "batches of 16, the 2. of 2 sizes" in said
    assert any(line.startswith("gradients of records") for line in said)


def test_torchs_settings_are_as_they_were() -> None:
    before = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    moved_by(own("Coarse"), unlike_the_rest(own("Coarse"), 1.5), 7)
    user_module(own("Coarse")).predict(torch.zeros(259), torch.zeros(3, 12))
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()) == before


def test_an_error_that_takes_two_records_leaves_nobody_out() -> None:
    """Alone each of them is fine; with one of the pair gone nothing fails, and the others count for the same."""
    model = own("Pairs")
    full = unlike_the_rest(model, 1e7)
    full.features[8] = full.features[9] = 1e7
    whole, parted = problems_of(model, full, without(full, 8))
    params_P = whole.start(STREAMS)
    one, other = (problem.batch(np.arange(ROWS)).sum(params_P, CLIP.factors) for problem in (whole, parted))
    assert whole.nonfinite == parted.nonfinite == 0
    assert (one - other).norm() <= 1 + 1e-6
    labels = user_module(model).predict(params_P, torch.from_numpy(full.features))
    assert (labels >= 0).all()


def test_a_record_on_which_the_module_ends_the_process_is_a_null_record() -> None:
    model = own("Leaving")
    full = unlike_the_rest(model, 1e9)
    one, other = problems_of(model, full, without(full, 7))
    params_P = one.start(STREAMS)
    sums = [problem.batch(np.arange(ROWS)).sum(params_P, CLIP.factors) for problem in (one, other)]
    assert torch.equal(*sums)
    assert (one.nonfinite, other.nonfinite) == (1, 0)
    assert user_module(model).predict(params_P, torch.from_numpy(full.features))[7] == -1


@pytest.mark.parametrize("count", [1, 7, 8, 9, 60, 128, 129, 300])
def test_a_module_sees_no_size_that_was_not_checked(count: int) -> None:
    model, seen = own("Small"), []
    full, description = blobs(300, 12, 3)
    problem = ModuleProblem(model=model, description=description, table=full, rows=np.arange(300))
    params_P = problem.start(STREAMS)
    user = user_module(model)
    modules = (problem._module, user.template)
    handles = [module.register_forward_hook(lambda _, args, __: seen.append(len(args[0]))) for module in modules]
    batch, told = problem.batch(np.arange(count)), []
    batch.sum(params_P, lambda squares_BL: (told.append(len(squares_BL)), CLIP.factors(squares_BL))[1])
    batch.losses_along(params_P, params_P, [0.1], lambda here, there: (told.append(len(here)), there - here)[1])
    assert len(user.predict(params_P, torch.from_numpy(full.features[:count]))) == count
    for handle in handles:
        handle.remove()
    assert set(seen) <= set(problem.examination.sizes)
    assert sum(told) == 2 * count  # and policies hear of no row that was filled in


def test_workers_go_by_the_drivers_examination_of_the_same_module() -> None:
    model = own("Projected", args={"numpy": False})
    found = look(model)
    examine._KNOWN.clear()
    examine.known(model, DESCRIPTION, found)
    assert look(model) is found
    with pytest.raises(FieldError, match="on this machine than where the sweep was started"):
        examine.known(own("Small"), DESCRIPTION, found)
