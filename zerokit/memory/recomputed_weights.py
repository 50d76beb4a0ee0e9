"""Frozen weights that ZeRO-3 gathers to compute a layer again, and what releases them.

DeepSpeed leaves them to the module whose backward began last (from 0.19.3 on,
runtime/zero/partitioned_param_coordinator.py:393). Within a reentrant checkpoint of a layer's call, as of
Transformers before 5.23, no hook of the layer has begun one: they are left to the whole model, and stay until
its backward ends. Seen with 5.17 on two H200s (``qwen3-4b.lora.documented`` of
benchmarks/measure/data/race.jsonl) and on CPU ranks.
"""

from __future__ import annotations

from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.notes import Note


def stay(job: Job, strategy: Strategy) -> bool:
    """Whether all of them are there at the end of backward."""
    settings = strategy.settings
    is_reentrant = strategy.checkpointing == "full" and job.is_reentrant(settings)
    has_frozen = job.method != "full" and not job.inference
    divides = settings.divides_weights and strategy.zero_ranks > 1
    return job.keeps_recomputed and is_reentrant and has_frozen and divides


def notes(job: Job, strategy: Strategy) -> tuple[Note, ...]:
    """What to say where they are."""
    if not stay(job, strategy):
        return ()
    text = (
        "reentrant checkpoints of Transformers before 5.23, under DeepSpeed 0.19.3 or newer: ZeRO-3 keeps "
        "every frozen weight that it gathers until backward ends, and that is counted; ⟨reentrant⟩ off, or "
        "Transformers 5.23, releases them layer by layer"
    )
    return (Note("recomputed-weights-stay", text),)
