"""One rank of one measured case: real DeepSpeed trains the model for a few steps, every phase noted.

``train`` calls it. ``rank-N.json`` is written at each stage, so that a rank that dies leaves what it had.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.measure import meter as meters
from benchmarks.measure.meter import Meter, Note
from benchmarks.measure.models import build, make_batch, training_dtype

MIB = 2**20


def train_step(
    engine: Any, case: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype, meter: Meter
) -> dict[str, dict[str, int]]:
    """One optimizer step. The phases of its last micro-batch."""
    phases: dict[str, dict[str, int]] = {}
    for _ in range(case["gradient_accumulation"]):
        batch = make_batch(case, model, dtype)
        meter.phase()
        loss = engine(**batch).loss
        phases["fwd"] = meter.phase()
        engine.backward(loss)
        phases["bwd"] = meter.phase()
        engine.step()
        phases["step"] = meter.phase()
    if meters.on_gpu():
        torch.cuda.synchronize()
    return phases


def ladder(
    engine: Any, case: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype, peak: int
) -> list[dict[str, Any]]:
    """Lower the cap step by step, from steady training, until it runs out of memory. ``cap_ladder_mib``: MiB
    above the peak of the last step, falling. One rank only."""
    found: list[dict[str, Any]] = []
    for above in case["cap_ladder_mib"]:
        torch.cuda.empty_cache()
        meters.cap(peak + above * MIB)
        meter, before, start = Meter(), meters.retries() or 0, time.perf_counter()
        meter.phase()
        rung: dict[str, Any] = {"above_peak_mib": above, "ok": True}
        try:
            for _ in range(2):
                train_step(engine, case, model, dtype, meter)
        except torch.OutOfMemoryError:
            rung["ok"] = False
        rung["peak_reserved_bytes"] = meter.peak_reserved
        rung["seconds"] = round((time.perf_counter() - start) / 2, 4)
        rung["alloc_retries"] = (meters.retries() or 0) - before
        found.append(rung)
        if not rung["ok"]:
            break
    return found


def _numel(parameters: list[torch.nn.Parameter]) -> int:
    """Elements of the whole parameters, partitioned by ZeRO-3 or not."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)


def measure(case: Mapping[str, Any], note: Note, turn: Callable[[], None] = lambda: None) -> None:
    """Initialise, train, note. Raises what training raises.

    Args:
        case: with ``shared`` (other runs are on the GPU) and ``limit_bytes`` (of the allocator; ``None``:
            no limit).
        note: where to.
        turn: called before the device is used; returns when it is this run's turn.
    """
    import deepspeed

    if case["new_tokens"] is not None:
        from benchmarks.measure.serve import serve

        serve(case, note, turn)
        return
    rank = int(os.environ["RANK"])
    stage = case["deepspeed_config"].get("zero_optimization", {}).get("stage", 0)
    torch.manual_seed(1234 + rank // case["tensor_parallel"])  # tensor-parallel peers share their batch
    model = build(case) if stage < 3 and not case["quantized"] else None  # in host memory alone
    turn()
    meters.enter(case, note)
    deepspeed.init_distributed()
    if model is None:
        model = build(case)
    trainable = [p for p in model.parameters() if p.requires_grad]
    note.add(params=_numel(list(model.parameters())), trainable_params=_numel(trainable))
    meter = Meter()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trainable, config=case["deepspeed_config"]
    )
    note.add(after_init=meter.phase())
    dtype = training_dtype(case["deepspeed_config"])
    seconds: list[float] = []
    phases: dict[str, dict[str, int]] = {}
    for step in range(case["steps"]):
        start = time.perf_counter()
        phases = train_step(engine, case, model, dtype, meter)
        seconds.append(round(time.perf_counter() - start, 4))
        note.add(
            **({"first_step": phases} if step == 0 else {}),
            last_step=phases,
            step_seconds=seconds,
            peak_allocated_bytes=meter.peak_allocated,
            peak_reserved_bytes=meter.peak_reserved,
        )
    meters.leave(case, note)
    if case["cap_ladder_mib"] and case["world_size"] == 1 and meters.on_gpu():
        gc.collect()
        peak = max(phase["max_alloc"] for phase in phases.values())
        note.add(cap_ladder=ladder(engine, case, model, dtype, peak))


def noted(case: Mapping[str, Any], note: Note, turn: Callable[[], None] = lambda: None) -> None:
    """``measure``, with how it failed noted before the failure goes on."""
    try:
        measure(case, note, turn)
    except torch.OutOfMemoryError as error:
        note.add(
            oom=True,
            error=str(error).splitlines()[0],
            allocated_at_failure_bytes=torch.cuda.memory_allocated(),  # its phase was not noted
            reserved_at_failure_bytes=torch.cuda.memory_reserved(),
            peak_at_failure_bytes=torch.cuda.max_memory_allocated(),
        )
        raise
    except Exception as error:
        note.add(error=f"{type(error).__name__}: {str(error)[:400]}")
        raise
