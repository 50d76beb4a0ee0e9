"""What the allocator's retries cost: where there is room nothing, near the limit what was measured."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import step_time
from tests.support.requests import request_for
from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import from_config as from_deepspeed
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.search.plan import make_plan
from zerokit.search.space import Pins
from zerokit.timing.allocator_retries import retry_seconds, spare_bytes
from zerokit.timing.constants import HUGGING_FACE

GIB = 1 << 30
DATA = Path(step_time.DATA)


def seconds(spare: int, strategy: Strategy, cluster: Cluster, owned: float = 0.0) -> float:
    request = request_for("llama-3.2-1b")
    return retry_seconds(request.shape, Job(seq_len=2048), strategy, cluster, HUGGING_FACE, owned, spare)


def test_what_a_late_communicator_needs_is_spare_until_then() -> None:
    """Of what the allocator may hold the Trainer's communicator takes its own 388 MiB alone."""
    request = request_for("llama-3.2-1b", "h200")
    spare = {}
    for trainer in ("raw", "transformers"):
        job = replace(request.job, trainer=trainer)
        chosen = make_plan(replace(request, job=job, pins=Pins(zero_stage=1, micro_batch=1))).chosen
        spare[trainer] = spare_bytes(chosen.memory, chosen.strategy, job, request.cluster)
    assert spare["raw"] - spare["transformers"] == 388 * (1 << 20)


def a_strategy(micro: int = 4, count: int = 4) -> tuple[Strategy, Cluster]:
    request = request_for("llama-3.2-1b", "h200", count, job=Job(seq_len=2048, global_batch=16 * count),
                          pins=Pins(zero_stage=1, micro_batch=micro, checkpointing="none"))  # fmt: skip
    return make_plan(request).chosen.strategy, request.cluster


def test_room_costs_nothing_and_the_cost_grows_as_it_shrinks() -> None:
    strategy, cluster = a_strategy()
    costs = [seconds(int(spare * GIB), strategy, cluster) for spare in (12, 6, 4, 2, 1, 0.5, 0.375)]
    assert costs[0] == costs[1] == 0 < costs[2]
    assert costs == sorted(costs)


def test_the_driver_serves_one_process_of_a_host_at_a_time() -> None:
    """``remap`` in kernels.jsonl: two processes on two GPUs took nearly twice as long as one on one."""
    rows = {row["id"]: row for row in map(json.loads, (DATA / "kernels.jsonl").open(encoding="utf-8"))}

    def measured(name: str) -> float:
        row = rows[f"remap.expandable.{name}"]
        return float(row["given_back_seconds"] + row["mapped_seconds"]) / row["size_mib"] * 1024

    assert 1.4 < measured("p2.g2.64") / measured("p1.g1.128") < 2.5
    assert measured("p1.g1.128") / GIB == pytest.approx(HUGGING_FACE.remap_seconds_per_byte, rel=0.35)
    strategy, eight = a_strategy(count=8)
    alone = Cluster(gpu=eight.gpu, gpus=1)
    assert seconds(GIB, strategy, eight) == pytest.approx(8 * seconds(GIB, strategy, alone))


def test_runs_held_to_a_card_are_predicted_better_with_retries_than_without() -> None:
    runs = [run for run in map(step_time.timed, step_time.rows("quality")) if run.retries]
    assert len(runs) == 4
    without = [abs((run.seconds - run.parts["retries"]) / run.measured - 1) for run in runs]
    assert statistics.mean(abs(run.error) for run in runs) < 0.75 * statistics.mean(without)
    spared = [run for run in map(step_time.timed, step_time.rows("quality")) if not run.retries]
    assert not any("retries" in run.parts for run in spared)


def test_steps_on_one_quiet_gpu_with_the_allocator_held_back() -> None:
    """kernels.jsonl, ``capped``: seconds lost against the steps without a limit, over all rungs together."""
    lost = said = 0.0
    for row in map(json.loads, (DATA / "kernels.jsonl").open(encoding="utf-8")):
        for rung in row.get("capped", ()):
            lost += statistics.mean(rung["step_seconds"]) - row["step_seconds"]
            said += predicted(row, rung["above_peak_mib"])
    assert 0.5 < said / lost < 2


def predicted(row: dict[str, Any], above_mib: int) -> float:
    shape = from_config(row["hf_config"], name=row["id"], parameters=row["params"])
    settings = from_deepspeed(
        {**row["deepspeed_config"], "train_micro_batch_size_per_gpu": row["micro_batch"]}
    )
    strategy = Strategy(settings=settings, data_parallel=1)
    return retry_seconds(shape, Job(seq_len=row["seq_len"]), strategy, Cluster(gpu=gpus.load("h200"), gpus=1),
                         HUGGING_FACE, row["trainable_params"], above_mib << 20)  # fmt: skip


def test_a_tighter_card_never_wins() -> None:
    """Brute force agrees on single cards (test_search.py); here that more room is never slower."""
    request = request_for("llama-3.2-1b", "h200", 4, job=Job(seq_len=2048, global_batch=64))
    pinned = replace(request, pins=Pins(zero_stage=1, micro_batch=4, checkpointing="none"))
    gpu = request.cluster.gpu
    needs = make_plan(pinned).chosen.memory.min_vram_bytes - (gpu.driver_vram_bytes - gpu.vram_bytes)
    times = []
    for spare in (-1, 0, 1, 2, 4, 8):
        card = gpu.with_total_memory(needs + spare * GIB + gpu.driver_vram_bytes - gpu.vram_bytes)
        found = make_plan(replace(request, cluster=replace(request.cluster, gpu=card))).chosen
        times.append(found.time.step_seconds)
    assert times == sorted(times, reverse=True)
