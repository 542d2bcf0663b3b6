"""Records that nobody gave, for looking at a user's module before data is opened.

Shapes: B records, d features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_SCALES = (2.0, -1.0, -3.0, 100.0, 1e-3, 1e6, 1e12, 3e18)  # of one record's features
_SPECIAL = (1, 2, 3, 4, 100, 101, 102, 103)  # tokens that mean something to common tokenisers


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """features d, classes; tokens: the numbers below this are whole ones that the module knows, or None: features are any."""

    features: int
    classes: int
    tokens: int | None
    special: tuple[int, ...] = ()  # tokens that the module's own code may know

    def batch(self, size: int, seed: int = 0, *, wide: bool = False) -> tuple[Tensor, Tensor]:
        """Features [B, d] and labels [B]. Tokens have zeros at their ends, of any length; wide: others of both signs, one large."""
        draws = torch.Generator().manual_seed(seed)
        shape, ends = (size, self.features), torch.randint(1, self.features + 1, (size, 1), generator=draws)
        if self.tokens is not None:
            features_Bd = torch.randint(0, self.tokens, shape, generator=draws).float()
            features_Bd[1::2] *= torch.arange(self.features) < ends[1::2]
        else:
            features_Bd = torch.randn(shape, generator=draws) if wide else torch.rand(shape, generator=draws)
            features_Bd[1:2] *= 100.0 if wide else 1.0
        return features_Bd, torch.randint(0, self.classes, (size,), generator=draws)

    def crowd(self, size: int) -> tuple[Tensor, Tensor]:
        """A batch of records that are almost the same, of one label."""
        features_Bd, labels_B = self.batch(size, seed=1)
        alike_Bd = features_Bd[:1].repeat(size, 1)
        if self.tokens is None:
            alike_Bd += 0.05 * features_Bd
        else:
            alike_Bd[:, 0] = features_Bd[:, 0].clamp(min=1)
            alike_Bd[:, (self.features + 1) // 2 :] = 0.0  # none is as long as a record can be
        return alike_Bd, torch.zeros_like(labels_B)

    def outliers(self) -> Iterator[tuple[str, Tensor]]:
        """(what it is, a record [d])."""
        rise_d = torch.linspace(0.5, 1.0, self.features)
        yield "of zeros", torch.zeros(self.features)
        if self.tokens is None:
            for scale in _SCALES:
                yield f"{scale:g} times as large", scale * rise_d
        else:
            for token in sorted({1, self.tokens // 2, self.tokens - 1} & set(range(self.tokens))):
                yield f"of {token}s", torch.full((self.features,), float(token))
            known = [token for token in dict.fromkeys((*self.special, *_SPECIAL)) if token < self.tokens] or [0]
            for start in range(0, len(known), self.features):
                some = known[start : start + self.features]
                yield "of special tokens", torch.tensor(some * (self.features // len(some) + 1)).float()[: self.features]
            yield "of tokens beyond its tables", torch.full((self.features,), float(self.tokens))
            yield "of negative tokens", torch.full((self.features,), -1.0)
            yield "of one token", torch.nn.functional.pad(torch.tensor([float(self.tokens - 1)]), (0, self.features - 1))
        yield "another one", self.batch(1, seed=2)[0][0]
