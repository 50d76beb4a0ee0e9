"""How fast a host issues work, relative to the reference host of :mod:`zerokit.timing.host_prices`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from zerokit.values import frozen_dataclass

MODEL = "model"
"""The work that tells of a model in training; the others are operators in loops of their own."""

REFERENCE_SECONDS: Mapping[str, float] = {
    "add": 9.338e-6,
    "add_in_place": 9.383e-6,
    "add_with_gradient": 11.289e-6,
    "view": 2.560e-6,
    "linear": 29.800e-6,
    "linear_backward": 74.378e-6,
    MODEL: 51.899e-3,
}
"""Seconds to issue each on the reference host (``h200-operators.jsonl``, kind ``host``): ``x + x``;
``x.mul_(1.0)``; ``x + x`` under autograd; ``x.view(-1)``; an ``nn.Linear`` under autograd; backward of one
``F.linear``, of 200 in a row, all 64 by 64, bf16; forward and backward of a Llama of 16 layers of width 256
with one row of 64 tokens, in bf16 (Transformers 5.17)."""

FASTEST, SLOWEST = 0.48, 1.64
"""Hosts of H200s that were probed. Nine tenths of a run's rounds were above 0.48 on the fastest
(``zero-3-second.jsonl``, its probe taken as below). The slowest probe of some seconds took 1.64, between two
of 0.72 and 1.30 on the same host; the slowest of whole runs 1.47 (``zero-3-waiting.jsonl``)."""

USUAL = 0.76
"""Of a host that nobody has probed: the middle of 13 series of runs with a probe beside them, on hosts of
H200s, each of which counts once: 0.60 to 1.08 (``bare-loops-2gpu.jsonl``, ``zero-3-*.jsonl`` and
``script-times*.jsonl`` of ``benchmarks/measure/data``). Probes between steps of ZeRO-3 ran through the linear
that ``zero.Init`` leaves behind, and count 1.27 times less."""


@frozen_dataclass
class HostSpeed:
    """Of one machine.

    Attributes:
        factor: its seconds over the reference host's; below 1 is faster.
        source: where the factor comes from, for a reader.
        low, high: of nine tenths of the probe's rounds; None: as ``factor``.
    """

    factor: float
    source: str
    low: float | None = None
    high: float | None = None


_ROUNDS_BELOW_HIGH = 0.95
"""The share of rounds that are faster than ``HostSpeed.high``."""


_USUAL_SPREAD = 1.3
"""``HostSpeed.high`` over ``factor``: the middle of 64 runs with a probe between their steps
(``script-times*.jsonl`` of ``benchmarks/measure/data``)."""


def of_slowest_usually(
    factor: float, ranks: int, interval_seconds: float | None = None, high: float | None = None
) -> float:
    """:func:`of_slowest` on a host of which little more than its factor is known."""
    host = HostSpeed(factor=factor, source="", high=high or _USUAL_SPREAD * factor)
    return of_slowest(host, ranks, interval_seconds)


_SHORT_SPREAD = 1.83
"""The spread of one layer's milliseconds over that of whole rounds of the probe, which are 32 of them in two
threads: the mean of 14 ranks on two H200s (``zero-3-waiting.jsonl``), 0.23 and 0.13 of their means."""
_WIDEST_SPREAD = 1.45
"""``HostSpeed.high`` over ``factor`` of ranks in training at most: 1.10 to 1.44 by 15 probes on all ranks
without pause (``zero-3-waiting.jsonl``). One that paused saw 1.86 on a host of four H100s."""
_SETTLING_SECONDS = 0.02
"""How long a core stays slow or fast: there the layers' times 16 ms apart are correlated by 0.35."""
_DRAWS = 201


def of_slowest(host: HostSpeed, ranks: int, interval_seconds: float | None = None) -> float:
    """The factor of a step in which every rank waits for the slowest one.

    A rank's step is one draw from the probe's rounds; the slowest of N has as its middle their quantile
    0.5^(1/N). Between the middle and the upper end of the rounds that the probe saw it is taken from a
    log-normal distribution: disturbed rounds take up to three times the middle, undisturbed ones hardly less
    than it.

    Ranks that wait for each other within a step draw anew in each interval, and the step is the sum of the
    slowest ones: the mean of the largest of N. Short intervals spread more than rounds. With spread s, and
    correlation exp(-t/tau) between instants t apart, the mean over an interval T has the variance
    s^2 (2 tau/T) (1 - (1 - exp(-T/tau)) tau/T).

    Args:
        interval_seconds: of the host, between two such waits; None: they wait once a step.
    """
    if ranks < 2 or host.high is None:
        return host.factor
    most, draws = _slowest_draws(ranks)
    spread = math.log(host.high / host.factor) / most
    short = _SHORT_SPREAD * math.sqrt(_left_in_mean(interval_seconds)) if interval_seconds else 0.0
    if short <= 1:
        return host.factor * math.exp(spread * draws[_DRAWS // 2])
    spread = min(spread, math.log(_WIDEST_SPREAD) / most)
    return host.factor * sum(math.exp(short * spread * at) for at in draws) / _DRAWS


@functools.lru_cache(maxsize=64)
def _slowest_draws(ranks: int) -> tuple[float, Sequence[float]]:
    """Standard deviations of the probe's upper end, and of the largest of so many ranks' draws, rising."""
    from statistics import NormalDist  # few plans ask for it

    normal = NormalDist()
    most = normal.inv_cdf(_ROUNDS_BELOW_HIGH)
    shares = ((draw + 0.5) / _DRAWS for draw in range(_DRAWS))
    return most, [min(most, normal.inv_cdf(math.pow(share, 1 / ranks))) for share in shares]


def _left_in_mean(interval_seconds: float) -> float:
    """Share of the variance that is left in the mean over an interval."""
    length = interval_seconds / _SETTLING_SECONDS
    return 2 / length * (1 + math.expm1(-length) / length) if length > 0.01 else 1.0


_TELLING_SLOPE = 0.4
"""A step whose time moves by less than this share of the host's tells too little of the host."""
STEP_ERROR = 0.08
"""The mean error of predicted steps on known hosts (docs/rehearsal.md): how unsure a factor from one is."""


def of_step(by_host_factor: Sequence[Sequence[float]], step_seconds: float, source: str) -> HostSpeed | None:
    """The host on which a predicted step takes as long as it took; None where the host does not set its pace,
    or no host between the predicted ones would explain it. ``by_host_factor``: pairs of a factor and the
    seconds predicted for it, factors rising."""
    factor = _factor_at(by_host_factor, step_seconds)
    if factor is None:
        return None
    low = _factor_at(by_host_factor, step_seconds / (1 + STEP_ERROR)) or by_host_factor[0][0]
    high = _factor_at(by_host_factor, step_seconds * (1 + STEP_ERROR)) or by_host_factor[-1][0]
    return HostSpeed(factor=factor, source=source, low=low, high=high)


def _factor_at(pairs: Sequence[Sequence[float]], seconds: float) -> float | None:
    for (lower, before), (upper, after) in itertools.pairwise(pairs):
        if before <= seconds <= after and after > before:
            if math.log(after / before) < _TELLING_SLOPE * math.log(upper / lower):
                return None
            return lower + (upper - lower) * (seconds - before) / (after - before)
    return None


def factor_of(probe: Mapping[str, float]) -> float:
    """A probe's seconds over the reference host's: of the model, or the geometric mean of single operators
    where it was not timed. Raises ValueError: a probe without any of :data:`REFERENCE_SECONDS`, or with
    seconds that are not positive."""
    names = [MODEL] if MODEL in probe else list(REFERENCE_SECONDS)
    pairs = [(probe[name], REFERENCE_SECONDS[name]) for name in names if name in probe]
    if not pairs or any(not (math.isfinite(took) and took > 0) for took, _ in pairs):
        raise ValueError("a probe of the host needs positive seconds of the operators that are known")
    return math.exp(sum(math.log(took / seconds) for took, seconds in pairs) / len(pairs))


def speed_of(rounds: Mapping[str, Sequence[float]]) -> HostSpeed:
    """The middle of a probe's rounds, and between what nine tenths of them lie. Raises ValueError: as
    :func:`factor_of`; or there is no round."""
    import statistics  # a probe's alone: a plan starts without it

    count = min((len(samples) for samples in rounds.values()), default=0)
    factors = sorted(
        factor_of({name: samples[at] for name, samples in rounds.items()}) for at in range(count)
    )
    if not factors:
        raise ValueError("a probe of the host needs at least one round")
    edge = count // 20
    return HostSpeed(
        factor=statistics.median(factors), source="probe", low=factors[edge], high=factors[-1 - edge]
    )
