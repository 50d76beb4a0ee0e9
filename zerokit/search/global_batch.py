"""The global batch: which one where none is given, and which the fixed sizes and degrees leave."""

from __future__ import annotations

import math

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.errors import InputError
from zerokit.search import explain as advice
from zerokit.search.request import Request
from zerokit.search.search import BATCH_REASON, SearchResult
from zerokit.search.space import Pins
from zerokit.units import counted

_TARGET_TOKENS = 262_144
"""Of a step, where no global batch is given: a convention, which the answer states."""
_MOST_SEQUENCES_PER_GPU = 32
_HALFWAY = math.sqrt(2)
"""A power of two is the nearest to a number, by ratio, up to this times itself."""


def data_ranks(cluster: Cluster, pins: Pins) -> int:
    """The data-parallel ranks that the fixed degrees leave."""
    fixed = (pins.tensor_parallel or 1) * (pins.pipeline_parallel or 1) * (pins.sequence_parallel or 1)
    return max(1, cluster.gpus // fixed)


def choose_global_batch(job: Job, cluster: Cluster, pins: Pins, on_cpu: bool = False) -> tuple[int, str]:
    """Sequences per optimizer step and why.

    Raises:
        InputError: fixed sizes that no division of the GPUs meets.
    """
    if job.global_batch is not None:
        return job.global_batch, f"global batch {job.global_batch}: given"
    ranks = data_ranks(cluster, pins)
    if job.inference:
        micro = pins.micro_batch or 1
        return micro * ranks, f"{counted(micro, 'sequence')} a GPU at a time, of {job.seq_len} tokens in all"
    if pins.micro_batch is not None or pins.gradient_accumulation is not None:
        micro, steps = pins.micro_batch or 1, pins.gradient_accumulation or 1
        return micro * steps * ranks, (
            f"global batch {micro * steps * ranks}: micro-batch {micro} × accumulation {steps} × {ranks} "
            "data-parallel ranks"
        )
    if on_cpu:
        return 2 * ranks, f"global batch {2 * ranks}: two sequences per CPU rank"
    per_gpu = _TARGET_TOKENS / job.seq_len / cluster.gpus
    sequences = 1
    while sequences * 2 <= min(per_gpu * _HALFWAY, _MOST_SEQUENCES_PER_GPU):
        sequences *= 2
    total = sequences * cluster.gpus
    each = "each of " if cluster.gpus > 1 else ""
    return total, (
        f"global batch {counted(total, 'sequence')}, {total * job.seq_len:,} tokens a step: "
        f"⟨global_batch⟩ not given; {sequences} for {each}{counted(cluster.gpus, 'GPU')}, the power of two "
        f"(at most {_MOST_SEQUENCES_PER_GPU}) that comes nearest to {_TARGET_TOKENS:,} tokens a step"
    )


def refuse_micro_batch(batch: int, pins: Pins, ranks: int = 1) -> None:
    """Refuse a fixed micro-batch that does not divide the global batch.

    Args:
        ranks: data-parallel ones; 1: not known.

    Raises:
        InputError: with global batches that it divides.
    """
    if pins.micro_batch and batch % pins.micro_batch:
        each = f" on each of {ranks} data-parallel ranks" if ranks > 1 else ""
        raise InputError(
            f"⟨micro_batch⟩ {pins.micro_batch}{each} does not divide ⟨global_batch⟩ {batch}; "
            f"{nearest_batches(batch, ranks, pins)}"
        )


def nearest_batches(batch: int, ranks: int, pins: Pins) -> str:
    """The global batches next to one that the fixed sizes leave on so many data-parallel ranks."""
    step = ranks * (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    if pins.micro_batch and pins.gradient_accumulation:
        return f"use ⟨global_batch⟩ {step}"
    lower = batch // step * step or step
    return f"use ⟨global_batch⟩ {lower} or {lower + step}"


def check_batch(result: SearchResult, request: Request) -> None:
    """Refuse a fixed global batch when it alone is in the way.

    Raises:
        InputError: with the batches next to it that are possible.
    """
    if result.nearest is not None or BATCH_REASON not in result.rejected:
        return
    batch, pins = request.job.global_batch, request.pins
    if batch is None:
        return
    ranks = data_ranks(request.cluster, pins)
    sequences = (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    step = ranks * sequences
    if pins.micro_batch and pins.gradient_accumulation:
        ways = "" if batch % sequences or ranks % (batch // sequences) else _divided_by_script(request)
        raise InputError(
            f"⟨micro_batch⟩ {pins.micro_batch} × ⟨gradient_accumulation⟩ {pins.gradient_accumulation} × "
            f"{counted(ranks, 'data-parallel rank')} are {counted(step, 'sequence')} a step, not "
            f"⟨global_batch⟩ {batch}; leave one of the three out{ways}"
        )
    raise InputError(
        f"⟨global_batch⟩ {batch} cannot be divided evenly over {counted(ranks, 'data-parallel rank')} with "
        f"these options; {nearest_batches(batch, ranks, pins)}{_divided_by_script(request)}"
    )


def _divided_by_script(request: Request) -> str:
    ways = [f"⟨{way.option}⟩ auto" for way in advice.BY_SCRIPT if way.searched(request) is not None]
    return (
        f", or {' or '.join(ways)} if the script gives the ranks of one group the same batch" if ways else ""
    )
