"""What goes wrong in Opacus 1.6.0, shown on small examples, and the same situation here.

The first half of each test documents the peer: it says what the right answer is and that Opacus gives another, so that we notice
when that is mended. The second half is ours. README.md in this folder lists every trap with the test that covers it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping
from opacus.schedulers import ExponentialGradClip
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import DPLossFastGradientAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from small import blobs, table
from tiny_sweeps import spec_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from sweeper.backends.opacus import ModuleProblem
from sweeper.checks import FieldError
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.data.sampling import PoissonSampler
from sweeper.data.split import split_rows
from sweeper.models.module import ModuleModel
from sweeper.seeds import NOISE, Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = secret_from_seed("traps")
ROWS = 64


def problem(full=None, name: str = "rows", rows: int = ROWS) -> ModuleProblem:
    full = blobs(rows, 12, 3)[0] if full is None else full
    model = ModuleModel(module="user_nets:layer", args={"name": name})
    description = Description(rows=rows, features=12, classes=3)
    return ModuleProblem(model=model, description=description, table=full, rows=np.arange(rows))


def wild() -> ModuleProblem:
    full = blobs(ROWS, 12, 3)[0]
    return problem(table(full.features * 1e4, full.labels))


def norm(tensors) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def ghost(net: nn.Module, noise_multiplier: float = 0.0, batch: int = ROWS):
    module = GradSampleModuleFastGradientClipping(net, max_grad_norm=1.0, loss_reduction="sum")
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = DPOptimizerFastGradientClipping(
        sgd, noise_multiplier=noise_multiplier, max_grad_norm=1.0, expected_batch_size=batch, loss_reduction="sum"
    )
    return module, optimizer


def test_adaptive_clipping_with_ghost_norms_on_outliers() -> None:
    torch.manual_seed(0)
    net = nn.Linear(12, 3)
    module, optimizer = ghost(net)
    criterion = DPLossFastGradientAdaptiveClipping(
        module, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum", initial_noise_multiplier=0.0
    )
    criterion(module(1e4 * torch.rand(ROWS, 12)), torch.randint(0, 3, (ROWS,))).backward()
    assert norm(p.grad for p in net.parameters()) > 10 * ROWS * optimizer.max_grad_norm  # at most 1 times it would be right

    clip = AdaptiveQuantileClip(clip_norm=0.5)
    built = wild()
    params_P = built.start(Streams(SECRET, 0))
    for count in (0.3, -0.3):
        found = built.batch(np.arange(ROWS)).sum(params_P, clip.factors)
        assert 0 < found.norm() <= ROWS * clip.sensitivity
        clip = clip.moved(count)


def test_the_count_of_adaptive_clipping_is_priced_at_its_sensitivity() -> None:
    """Opacus adds noise for a count that moves by 1/2, to one that moves by 1, and divides by the batch that was drawn."""
    sigma, count_std, counts = 1.0, 0.6, []
    for records in (10, 11):
        net = nn.Linear(4, 2)
        module = GradSampleModule(net)
        optimizer = AdaClipDPOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.0),
            noise_multiplier=sigma,
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.2,
            max_clipbound=1e8,
            min_clipbound=1e-3,
            unclipped_num_std=count_std,
            max_grad_norm=100.0,
            expected_batch_size=10,
        )
        nn.functional.cross_entropy(module(torch.ones(records, 4)), torch.zeros(records, dtype=torch.long)).backward()
        optimizer.clip_and_accumulate()
        counts.append(int(optimizer.unclipped_num))
        assert optimizer.sample_size == records  # the divisor is private
    assert counts[1] - counts[0] == 1  # what it is priced for is 1/2
    claimed = (sigma**-2 - (2 * count_std) ** -2) ** -0.5  # noise on the gradients
    true = (claimed**-2 + count_std**-2) ** -0.5  # of both together, as one Gaussian
    assert true == pytest.approx(0.5695, abs=1e-4)  # where 1 is claimed

    clip = AdaptiveQuantileClip(clip_norm=0.5)
    votes = clip.counted(torch.tensor([[0.01], [9.0], [1e6]]))
    assert votes.abs().max() <= 0.5
    ours = (clip.sum_noise(sigma) ** -2 + (0.5 / clip.count_std(sigma)) ** 2) ** -0.5
    assert ours == pytest.approx(sigma, rel=1e-9)


def test_a_clip_schedule_moves_what_is_clipped_and_what_noise_is_scaled_to() -> None:
    module, optimizer = ghost(nn.Linear(4, 2), noise_multiplier=1.0)
    ExponentialGradClip(optimizer, gamma=0.1).step()
    assert (optimizer.max_grad_norm, module.max_grad_norm) == (0.1, 1.0)  # noise shrank tenfold, clipping did not

    clip = Decay(clip_norm=1.0, schedule="exponential")
    built = wild()
    params_P = built.start(Streams(SECRET, 0))
    seen = []
    for step in range(0, 50, 7):
        now = clip.at(step, 50)
        alone = [built.batch(np.array([row])).sum(params_P, now.factors).norm() for row in range(8)]
        assert 0.99 * now.sensitivity < max(alone) <= now.sensitivity
        seen.append(now.sensitivity)
    assert seen[0] > 2 * seen[-1]


def test_a_batch_that_was_left_in_the_middle_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    module = GradSampleModule(net)
    sgd = torch.optim.SGD(net.parameters(), lr=0.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=8)
    one = TensorDataset(100 * torch.ones(8, 4), torch.zeros(8, dtype=torch.long))

    def backward(inputs: Tensor, labels: Tensor) -> None:
        nn.functional.cross_entropy(module(inputs), labels).backward()

    with BatchMemoryManager(data_loader=DataLoader(one, batch_size=8), max_physical_batch_size=4, optimizer=optimizer) as parts:
        for inputs, labels in parts:
            backward(inputs, labels)
            optimizer.step()
            optimizer.zero_grad()
            break
    backward(100 * torch.ones(1, 4), torch.zeros(1, dtype=torch.long))
    optimizer.pre_step()
    assert norm(p.summed_grad for p in net.parameters()) == pytest.approx(5.0, rel=1e-3)  # one record's sum, and 1 is its bound

    built, clip = wild(), FixedClip(clip_norm=1.0)
    params_P = built.start(Streams(SECRET, 0))
    alone = built.batch(np.array([0])).sum(params_P, clip.factors)

    class Left(Exception):
        pass

    def leave(squares_BL: Tensor) -> Tensor:
        raise Left

    with pytest.raises(Left):
        built.batch(np.arange(8)).sum(params_P, leave)
    assert torch.equal(built.batch(np.array([0])).sum(params_P, clip.factors), alone)


def test_a_layer_that_is_unfrozen_after_wrapping() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    net[1].weight.data.mul_(1000)
    module, optimizer = ghost(net, batch=1)
    net[0].requires_grad_(True)
    criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum")
    worst = 0.0
    for label in (0, 1):
        criterion(module(10 * torch.ones(1, 4)), torch.tensor([label])).backward()
        worst = max(worst, norm(p.grad for p in net.parameters()))
        net.zero_grad()
        optimizer.zero_grad()
    assert worst > 100  # one record, clipped to 1
    # ours refuses: tests/backends/test_module_refusals.py::test_a_parameter_that_is_unfrozen_while_it_trains_ends_the_trial


def test_held_out_rows_are_never_drawn() -> None:
    numbers = TensorDataset(torch.arange(1000.0).view(-1, 1))
    loader = DPDataLoader.from_data_loader(DataLoader(numbers, batch_size=50, sampler=SubsetRandomSampler(range(800))))
    drawn = {int(value) for (batch,) in loader for value in batch.view(-1)}
    assert sum(value >= 800 for value in drawn) > 50  # rows that the sampler had left out

    spec = spec_of().data
    train, held = split_rows(spec, None)
    sampler, generator = PoissonSampler(rows=len(train), batch_size=len(train) // 3), np.random.default_rng(1)
    seen = {int(row) for _ in range(20) for row in train[sampler.draw(generator)]}
    assert len(seen) > 0.99 * len(train)
    assert not seen & set(held.tolist())


def test_weights_and_samplers_of_ones_own_are_refused_not_ignored() -> None:
    numbers, weights = TensorDataset(torch.arange(1000.0).view(-1, 1)), [0.0] * 500 + [1.0] * 500
    loader = DPDataLoader.from_data_loader(DataLoader(numbers, batch_size=50, sampler=WeightedRandomSampler(weights, 1000)))
    drawn = {int(value) for (batch,) in loader for value in batch.view(-1)}
    assert sum(value < 500 for value in drawn) > 100  # of weight 0

    for sampling in ("weighted", "shuffle", "stratified"):
        with pytest.raises(FieldError, match="every record having the same chance in every batch"):
            DpSgd(batch_size=10, steps=10, sampling=sampling)


@pytest.mark.parametrize("present", [1200, 1199])
def test_one_record_less_changes_neither_rate_nor_divisor_nor_length(present: int) -> None:
    """Opacus takes the rate from the number of batches of the table that is there."""
    rates = [
        DPDataLoader.from_data_loader(DataLoader(TensorDataset(torch.zeros(n, 1)), batch_size=50)).sample_rate for n in (1200, 1201)
    ]
    assert rates == [1 / 24, 1 / 25]

    full, _ = blobs(1200, 12, 3)
    if present < 1200:
        full.valid[0] = False
    built = problem(full, rows=1200)
    trainer = DpSgd(batch_size=50, steps=7)
    assert built.rows == 1200
    fitted = trainer.fit(built, FixedClip(clip_norm=1.0), FixedStep(learning_rate=0.1), 1.0, Streams(SECRET, 0))
    assert fitted.sealed["steps"] == 7
    assert trainer.event(built.rows, 1.0, FixedClip(clip_norm=1.0), FixedStep(learning_rate=0.1)).count == 7


def test_no_step_is_lost_to_a_quotient() -> None:
    assert sum(int(1 / (1 / n)) != n for n in range(1, 3000)) == 153
    clip, step = FixedClip(clip_norm=1.0), FixedStep(learning_rate=0.1)
    for n in range(2, 3000, 7):
        event = DpSgd(batch_size=1, steps=n).event(n, 1.0, clip, step)
        assert (event.count, event.event.sampling_probability) == (n, 1 / n)


def test_padding_of_an_embedding_and_of_a_convolution() -> None:
    table_of_tokens = nn.Embedding(5, 3, padding_idx=0)
    module = GradSampleModule(table_of_tokens, loss_reduction="sum")
    module(torch.tensor([[0, 1], [0, 0]])).sum().backward()
    assert table_of_tokens.weight.grad[0].abs().sum() == 0  # autograd
    assert table_of_tokens.weight.grad_sample[:, 0].abs().sum() == 9  # Opacus
    conv = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    module = GradSampleModule(conv, loss_reduction="sum")
    module(torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    assert (conv.weight.grad_sample.sum(dim=0) - conv.weight.grad).norm() > 0.1 * conv.weight.grad.norm()
    # ours: tests/backends/test_module_layers.py, rows padded-tokens, tokens-hooks and conv2d-circular


def test_seeds_of_trials_and_the_noise_that_they_cancel() -> None:
    """The same seed in two runs: the difference of the models is the record, without noise."""

    def stepped(scale: float) -> Tensor:
        torch.manual_seed(3)
        net = nn.Linear(4, 2)
        nn.init.zeros_(net.weight)
        module = GradSampleModule(net)
        sgd = torch.optim.SGD(net.parameters(), lr=1.0)
        optimizer = DPOptimizer(sgd, noise_multiplier=100.0, max_grad_norm=1.0, expected_batch_size=2)
        inputs = torch.ones(2, 4)
        inputs[1] *= scale
        nn.functional.cross_entropy(module(inputs), torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()
        return net.weight.detach().clone()

    assert (stepped(1.0) - stepped(0.0)).norm() < 1  # noise of 100 x sqrt(8) each
    draws = [torch.randn(4, generator=Streams(SECRET, trial).torch_generator(NOISE)) for trial in (0, 1, 2**32)]
    assert not any(torch.equal(draws[a], draws[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    generator = torch.Generator()
    assert torch.equal(
        torch.randn(3, generator=generator.manual_seed(1)), torch.randn(3, generator=generator.manual_seed(1 + 2**32))
    )  # torch's seeds have 32 bits


def test_noise_in_bfloat16_has_few_values() -> None:
    noise = torch.normal(0.0, 1.0, (200_000,), dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    assert len(noise.unique()) < 3_100
    # ours: tests/backends/test_module_refusals.py::test_sums_are_float32_or_better_whatever_the_precision
