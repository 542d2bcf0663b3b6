"""What is promised about a release."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy under a named neighbour relation, for a named unit.

    For all neighbouring tables D, D' and all sets S of outputs: P[M(D) in S] <= e^epsilon P[M(D') in S] + delta.
    """

    epsilon: float  # nats; infinite when nothing is protected
    delta: float
    relation: str = "zero-out"  # one record replaced by a null record; costs equal add/remove-one
    unit: str = "record"
    seeded: bool = False  # True: somebody chose the secret, so that whoever knows it sees through the noise

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise FieldError("epsilon", self.epsilon, "must be at least 0")
        checks.real(0.0, 1.0, delta=self.delta)

    def plus(self, other: Guarantee) -> Guarantee:
        """Basic composition: epsilons and deltas add (Dwork et al. 2006), also when `other` was chosen after seeing this one.

        Raises:
          FieldError: the two speak of different relations or units.
        """
        if (self.relation, self.unit) != (other.relation, other.unit):
            raise FieldError(
                "relation",
                f"{self.relation}/{self.unit}",
                f"cannot be added to {other.relation}/{other.unit}: a bill speaks of one relation and one unit",
            )
        return Guarantee(
            epsilon=self.epsilon + other.epsilon,
            delta=min(1.0, self.delta + other.delta),
            relation=self.relation,
            unit=self.unit,
            seeded=self.seeded or other.seeded,
        )

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        return data
