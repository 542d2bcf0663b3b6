"""Products of float32 matrices on a CPU, by whichever of torch's two libraries is faster there.

torch's own product calls MKL, which on the one CPU measured (AMD Zen 5) does 110 GFLOP/s in float32; oneDNN, which torch ships too,
does 230. Of 784 x 256 weights and 128 records: 475 us and 233 us. On other CPUs the two have not been compared. Where a product is
small, oneDNN's longer way to it costs more than it saves.
oneDNN compiles a program for every shape that it meets, which takes 0.5 ms. Batches are therefore filled up with null records to
whole multiples of FILL, so that the shapes are few whatever sizes are drawn.
Shapes: M x K times K x N.
"""

from __future__ import annotations

import torch
from torch import Tensor

FILL = 16
_SMALL = 2**20  # multiplications, below which MKL is called
_ONEDNN = torch.backends.mkldnn.is_available()


def product(left_MK: Tensor, right_KN: Tensor, biases_N: Tensor | None = None, *, few: bool = True) -> Tensor:
    """A new [M, N]: left right + biases. Either may be transposed. Shapes alone decide how it is made.

    few: whether shapes are few, so that it is worth while to compile for this one.
    """
    if _ONEDNN and few and left_MK.shape[0] * left_MK.shape[1] * right_KN.shape[1] >= _SMALL:
        return torch.ops.mkldnn._linear_pointwise(left_MK, right_KN.t(), biases_N, "none", [], "")  # type: ignore[no-any-return]
    return left_MK @ right_KN if biases_N is None else torch.addmm(biases_N, left_MK, right_KN)


def filled(count: int, fill: int, most: int) -> int:
    """The next multiple of `fill`; at most `most`, which `count` does not exceed."""
    return min(most, -(-count // fill) * fill)


def exact_products() -> None:
    """Products of float32 numbers in float32. In shorter ones a sum would be off by more than a policy's margin (clip/base.py)."""
    if torch.get_float32_matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
