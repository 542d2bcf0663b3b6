"""torch.nn.MultiheadAttention of dense layers, each of which is called with the records first.

Shapes: B records, H heads, L queries, S keys, E features of a query, D features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from sweeper.backends.stand_in_linear import as_built, dense, part_of


class DenseAttention(nn.Module):
    """Computes what a torch.nn.MultiheadAttention computes and is called as one, but for records without a dimension for them.

    A query that may look at no key gets zeros. torch does so too, but for NaN where weights are wanted.
    """

    in_proj_weight = in_proj_bias = None  # torch.nn.TransformerEncoderLayer takes no fast path past a layer without them

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = layer.embed_dim, layer.num_heads, layer.head_dim
        self.kdim, self.vdim, self._qkv_same_embed_dim = layer.kdim, layer.vdim, layer._qkv_same_embed_dim
        self.batch_first, self.dropout, self.add_zero_attn = layer.batch_first, layer.dropout, layer.add_zero_attn
        weights, biases = _weights(layer), _biases(layer)
        self.q, self.k, self.v = (dense(weight, bias) for weight, bias in zip(weights, biases, strict=True))
        self.last_k = self.last_v = None  # what is added after all keys and values, as the weights of layers that are given a 1
        if layer.bias_k is not None:
            self.last_k, self.last_v = (dense(part_of(p, p.reshape(-1, 1))) for p in (layer.bias_k, layer.bias_v))
        self.drop = nn.Dropout(layer.dropout)
        self.out_proj = dense(layer.out_proj.weight, layer.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs, and weights [B, L, S] or [B, H, L, S] if they are wanted."""
        if query.dim() != 3:
            raise ValueError(f"attention takes records [B, L, E] or [L, B, E], not {list(query.shape)}")
        if is_causal and attn_mask is None:
            raise ValueError("attention takes is_causal as a hint on attn_mask only, and there is none")
        if not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        k_BSE, v_BSE = self._lengthened(self.k(key), self.v(value))
        parts = (self.q(query), k_BSE, v_BSE)
        q_BHLD, k_BHSD, v_BHSD = (part.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for part in parts)
        causal = is_causal and key_padding_mask is None and not need_weights  # then torch looks at the hint, not at the mask
        mask = None if causal else self._mask(query, key_padding_mask, attn_mask, k_BHSD.shape[2] - key.shape[1])
        weights = None
        if need_weights or (self.drop.training and self.drop.p > 0):
            weights = self.drop(_softmax(q_BHLD * self.head_dim**-0.5 @ k_BHSD.transpose(2, 3), mask, causal))
            found_BHLD = weights @ v_BHSD
        else:
            found_BHLD = nn.functional.scaled_dot_product_attention(q_BHLD, k_BHSD, v_BHSD, mask, is_causal=causal)
        found: Tensor = self.out_proj(found_BHLD.transpose(1, 2).flatten(2))
        found = found if self.batch_first else found.transpose(0, 1)
        if not need_weights or weights is None:
            return found, None
        return found, weights.mean(dim=1) if average_attn_weights else weights

    def _lengthened(self, k_BSE: Tensor, v_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, and after them those that all records share."""
        if self.last_k is not None and self.last_v is not None:
            ones = k_BSE.new_ones(len(k_BSE), 1, 1)
            k_BSE, v_BSE = torch.cat([k_BSE, self.last_k(ones)], dim=1), torch.cat([v_BSE, self.last_v(ones)], dim=1)
        if self.add_zero_attn:
            k_BSE, v_BSE = (nn.functional.pad(part, (0, 0, 0, 1)) for part in (k_BSE, v_BSE))
        return k_BSE, v_BSE

    def _mask(self, query: Tensor, padding: Tensor | None, mask: Tensor | None, more: int) -> Tensor | None:
        """What is added to scores [B, H, L, S]; keys that were added are seen by all queries."""
        found = None
        if mask is not None:
            found = _added(mask, query.dtype)
            found = found.unflatten(0, (len(query), self.num_heads)) if found.dim() == 3 else found
        if padding is not None:
            padding = _added(padding, query.dtype)[:, None, None, :]
            found = padding if found is None else found + padding
        return found if found is None else nn.functional.pad(found, (0, more))


def attention(layer: nn.Module) -> DenseAttention | None:
    """The stand-in of a torch.nn.MultiheadAttention; None if it is not as it was built."""
    assert isinstance(layer, nn.MultiheadAttention)
    names = {"in_proj_weight"} if layer._qkv_same_embed_dim else {"q_proj_weight", "k_proj_weight", "v_proj_weight"}
    names |= {name for name in ("in_proj_bias", "bias_k", "bias_v") if getattr(layer, name) is not None}
    out, own = layer.out_proj, {"weight"} | ({"bias"} if layer.out_proj.bias is not None else set())
    usual = type(out) in (NonDynamicallyQuantizableLinear, nn.Linear) and as_built(out, own)
    whole = (layer.bias_k is None) == (layer.bias_v is None)
    return DenseAttention(layer) if usual and whole and as_built(layer, names) else None


def split(layer: nn.Module) -> list[nn.Parameter]:
    """The parameters of a layer that its stand-in holds in parts, so that they would no longer be another layer's too."""
    names = ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v") if type(layer) is nn.MultiheadAttention else ()
    return [whole for name in names if (whole := getattr(layer, name)) is not None]


def _weights(layer: nn.MultiheadAttention) -> list[nn.Parameter]:
    """Of queries, keys and values."""
    if not layer._qkv_same_embed_dim:
        return [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    return [part_of(layer.in_proj_weight, part) for part in layer.in_proj_weight.chunk(3)]


def _biases(layer: nn.MultiheadAttention) -> list[nn.Parameter | None]:
    if layer.in_proj_bias is None:
        return [None, None, None]
    return [part_of(layer.in_proj_bias, part) for part in layer.in_proj_bias.chunk(3)]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to scores."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
    if not mask.is_floating_point():
        raise ValueError(f"attention takes masks of bool or of floats, not of {str(mask.dtype).removeprefix('torch.')}")
    return mask


def _softmax(scores_BHLS: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Weights [B, H, L, S], zeros for a query that may look at no key, where softmax would give NaN and NaN as derivatives."""
    if causal:
        mask = _added(torch.ones(scores_BHLS.shape[2:], dtype=torch.bool, device=scores_BHLS.device).triu(1), scores_BHLS.dtype)
    if mask is None:
        return scores_BHLS.softmax(dim=3)
    scores_BHLS = scores_BHLS + mask
    none = (scores_BHLS == -torch.inf).all(dim=3, keepdim=True)
    return scores_BHLS.masked_fill(none, 0.0).softmax(dim=3).masked_fill(none, 0.0)
