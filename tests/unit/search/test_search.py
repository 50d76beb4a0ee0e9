"""The search: nothing legal that fits is faster, everything chosen fits, requests are met exactly."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.emitted import verify
from tests.support.requests import Asked, request_for
from zerokit.domain.deepspeed_settings import from_config as read_settings
from zerokit.domain.job import Job, Lora
from zerokit.emit.deepspeed import deepspeed_config
from zerokit.emit.files import plan_files
from zerokit.errors import MemoryUnknown
from zerokit.planner.models import choose_model
from zerokit.rules import first_violation
from zerokit.search.engines import build_strategy, engine_of
from zerokit.search.plan import make_plan, make_space
from zerokit.search.search import fits, search
from zerokit.search.space import (
    Pins,
    Request,
    Space,
    batches,
    checkpointings,
    layout_violation,
    layouts,
)

GIB = 1 << 30


def everything(space: Space):  # type: ignore[no-untyped-def]
    """Brute force: every point of the declared space that is legal and fits, with its time."""
    engine = engine_of(space)
    for layout in layouts(space.cluster, space.pins):
        if layout_violation(layout, space):
            continue
        choices = engine.placements(space.pins, space)
        for placement, mode, (micro, steps) in itertools.product(
            choices, checkpointings(space), list(batches(space, layout))
        ):
            for chosen in engine.variants(space, layout, placement):
                strategy = build_strategy(space, layout, placement, mode, micro, steps, chosen)
                if engine.illegal(space, strategy):
                    continue
                memory = space.memory(space.job, strategy, space.cluster)
                if fits(memory, space.cluster) is None:
                    plain = space.timing.estimate(strategy)
                    yield space.timing.with_retries(plain, strategy, memory).step_seconds


known = functools.cache(lambda model: choose_model(None, model))
SEARCH_ALL = Pins(search_tensor=True, search_sequence=True)


JOBS = [
    ("llama-3.2-1b", "rtx-4090", 2, Job(seq_len=1024, global_batch=16)),
    ("llama-3.1-8b", "a100-80gb", 4, Job(seq_len=2048, global_batch=12)),
    ("llama-2-7b", "rtx-3090", 1, Job(seq_len=512, global_batch=8)),
    ("gpt2-xl", "v100-32gb", 2, Job(seq_len=1024, global_batch=8, attention="eager")),
    ("mixtral-8x7b", "h200", 8, Job(seq_len=2048, global_batch=32)),
    ("llama-2-13b", "a100-40gb", 2, Job(seq_len=2048, global_batch=8, method="lora", lora=Lora())),
]
MOST_GPUS = 2  # with every layout of more, brute force takes seconds


@pytest.mark.parametrize(
    ("model", "gpu", "count", "job", "pins"),
    [
        pytest.param(*job, pins, marks=[pytest.mark.slow] if job[2] > MOST_GPUS and pins != Pins() else [])
        for job in JOBS
        for pins in (Pins(), SEARCH_ALL, Pins(pipeline_module=True))
    ],
)
def test_no_legal_plan_that_fits_is_faster(model: str, gpu: str, count: int, job: Job, pins: Pins) -> None:
    space = make_space(request_for(model, gpu, count, job=job, pins=pins))[0]
    times = list(everything(space))
    found = search(space, top=3)
    assert times
    assert found.ranked[0].time.step_seconds == pytest.approx(min(times))
    assert 0 < space.timing.least_seconds(space.precision) < min(times)
    ranked = [candidate.time.step_seconds for candidate in found.ranked]
    assert ranked == sorted(ranked)


@pytest.mark.parametrize(("gpu", "count", "nodes"), [("h100-sxm-80gb", 4, 2), ("rtx-4090", 2, 1)])
def test_no_way_to_shard_that_fits_is_faster(gpu: str, count: int, nodes: int) -> None:
    job = Job(seq_len=2048, global_batch=16)
    memory = known("llama-3.2-1b").memory(job)
    request = request_for("llama-3.2-1b", gpu, count, nodes, job, Pins(engine="fsdp2"))
    space = make_space(replace(request, memory=memory))[0]
    found = search(space, top=3)
    assert found.ranked[0].time.step_seconds == pytest.approx(min(everything(space)))
    assert {candidate.strategy.engine for candidate in found.ranked} == {"fsdp2"}


def test_zero_1_that_releases_gradients_is_not_ruled_out_by_settings_that_keep_them() -> None:
    # in 16 bits, with overlap and no accumulation: 13 GiB of gradients that the last setting keeps
    job = Job(seq_len=2048, global_batch=256)
    memory = known("bloom-7b1").memory(job)
    request = request_for("bloom-7b1", "v100-32gb", 128, 8, job, Pins(zero_stage=1))
    space = make_space(replace(request, memory=memory))[0]
    assert space.precision == "fp16"
    best = search(space, top=1).ranked[0]
    assert best.time.step_seconds == pytest.approx(min(everything(space)))
    assert best.strategy.settings.gradient_accumulation == 1 and best.strategy.settings.zero.overlap_comm
    assert (
        memory.least_vram_bytes(job, best.strategy, space.cluster)
        <= memory(job, best.strategy, space.cluster).min_vram_bytes
    )


def test_strategies_whose_memory_nobody_knows_are_left_out() -> None:
    request = request_for(count=4, job=Job(seq_len=2048, global_batch=32), pins=SEARCH_ALL)

    def partly(job, strategy, cluster):  # type: ignore[no-untyped-def]
        if strategy.tensor_parallel > 1:
            raise MemoryUnknown("⟨model⟩ x: not traced")
        return request.memory(job, strategy, cluster)

    def unknown(job, strategy, cluster):  # type: ignore[no-untyped-def]
        raise MemoryUnknown("⟨model⟩ x: not traced")

    whole = search(make_space(request)[0], top=100)
    found = search(make_space(replace(request, memory=Asked(partly)))[0], top=100)
    kept = [c.strategy for c in whole.ranked if c.strategy.tensor_parallel == 1]
    assert [c.strategy for c in found.ranked if c.strategy in kept] == kept[: len(found.ranked)]
    assert found.unknown is not None and found.unknown[0].tensor_parallel > 1
    notes = make_plan(replace(request, memory=Asked(partly)), top=100).assumptions
    assert any("memory is not known" in note and "tensor parallel" in note for note in notes)
    with pytest.raises(MemoryUnknown):
        make_plan(replace(request, memory=Asked(unknown)))


def test_a_bound_from_below_changes_nothing_but_the_work() -> None:
    request = request_for(count=4, job=Job(seq_len=2048, global_batch=32), pins=SEARCH_ALL)
    asked: list[int] = []

    def counted(job, strategy, cluster):  # type: ignore[no-untyped-def]
        asked.append(1)
        return request.memory(job, strategy, cluster)

    def bound(job, strategy, cluster):  # type: ignore[no-untyped-def]
        return int(0.9 * request.memory(job, strategy, cluster).min_vram_bytes)

    plain = search(make_space(replace(request, memory=Asked(counted)))[0])
    alone = len(asked)
    bounded = search(make_space(replace(request, memory=Asked(counted, least_vram_bytes=bound)))[0])
    assert len(asked) - alone < alone
    assert [c.strategy for c in plain.ranked] == [c.strategy for c in bounded.ranked]


HOSTS = [
    ("qwen2.5-72b", Job(seq_len=2048, global_batch=64), 100 * GIB),  # nothing fits
    ("llama-3.1-8b", Job(seq_len=2048, global_batch=64), 180 * GIB),
]


@pytest.mark.parametrize(("model", "job", "host"), HOSTS)
def test_knowing_host_memory_first_changes_nothing_but_the_work(model: str, job: Job, host: int) -> None:
    memory = known(model).memory(job)
    request = request_for(model, "a100-40gb", 4, job=job, host_ram=host)
    asked: list[int] = []

    def counted(job, strategy, cluster):  # type: ignore[no-untyped-def]
        asked.append(1)
        return memory(job, strategy, cluster)

    bound = {"least_vram_bytes": memory.least_vram_bytes}
    plain = search(make_space(replace(request, memory=Asked(counted, **bound)))[0], wants_nearest=True)
    alone = len(asked)
    both = Asked(counted, **bound, host_bytes=memory.host_bytes)
    told = search(make_space(replace(request, memory=both))[0], wants_nearest=True)
    assert len(asked) - alone < alone
    assert [c.strategy for c in told.ranked] == [c.strategy for c in plain.ranked]
    assert (told.nearest is None) == (plain.nearest is None) == bool(plain.ranked)
    if told.nearest is not None and plain.nearest is not None:
        assert told.nearest.memory.host_bytes_per_node == plain.nearest.memory.host_bytes_per_node


def test_host_memory_is_known_without_the_rest() -> None:
    job = Job(seq_len=2048, global_batch=64)
    memory = known("llama-3.1-8b").memory(job)
    request = request_for("llama-3.1-8b", "a100-40gb", 4, job=job, host_ram=512 * GIB)
    space, strategies = make_space(request)[0], set()
    engine = engine_of(space)
    for placement in engine.placements(space.pins, space):
        layout = next(iter(layouts(space.cluster, space.pins)))
        for chosen in engine.variants(space, layout, placement)[::4]:
            strategies.add(build_strategy(space, layout, placement, "full", 1, 16, chosen))
    for strategy in strategies:
        exact = memory(job, strategy, space.cluster).host_bytes_per_node
        assert memory.host_bytes(job, strategy, space.cluster) == exact


def test_every_candidate_is_accounted_for() -> None:
    found = search(make_space(request_for(pins=SEARCH_ALL))[0], top=4)
    assert sum(found.rejected.values()) + len(found.ranked) == found.candidates
    assert all(count > 0 for count in found.rejected.values())


def test_settings_of_a_plan_shown_are_not_counted_as_slower_plans() -> None:
    """Where fewer strategies fit than may be shown, nothing that fits is kept back."""
    space, _ = make_space(request_for("llama-3.1-8b", "rtx-4090", 8, job=Job(seq_len=4096)))
    few, more, all_of_them = (search(space, top=top) for top in (2, 50, 60))
    assert len(few.ranked) == 2 < len(more.ranked) == len(all_of_them.ranked) < 50
    assert "slower than the plans shown" in few.rejected
    assert "slower than the plans shown" not in more.rejected
    assert (
        more.rejected["other settings of the plans shown"] > few.rejected["other settings of the plans shown"]
    )
    assert more.rejected == all_of_them.rejected


def random_requests(number: int) -> list[Request]:
    chance = random.Random(20260)
    found = []
    for _ in range(number):
        count = chance.choice([1, 2, 4, 8, 16, 64])
        method = chance.choice(["full", "full", "lora", "qlora"])
        gpu = chance.choice(
            ["rtx-4090", "a100-40gb", "a100-80gb", "h100-sxm-80gb", "h200", "mi300x", "l40s", "t4"]
        )
        job = Job(
            seq_len=chance.choice([512, 2048, 4096, 16384]),
            global_batch=chance.choice([None, None, count * 4, count * 6]),
            method=method,
            lora=None if method == "full" else Lora(rank=chance.choice([8, 64])),
            optimizer=chance.choice(["AdamW", "AdamW", "Lion"]),
        )
        model = chance.choice(["llama-3.2-1b", "llama-3.1-8b", "qwen2.5-14b", "gpt-neox-20b", "mixtral-8x7b",
                               "llama-3.1-70b", "gemma-2-9b", "phi-2"])  # fmt: skip
        host = chance.choice([None, 64 * GIB, 1024 * GIB])
        pins = chance.choice([Pins(), SEARCH_ALL])
        request = request_for(model, gpu, count, max(1, count // 8), job, pins, host_ram=host)
        # the memory model that zerokit plan asks: traced where the catalogue has the model's profile
        memory = known(model).memory(job)
        found.append(replace(request, memory=memory))
    return found


@pytest.mark.parametrize("number", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_random_plans_fit_and_are_valid_and_meet_the_batch(number: int) -> None:
    compared = traced = 0
    for request in random_requests(number):
        space = make_space(request)[0]
        ranked = search(space, top=1).ranked
        if not ranked:
            continue
        compared += 1
        chosen, cluster = ranked[0], request.cluster
        assert chosen.memory.min_vram_bytes <= cluster.gpu.driver_vram_bytes
        if cluster.host_ram_bytes is not None:
            assert chosen.memory.host_bytes_per_node <= cluster.host_ram_bytes
        assert chosen.strategy.world_size == cluster.gpus
        if request.job.global_batch is not None:
            assert chosen.strategy.global_batch == request.job.global_batch
        assert first_violation(chosen.strategy) is None
        # what is written passes the lint of anybody's files, and is what was planned
        files = plan_files(chosen.strategy, space.job, nodes=cluster.nodes, folder=Path("plan"))
        verify(files.texts, ranks=cluster.gpus, gpus_per_node=cluster.gpus_per_node)
        traced += chosen.memory.basis == "traced"
        config = deepspeed_config(chosen.strategy, request.job)
        assert read_settings(config).zero.stage == chosen.strategy.settings.zero.stage
        assert (
            config["train_micro_batch_size_per_gpu"]
            * config["gradient_accumulation_steps"]
            * (chosen.strategy.data_parallel)
            == space.global_batch
        )
    assert compared > number / 2 and traced > 0.3 * number
