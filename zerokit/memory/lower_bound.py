"""A bound from below on what a strategy needs: cheap enough to ask of every candidate.

What stays allocated between steps, plus the activations' own peak; gradients, buckets and gathered
weights can only add to it. A search rejects by it what cannot fit, and replays only the rest.
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.domain.activations import ActivationTrace, evaluate
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, Variant
from zerokit.domain.strategy import Strategy
from zerokit.memory import card
from zerokit.memory.engines import engine_of
from zerokit.memory.estimate import usable_trace
from zerokit.memory.inference import estimate_serving
from zerokit.memory.rank_model import rank_model


def least_vram_bytes(profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster) -> int:
    """No smaller card can do, in nvidia-smi's total.

    Raises:
        KeyError: the profile does not cover the strategy (ask ``estimate.covers`` first).
    """
    if job.inference:
        return estimate_serving(profile, job, strategy, cluster).min_vram_bytes
    tokens = max(1, job.seq_len // strategy.sequence_parallel)
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        raise KeyError(Variant.of(job, strategy).key)
    variant, trace, adapters = usable
    model = rank_model(profile, variant, trace, adapters, job.loss, cluster.gpu.cublas_workspace_bytes)
    ranks = strategy.zero_ranks
    states, gradients = engine_of(strategy.settings).least_bytes(model, strategy.settings, ranks)
    activations = _activation_peak(
        trace, strategy.settings.micro_batch, tokens, with_head=job.loss == "standard"
    )
    return card.min_vram_bytes(cluster.gpu, strategy, states + max(activations, gradients))


@lru_cache(maxsize=512)
def _activation_peak(trace: ActivationTrace, micro_batch: int, tokens: int, *, with_head: bool) -> int:
    """Peak of the forward pass. Runs of like layers rise or fall evenly: their ends tell.

    ``with_head``: else without what comes after the layers, which another loss does otherwise.
    """
    level = peak = 0.0
    by_key: dict[int, tuple[float, float]] = {}
    for run in trace.forward if with_head or trace.forward[-1].stack else trace.forward[:-1]:
        if run.segment not in by_key:
            marks = trace.segments[run.segment]
            highest = max(evaluate(p, micro_batch, tokens) for p in {p for mark in marks for p in mark.peaks})
            by_key[run.segment] = (highest, evaluate(marks[-1].after, micro_batch, tokens))
        highest, change = by_key[run.segment]
        level += run.jump * change
        peak = max(peak, level + highest, level + (run.count - 1) * change + highest)
        level += run.count * change
    return int(peak)


def bytes_of_order(settings: DeepSpeedSettings, trainable: int) -> int:
    """The most that another order of work can save.

    Below stage 3 that is at most all gradients; at stage 3 the gathered weights that are kept for their next
    use and those fetched ahead, each at most ``max_live_parameters``.
    """
    elements = 2 * settings.zero.max_live_parameters if settings.divides_weights else trainable
    return elements * settings.parameter_bytes
