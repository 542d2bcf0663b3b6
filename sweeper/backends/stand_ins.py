"""What stands in for a layer that mixes the records of a batch, or whose gradients cannot be made record by record.

Attention, recurrent layers and their cells are built anew of dense layers: the same function, which tests compare over all options.
Opacus' own stand-ins are not used: its attention with batch_first computes another function, its recurrent layers with dropout
drop the states that are handed on. No stand-in computes what batch norm does; GroupNorm normalises each record by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sweeper.backends.stand_in_attention import attention
from sweeper.backends.stand_in_linear import as_built
from sweeper.backends.stand_in_recurrent import cell, recurrent

_MOST = 32  # groups, as in Group Normalization (Wu & He 2018)
_CHANNELS = 4  # of a group at least: it loses two numbers, its mean and its size, and a channel may be a single number


def private_stand_in(layer: nn.Module) -> nn.Module | None:
    """A layer in the place of this one, with its parameters, their values, types and flags, and its mode; None: there is none.

    A subclass, a layer with hooks, or one whose parameters were pruned or are made of others has none.
    """
    build = _STAND_INS.get(type(layer))
    found = None if build is None else build(layer)
    return None if found is None else found.train(layer.training)


def what_for(layer: nn.Module) -> str:
    """What the stand-in of a layer is called; nothing if there is none."""
    found = private_stand_in(layer)
    if isinstance(found, nn.GroupNorm):
        return batch_norm_hint(layer)
    return "" if found is None else f"{type(found).__name__}, the same of torch.nn.Linear"


def batch_norm_hint(layer: nn.Module) -> str:
    """The very norm that stands in for a batch norm; nothing if there is none."""
    norm = private_stand_in(layer)
    if not isinstance(norm, nn.GroupNorm):
        return ""
    eps = f", eps={norm.eps}" if norm.eps != 1e-5 else ""
    affine = "" if norm.affine else ", affine=False"
    return f"torch.nn.GroupNorm({norm.num_groups}, {norm.num_channels}{eps}{affine})"


def _group_norm(layer: nn.Module) -> nn.GroupNorm | None:
    """None where a record may be a row of one or two channels: of them nothing but signs would be left."""
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    names = [name for name in ("weight", "bias") if getattr(layer, name) is not None]
    rows, channels = type(layer) not in (nn.BatchNorm2d, nn.BatchNorm3d), layer.num_features
    if not as_built(layer, names) or (rows and channels < 3):
        return None
    most = min(_MOST, max(channels // _CHANNELS, 1))
    groups = max(count for count in range(1, most + 1) if channels % count == 0)
    found = nn.GroupNorm(groups, channels, layer.eps, affine=False)
    for name in names:
        setattr(found, name, getattr(layer, name))
    found.affine = layer.affine
    return found


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_STAND_INS: dict[type[nn.Module], Callable[[nn.Module], nn.Module | None]] = {
    nn.MultiheadAttention: attention,
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), recurrent),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), cell),
    **dict.fromkeys(_NORMS, _group_norm),
}
