"""Which layers have a stand-in and which, what it keeps of them, and what replacing them leaves."""

from __future__ import annotations

import copy

import pytest
import stand_in_nets
import torch
from stand_in_nets import same, stand_in
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from sweeper.backends.replaced import replaced
from sweeper.backends.stand_in_attention import DenseAttention
from sweeper.backends.stand_in_recurrent import DenseRecurrent
from sweeper.backends.stand_ins import batch_norm_hint, private_stand_in, what_for

B, L, E, H = 3, 4, 6, 2  # records, steps, features, heads


def odd(kind: str) -> nn.Module:
    """Layers that are not as they were built."""

    class Mine(nn.GRUCell):
        pass

    attention, lstm, pruned, hooked = nn.MultiheadAttention(E, H), nn.LSTM(3, 5), nn.GRU(3, 5), nn.BatchNorm2d(8)
    prune.l1_unstructured(pruned, "weight_hh_l0", 0.5)
    hooked.register_forward_hook(lambda *_: None)
    weight_norm(lstm, "weight_hh_l0")
    attention.out_proj = nn.Sequential(attention.out_proj)
    attention.out_proj.weight, attention.out_proj.bias = attention.out_proj[0].weight, attention.out_proj[0].bias
    one, two = nn.BatchNorm1d(1), nn.BatchNorm1d(2)
    return {
        "a subclass": Mine(3, 5),
        "pruned": pruned,
        "hooked": hooked,
        "parametrised": lstm,
        "out_proj": attention,
        "one": one,
        "two": two,
        "instance": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        "dense": nn.Linear(3, 5),
    }[kind]


ODD = ["a subclass", "pruned", "hooked", "parametrised", "out_proj", "one", "two", "instance", "dense"]


@pytest.mark.parametrize("kind", ODD)
def test_what_is_not_as_torch_built_it_has_no_stand_in_and_stays(kind: str) -> None:
    layer = odd(kind)
    before = type(layer), list(layer.parameters())
    assert private_stand_in(layer) is None
    replaced(nn.Sequential(layer), {"0": layer})
    assert type(layer) is before[0]
    assert all(one is other for one, other in zip(layer.parameters(), before[1], strict=True))


GROUPS = {  # channels -> groups: as many as divide them, none with fewer than 4
    nn.BatchNorm1d: {3: 1, 4: 1, 6: 1, 7: 1, 8: 2, 12: 3, 16: 4, 100: 25, 127: 1, 128: 32, 1024: 32},
    nn.BatchNorm2d: {1: 1, 2: 1, 3: 1, 4: 1, 8: 2, 16: 4, 64: 16, 100: 25, 256: 32},
    nn.BatchNorm3d: {5: 1, 24: 6},
    nn.SyncBatchNorm: {5: 1, 16: 4},
}


@pytest.mark.parametrize(("kind", "channels", "groups"), [(k, c, g) for k, some in GROUPS.items() for c, g in some.items()])
def test_batch_norm_gets_groups_that_leave_something(kind, channels: int, groups: int) -> None:
    layer = kind(channels, eps=1e-3)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    layer.bias.requires_grad_(False)
    norm = private_stand_in(layer)
    assert type(norm) is nn.GroupNorm
    assert (norm.num_groups, norm.num_channels, norm.eps) == (groups, channels, 1e-3)
    assert norm.weight is layer.weight
    assert norm.bias is layer.bias
    assert batch_norm_hint(layer) == what_for(layer) == f"torch.nn.GroupNorm({groups}, {channels}, eps=0.001)"
    bare = kind(channels, affine=False, track_running_stats=False)
    assert batch_norm_hint(bare) == f"torch.nn.GroupNorm({groups}, {channels}, affine=False)"
    x = torch.randn(B, channels, *[3] * (3 if kind is nn.BatchNorm3d else 2 if kind is nn.BatchNorm2d else 0))
    parts = x.reshape(B, groups, -1)
    flat = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    same(private_stand_in(bare)(x), flat.view(x.shape))


def test_hints_name_the_stand_in() -> None:
    assert batch_norm_hint(nn.BatchNorm2d(16)) == "torch.nn.GroupNorm(4, 16)"
    assert what_for(nn.MultiheadAttention(E, H)) == "DenseAttention, the same of torch.nn.Linear"
    assert what_for(nn.LSTM(3, 5)).startswith("DenseRecurrent")
    assert what_for(nn.GRUCell(3, 5)).startswith("DenseCell")
    assert [what_for(odd(kind)) for kind in ("one", "hooked", "dense", "a subclass")] == [""] * 4


def test_values_types_flags_and_modes_are_kept() -> None:
    layer = nn.MultiheadAttention(E, H, add_bias_kv=True).double().eval()
    layer.in_proj_weight.requires_grad_(False), layer.bias_v.requires_grad_(False), layer.out_proj.bias.requires_grad_(False)
    other = stand_in(layer)
    flags = {name: p.requires_grad for name, p in other.named_parameters()}
    trained = {"q.bias", "k.bias", "v.bias", "last_k.weight", "out_proj.weight"}
    assert {name for name, flag in flags.items() if flag} == trained
    assert {p.dtype for p in other.parameters()} == {torch.float64}
    assert torch.equal(torch.cat([other.q.weight, other.k.weight, other.v.weight]), layer.in_proj_weight)
    assert torch.equal(torch.cat([other.q.bias, other.k.bias, other.v.bias]), layer.in_proj_bias)
    assert not any(part.training for part in other.modules())
    apart = nn.MultiheadAttention(E, H, kdim=3, vdim=2)
    apart.k_proj_weight.requires_grad_(False)
    assert [p.requires_grad for p in (stand_in(apart).q.weight, stand_in(apart).k.weight)] == [True, False]
    lstm = nn.LSTM(3, 5, 2, bidirectional=True)
    lstm.weight_hh_l0_reverse.requires_grad_(False), lstm.bias_ih_l1.requires_grad_(False)
    frozen = {name for name, p in stand_in(lstm).named_parameters() if not p.requires_grad}
    assert frozen == {"steps.l0_reverse.hh.weight", "steps.l1.ih.bias"}
    assert sum(p.numel() for p in stand_in(lstm).parameters()) == sum(p.numel() for p in lstm.parameters())


def test_no_random_number_is_drawn() -> None:
    module = nn.Sequential(nn.LSTM(3, 5), nn.MultiheadAttention(E, H), nn.BatchNorm2d(8), nn.GRUCell(3, 5))
    before = torch.get_rng_state()
    stand_in_nets.with_stand_ins(module)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layer_is_replaced_wherever_it_hangs() -> None:
    norm = nn.BatchNorm2d(8)
    module = nn.Sequential(nn.Sequential(norm), nn.ModuleDict({"again": norm}), nn.BatchNorm2d(8))
    module.kept = [norm]
    left = module[2]
    assert replaced(module, {"0.0": norm}) is module
    assert type(module[0][0]) is nn.GroupNorm
    assert module[0][0] is module[1]["again"] is module.kept[0]
    assert module[2] is left
    assert type(left) is nn.BatchNorm2d
    root = nn.GRU(3, 5, batch_first=True)
    expected = root(torch.ones(B, L, 3))
    assert replaced(root, {"": root}) is root
    assert type(root) is DenseRecurrent
    same(root(torch.ones(B, L, 3)), expected)
    same(copy.deepcopy(root)(torch.ones(B, L, 3)), expected)


def test_ties_are_kept_or_the_layer_stays() -> None:
    one, two, dense = nn.LSTM(3, 5), nn.LSTM(3, 5), nn.Linear(3, 20, bias=False)
    two.weight_ih_l0 = dense.weight = one.weight_ih_l0
    module = stand_in_nets.with_stand_ins(nn.ModuleList([one, two, dense]))
    assert module[0].steps["l0"].ih.weight is module[1].steps["l0"].ih.weight is dense.weight
    first, second = nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H)
    second.in_proj_weight = first.in_proj_weight
    stand_in_nets.with_stand_ins(nn.ModuleList([first, second]))
    assert type(first) is type(second) is nn.MultiheadAttention
    out = nn.MultiheadAttention(E, H)
    out.out_proj.weight = second.out_proj.weight
    stand_in_nets.with_stand_ins(nn.ModuleList([out, second]))
    assert type(out) is type(second) is DenseAttention
    assert out.out_proj.weight is second.out_proj.weight


def accuracy(net: nn.Module) -> float:
    draws = torch.Generator().manual_seed(8)
    labels = torch.arange(400) % 2
    rows = torch.randn(400, 6, generator=draws) + 2.0 * (2.0 * labels - 1).unsqueeze(1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(rows), labels).backward()
        optimizer.step()
    return float((net(rows).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("width", [3, 8, 16, 32])
def test_a_network_for_rows_learns_after_its_batch_norms_are_replaced(width: int) -> None:
    from opacus.validators import ModuleValidator

    torch.manual_seed(9)
    layers = (nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
    net = nn.Sequential(*layers, nn.Linear(width, 2))
    theirs = ModuleValidator.fix(copy.deepcopy(net))
    assert accuracy(stand_in_nets.with_stand_ins(net)) > 0.95
    if width > 3:  # a power of two, of which opacus makes groups of one channel
        assert theirs(torch.randn(50, 6)).std(dim=0).max() < 1e-5
        assert accuracy(theirs) <= 0.55
