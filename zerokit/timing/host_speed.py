"""How fast a host issues work, relative to the reference host of :mod:`zerokit.timing.host_prices`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

REFERENCE_SECONDS: Mapping[str, float] = {
    "add": 9.338e-6,
    "add_in_place": 9.383e-6,
    "add_with_gradient": 11.289e-6,
    "view": 2.560e-6,
    "linear": 29.800e-6,
    "linear_backward": 74.378e-6,
}
"""Seconds to issue each on the reference host (``h200-operators.jsonl``, kind ``host``): ``x + x``;
``x.mul_(1.0)``; ``x + x`` under autograd; ``x.view(-1)``; an ``nn.Linear`` under autograd; backward of one
``F.linear``, of 200 in a row. All 64 by 64, bf16."""

FASTEST, SLOWEST = 0.54, 1.19
"""Hosts of H200s that were measured. The one of ``kernels.jsonl`` takes 0.54 of the reference host's seconds
(the fit of ``HostPrices.in_a_model``; single operators say 1/1.6); five others took 1.2 to 1.9 times its
seconds, which at 1/1.6 is up to 1.19 of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeed:
    """Of one machine.

    Attributes:
        factor: its seconds over the reference host's; below 1 is faster.
        source: where the factor comes from, for a reader.
    """

    factor: float
    source: str


def factor_of(probe: Mapping[str, float]) -> float:
    """The geometric mean of a probe's seconds over the reference host's.

    Raises:
        ValueError: a probe without any of :data:`REFERENCE_SECONDS`, or with seconds that are not positive.
    """
    known = [(probe[name], seconds) for name, seconds in REFERENCE_SECONDS.items() if name in probe]
    if not known or any(not (math.isfinite(took) and took > 0) for took, _ in known):
        raise ValueError("a probe of the host needs positive seconds of the operators that are known")
    return math.exp(sum(math.log(took / seconds) for took, seconds in known) / len(known))
