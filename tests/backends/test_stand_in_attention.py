"""Attention of dense layers against torch's: the same outputs and gradients over all of its options, alone and in transformers."""

from __future__ import annotations

import copy
import itertools

import pytest
import stand_in_nets
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in_nets import length, pulled_back, same, stand_in
from torch import nn

from sweeper.backends.replaced import replaced
from sweeper.backends.stand_in_attention import DenseAttention

B, L, S, E, H = 3, 4, 5, 6, 2  # records, queries, keys, features, heads
yes_or_no = st.booleans()
TORCHS = ("enable_nested_tensor is True", "Support for mismatched", "The PyTorch API of nested")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in TORCHS]  # what the originals say


@pytest.fixture(autouse=True)
def _no_fast_path():
    """The originals as they train: in evaluation torch's fast path fills positions that are masked with zeros."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    options=st.fixed_dictionaries(
        {
            "batch_first": yes_or_no,
            "bias": yes_or_no,
            "add_bias_kv": yes_or_no,
            "add_zero_attn": yes_or_no,
            "kdim": st.sampled_from([None, 3]),
            "vdim": st.sampled_from([None, 4]),
            "dropout": st.sampled_from([0.0, 0.5, 1.0]),
            "num_heads": st.sampled_from([1, 2, 3]),
        }
    ),
    masked=st.sampled_from(["", "bool", "float", "bool of heads", "float of heads", "causal"]),
    padding=st.sampled_from(["", "bool", "float"]),
    need_weights=yes_or_no,
    average=yes_or_no,
    training=yes_or_no,
    hinted=yes_or_no,
)
def test_attention_is_that_of_torch(options, masked, padding, need_weights, average, training, hinted) -> None:
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(E, **options).train(training)
    nn.init.normal_(layer.out_proj.bias) if options["bias"] else None
    other = stand_in(layer)
    inputs = [torch.randn(B, n, width) for n, width in ((L, E), (S, options["kdim"] or E), (S, options["vdim"] or E))]
    inputs = [(value if options["batch_first"] else value.transpose(0, 1)).clone().requires_grad_() for value in inputs]
    draws, mask, kwargs = torch.rand(B * options["num_heads"], L, S) > 0.6, None, {}
    draws[:, :, 0] = False  # no query without a key
    if masked == "causal":
        mask = torch.full((L, S), -torch.inf).triu(1)
        kwargs["is_causal"] = hinted
    elif masked:
        mask = draws if masked.endswith("heads") else draws[0]
        mask = torch.zeros(mask.shape).masked_fill(mask, -torch.inf) + torch.randn(mask.shape) if "float" in masked else mask
    if padding:
        pads = torch.tensor([[False] * S, [False] * (S - 2) + [True] * 2, [False] * (S - 1) + [True]])
        kwargs["key_padding_mask"] = torch.zeros(B, S).masked_fill(pads, -torch.inf) if padding == "float" else pads
    kwargs |= {"attn_mask": mask, "need_weights": need_weights, "average_attn_weights": average}
    torch.manual_seed(2)
    expected = layer(*inputs, **kwargs)
    torch.manual_seed(2)
    found = other(*inputs, **kwargs)
    same(found, expected)
    same(pulled_back(found, other, inputs), pulled_back(expected, layer, inputs), 1e-4)
    assert length(other) == pytest.approx(length(layer), rel=1e-4)


def test_opacus_own_attention_is_not() -> None:
    """Why it is not used; and that the comparison above would tell."""
    from opacus.validators import ModuleValidator

    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(B, L, E)
    theirs = ModuleValidator.fix(layer)(x, x, x)[0]
    assert (theirs - layer(x, x, x)[0]).abs().max() > 0.01


def test_a_query_without_keys_gets_zeros_and_spoils_no_gradient() -> None:
    layer = nn.MultiheadAttention(E, H, batch_first=True, bias=False)
    x, nothing = torch.randn(B, L, E), torch.tensor([[True] * L, [False] * L, [False] * L])
    for dropout, weights in itertools.product((0.0, 0.5), (False, True)):
        other = stand_in(layer)
        other.drop.p = dropout
        found = other(x, x, x, key_padding_mask=nothing, need_weights=weights)[0]
        found.sum().backward()
        assert torch.equal(found[0], torch.zeros(L, E))
        assert found[1:].abs().max() > 0
        assert all(p.grad.isfinite().all() for p in other.parameters())
    same(stand_in(layer)(x, x, x, nothing, False)[0], layer(x, x, x, nothing, False)[0])


def test_what_attention_does_not_take_is_said() -> None:
    other, x = stand_in(nn.MultiheadAttention(E, H, batch_first=True)), torch.randn(B, L, E)
    with pytest.raises(ValueError, match=r"takes records \[B, L, E\]"):
        other(x[0], x[0], x[0])
    with pytest.raises(ValueError, match="is_causal as a hint"):
        other(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="masks of bool or of floats, not of int64"):
        other(x, x, x, attn_mask=torch.zeros(L, L, dtype=torch.int64))


TRANSFORMERS = list(itertools.product((False, True), (False, True), (False, True), (False, True)))


@pytest.mark.parametrize(("batch_first", "norm_first", "bias", "training"), TRANSFORMERS)
def test_transformers_are_those_of_torch(batch_first: bool, norm_first: bool, bias: bool, training: bool) -> None:
    torch.manual_seed(3)
    options = {"batch_first": batch_first, "norm_first": norm_first, "bias": bias, "dropout": 0.3, "dim_feedforward": 7}
    whole = nn.Transformer(E, H, 2, 2, **options).train(training)
    for part in whole.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # they draw in the order that memory has; attention draws all the same
    other = stand_in_nets.with_stand_ins(copy.deepcopy(whole))
    assert sum(type(part) is DenseAttention for part in other.modules()) == 6
    assert {part.training for part in other.modules()} == {training}
    source, target = torch.randn(B, S, E), torch.randn(B, L, E)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    pads = torch.tensor([[False] * S, [False] * (S - 2) + [True] * 2, [False] * S])
    square, flags = nn.Transformer.generate_square_subsequent_mask(L), torch.ones(L, L, dtype=torch.bool).triu(1)
    for kwargs in (
        {},
        {"src_key_padding_mask": pads, "memory_key_padding_mask": pads},
        {"tgt_mask": square},
        {"tgt_mask": square, "tgt_is_causal": True},
        {"tgt_mask": flags, "tgt_is_causal": True, "src_key_padding_mask": pads},
        {"src_mask": nn.Transformer.generate_square_subsequent_mask(S), "src_is_causal": True},
    ):
        torch.manual_seed(4)
        expected = whole(source, target, **kwargs)
        torch.manual_seed(4)
        same(other(source, target, **kwargs), expected)


@pytest.mark.parametrize("frozen_below", [False, True])
def test_no_fast_path_is_taken_past_a_stand_in(frozen_below: bool) -> None:
    """An encoder in evaluation without gradients: torch would hand its layers nested tensors, as it does to the original's."""
    torch.manual_seed(5)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 7, batch_first=True), 2, enable_nested_tensor=True).eval()
    other = copy.deepcopy(encoder)
    wrong = {name: layer for name, layer in other.named_modules() if isinstance(layer, nn.MultiheadAttention)}
    wrong = {name: layer for name, layer in wrong.items() if not frozen_below or "layers.1" in name}
    replaced(other, wrong)
    x, pads = torch.randn(B, S, E), torch.tensor([[False] * S, [False] * (S - 2) + [True] * 2, [False] * (S - 1) + [True]])
    torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad():
        found = other(x, src_key_padding_mask=pads)
        fast = encoder(x, src_key_padding_mask=pads)
        torch.backends.mha.set_fastpath_enabled(False)
        slow = encoder(x, src_key_padding_mask=pads)
    assert (fast[pads] == 0).all()  # it was taken in the original
    same(found[~pads], fast[~pads])
    if not frozen_below:
        same(found, slow)
