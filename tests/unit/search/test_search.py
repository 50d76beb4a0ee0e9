"""The search: nothing legal that fits is faster, everything chosen fits, requests are met exactly."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.requests import request_for
from zerokit.catalog import gpus, models
from zerokit.domain.deepspeed_settings import from_config as read_settings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.emit.deepspeed import deepspeed_config
from zerokit.emit.files import plan_files
from zerokit.errors import InputError, NothingFits
from zerokit.linter.emitted import verify
from zerokit.planner.models import choose_model
from zerokit.rules import first_violation
from zerokit.search.plan import Plan, choose_global_batch, make_plan, make_space
from zerokit.search.request import Request
from zerokit.search.search import fits, search
from zerokit.search.space import Layout, Pins, divisors, knobs, layout_violation, layouts, placements
from zerokit.search.strategies import Space, batches, build_strategy, checkpointings

GIB = 1 << 30


def everything(space: Space):  # type: ignore[no-untyped-def]
    """Brute force: every point of the declared space that is legal and fits, with its time."""
    for layout in layouts(space.cluster, space.pins):
        if layout_violation(layout, space.shape, space.job, space.cluster, space.pins):
            continue
        spots = placements(space.pins, space.job, space.cluster.nvme_path is not None)
        for spot, mode, (micro, steps) in itertools.product(
            spots, checkpointings(space), list(batches(space, layout))
        ):
            for chosen in knobs(spot.stage, space.pins, space.timing.trainable):
                strategy = build_strategy(space, layout, spot, mode, micro, steps, chosen)
                if first_violation(
                    strategy, gpus_per_node=space.cluster.gpus_per_node, key_value_heads=space.shape.kv_heads
                ):
                    continue
                memory = space.memory(space.job, strategy, space.cluster)
                if fits(memory, space.cluster) is None:
                    plain = space.timing.estimate(strategy)
                    yield space.timing.with_retries(plain, strategy, memory).step_seconds


SEARCH_ALL = Pins(search_tensor=True, search_sequence=True)


@pytest.mark.parametrize("pins", [Pins(), SEARCH_ALL, Pins(pipeline_module=True)])
@pytest.mark.parametrize(
    ("model", "gpu", "count", "job"),
    [
        ("llama-3.2-1b", "rtx-4090", 2, Job(seq_len=1024, global_batch=16)),
        ("llama-3.1-8b", "a100-80gb", 4, Job(seq_len=2048, global_batch=12)),
        ("llama-2-7b", "rtx-3090", 1, Job(seq_len=512, global_batch=8)),
        ("gpt2-xl", "v100-32gb", 2, Job(seq_len=1024, global_batch=8, attention="eager")),
        ("mixtral-8x7b", "h200", 8, Job(seq_len=2048, global_batch=32)),
        ("llama-2-13b", "a100-40gb", 2, Job(seq_len=2048, global_batch=8, method="lora", lora=Lora())),
    ],
)
def test_no_legal_plan_that_fits_is_faster(model: str, gpu: str, count: int, job: Job, pins: Pins) -> None:
    space = make_space(request_for(model, gpu, count, job=job, pins=pins))[0]
    times = list(everything(space))
    found = search(space, top=3)
    assert times
    assert found.ranked[0].time.step_seconds == pytest.approx(min(times))
    ranked = [candidate.time.step_seconds for candidate in found.ranked]
    assert ranked == sorted(ranked)


def test_a_bound_from_below_changes_nothing_but_the_work() -> None:
    request = request_for(count=4, job=Job(seq_len=2048, global_batch=32), pins=SEARCH_ALL)
    asked: list[int] = []

    def counted(job, strategy, cluster):  # type: ignore[no-untyped-def]
        asked.append(1)
        return request.memory(job, strategy, cluster)

    def bound(job, strategy, cluster):  # type: ignore[no-untyped-def]
        return int(0.9 * request.memory(job, strategy, cluster).min_vram_bytes)

    plain = search(make_space(replace(request, memory=counted))[0])
    alone = len(asked)
    bounded = search(make_space(replace(request, memory=counted, least_vram=bound))[0])
    assert len(asked) - alone < alone
    assert [c.strategy for c in plain.ranked] == [c.strategy for c in bounded.ranked]


def test_every_candidate_is_accounted_for() -> None:
    found = search(make_space(request_for(pins=SEARCH_ALL))[0], top=4)
    assert sum(found.rejected.values()) + len(found.ranked) == found.candidates
    assert all(count > 0 for count in found.rejected.values())


known = functools.cache(lambda model: choose_model(None, model))


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
        found.append(replace(request, memory=memory, least_vram=memory.least_vram_bytes))
    return found


@pytest.mark.parametrize("number", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_random_plans_fit_and_are_valid_and_meet_the_batch(number: int) -> None:
    made = traced = 0
    for request in random_requests(number):
        space = make_space(request)[0]
        ranked = search(space, top=1).ranked
        if not ranked:
            continue
        made += 1
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
    assert made > number / 2 and traced > 0.3 * number


def outcome(plan: Plan) -> tuple[int, str, str]:
    zero = plan.chosen.strategy.settings.zero
    return zero.stage, zero.offload_optimizer.device, zero.offload_param.device


def test_gpt3_175b_trains_on_a_thousand_a100s() -> None:
    """Megatron-LM (arXiv 2104.04473) ran it on 1,024 A100-80GB at 140 TFLOP/s a GPU, 34 days for 300e9
    tokens with an 8-way tensor, 12-way pipeline parallel plan."""
    request = request_for("gpt-3-175b", "a100-80gb", 1024, 128, Job(seq_len=2048, global_batch=1536),
                          Pins(pipeline_module=True, tensor_parallel=8))  # fmt: skip
    request = replace(request, cluster=replace(request.cluster, network_bytes_per_second=200e9))
    plan = make_plan(request)
    days = 300e9 / (plan.chosen.time.tokens_per_second_per_gpu * 1024) / 86400
    assert 20 < days < 60
    assert plan.chosen.strategy.settings.zero.stage <= 1 or plan.chosen.strategy.pipeline_parallel == 1


def test_llama2_70b_with_8_way_tensor_and_16_way_pipeline_parallel() -> None:
    pins = Pins(tensor_parallel=8, pipeline_parallel=16, pipeline_module=True)
    plan = make_plan(
        request_for("llama-2-70b", "a100-80gb", 128, 16, Job(seq_len=4096, global_batch=1024), pins)
    )
    strategy = plan.chosen.strategy
    assert (strategy.tensor_parallel, strategy.pipeline_parallel, strategy.data_parallel) == (8, 16, 1)
    assert strategy.settings.zero.stage <= 1


def test_7b_on_one_24_gb_card() -> None:
    """ZeRO-Offload (arXiv 2101.06840): beyond 2B parameters on one GPU only with the states on the host."""
    plan = make_plan(request_for("llama-2-7b", "rtx-4090", 1))
    assert outcome(plan)[1:] == ("cpu", "cpu")
    assert plan.chosen.memory.host_bytes_per_node > 16 * 6.7e9
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-2-7b", "rtx-4090", 1, host_ram=32 * GIB))
    assert "⟨method⟩" in failed.value.marked and "⟨host_ram⟩" in failed.value.marked
    lora = Job(seq_len=2048, method="lora", lora=Lora())
    assert make_plan(request_for("llama-2-7b", "rtx-4090", 1, job=lora, host_ram=32 * GIB))


@pytest.mark.parametrize(("count", "method"), [(8, "lora"), (4, "lora"), (2, "qlora"), (4, "qlora")])
def test_70b_adapters_on_80_gb_cards_without_offload(count: int, method: str) -> None:
    job = Job(seq_len=2048, method=method, lora=Lora())
    pins = Pins(offload_optimizer="none", offload_param="none")
    assert make_plan(request_for("llama-3.1-70b", "h100-sxm-80gb", count, job=job, pins=pins))


def test_70b_full_training_needs_offload_on_8_cards_and_none_on_32() -> None:
    assert outcome(make_plan(request_for("llama-3.1-70b", count=8)))[1] == "cpu"
    assert outcome(make_plan(request_for("llama-3.1-70b", count=32, nodes=4)))[1] == "none"


def test_bert_large_on_a_t4_trains_in_fp16_without_sharding() -> None:
    plan = make_plan(request_for("bert-large", "t4", 1, job=Job(seq_len=512)))
    assert plan.precision == "fp16"
    assert plan.chosen.strategy.settings.zero.stage in (0, 1)
    assert any("no bf16" in note for note in plan.assumptions)


def test_a_trillion_parameter_mixture_of_experts() -> None:
    """Full training of 1.6e12 parameters takes 25 TB of states: not on 64 GPUs, but on 1,024 it shards."""
    with pytest.raises(NothingFits):
        make_plan(request_for("switch-c-2048", "a100-80gb", 64, 8, Job(seq_len=512), host_ram=1024 * GIB))
    plan = make_plan(request_for("switch-c-2048", "h200", 1024, 128, Job(seq_len=512)))
    assert plan.chosen.strategy.settings.zero.stage == 3


def test_pipelines_appear_only_when_asked_for() -> None:
    request = request_for("llama-3.1-405b", count=1024, nodes=128)
    request = replace(request, cluster=replace(request.cluster, network_bytes_per_second=50e9))
    plain = make_plan(request)
    assert plain.chosen.strategy.pipeline_parallel == 1
    assert plain.faster_with and "PipelineModule" in plain.faster_with[0]
    asked = make_plan(replace(request, pins=Pins(pipeline_module=True)))
    assert asked.chosen.strategy.pipeline_parallel > 1
    assert asked.chosen.time.step_seconds < plain.chosen.time.step_seconds


def test_pins_are_kept() -> None:
    pins = Pins(
        zero_stage=2,
        offload_optimizer="cpu",
        offload_param="none",
        checkpointing="full",
        micro_batch=2,
        tensor_parallel=2,
        sequence_parallel=1,
        overlap_comm=True,
        reduce_bucket_size=123_456_789,
    )
    strategy = make_plan(request_for(pins=pins)).chosen.strategy
    zero = strategy.settings.zero
    assert (zero.stage, zero.offload_optimizer.device, zero.offload_param.device) == (2, "cpu", "none")
    assert (strategy.tensor_parallel, strategy.settings.micro_batch, strategy.checkpointing) == (2, 2, "full")
    assert (zero.overlap_comm, zero.reduce_bucket_size) == (True, 123_456_789)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (Pins(tensor_parallel=3), "tp 3"),
        (Pins(zero_stage=2, offload_param="cpu"), "stage 3"),
        (Pins(zero_stage=0, offload_optimizer="cpu"), "stage"),
        (Pins(tensor_parallel=8, sequence_parallel=4), "does not divide"),
        (Pins(pipeline_parallel=2, pipeline_module=True, zero_stage=3), "pipeline"),
    ],
)
def test_pins_that_cannot_be_are_refused_with_the_fix(pins: Pins, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_plan(request_for(pins=pins))


@pytest.mark.parametrize(
    ("model", "degree", "words"),
    [
        ("deepseek-v2-lite", 2, "one head size"),  # values of 128, queries of 192
        ("qwen2.5-14b", 5, "key-value heads"),  # 40 heads, of which 8 of keys and values
        ("llama-3.1-8b", 16, None),  # 32 and 8
    ],
)
def test_ulysses_takes_heads_that_it_can_divide(model: str, degree: int, words: str | None) -> None:
    """deepspeed/runtime/sequence_parallel/ulysses_sp.py:149 and 161."""
    broken = layout_violation(
        Layout(data=1, tensor=1, pipeline=1, sequence=degree),
        from_config(models.load(model).hf_config, name=model), Job(seq_len=4000),
        Cluster(gpu=gpus.load("h200"), gpus=degree), Pins(sequence_parallel=degree),
    )  # fmt: skip
    assert (broken is None) if words is None else (broken is not None and words in broken.message)


def test_a_batch_that_no_division_meets_is_refused() -> None:
    job = Job(seq_len=2047, global_batch=7, method="lora", lora=Lora())
    with pytest.raises(InputError, match=r"global_batch 7.* 8 or 16"):
        make_plan(request_for(count=8, job=job))


def test_a_batch_smaller_than_the_gpus_is_met_by_tensor_parallel_peers() -> None:
    job = Job(seq_len=2048, global_batch=7)
    with pytest.raises(InputError, match=r"use 8 or 16, or tp auto or sp auto"):
        make_plan(request_for(count=8, job=job))
    plan = make_plan(request_for(count=8, job=job, pins=Pins(search_tensor=True)))
    assert plan.chosen.strategy.global_batch == 7
    assert plan.chosen.strategy.data_parallel == 1


def degrees(plan: Plan) -> set[tuple[int, int]]:
    return {
        (c.strategy.tensor_parallel, c.strategy.sequence_parallel) for c in (plan.chosen, *plan.alternatives)
    }


def test_only_what_an_unmodified_script_can_run_is_offered_unasked() -> None:
    """Peers of tensor and sequence parallel need the script's help: named, and chosen when asked for."""
    request = request_for("llama-3.1-8b", "a100-80gb", 8, job=Job(seq_len=4096, global_batch=8))
    plain = make_plan(request, top=10)
    assert degrees(plain) == {(1, 1)}
    asked = make_plan(replace(request, pins=SEARCH_ALL), top=10)
    assert degrees(asked) != {(1, 1)}
    assert not any("⟨tp⟩" in line or "⟨sp⟩" in line for line in asked.faster_with)
    gain = plain.chosen.time.step_seconds / asked.chosen.time.step_seconds - 1
    named = [line for line in plain.faster_with if "⟨tp⟩" in line or "⟨sp⟩" in line]
    assert bool(named) is (gain > 0.02)
    assert all("position_ids" in line or "same batch" in line for line in named)
    pinned = make_plan(replace(request, pins=Pins(sequence_parallel=2)))
    assert degrees(pinned) == {(1, 2)}


def test_what_the_script_could_do_is_named_when_it_is_faster() -> None:
    """A long sequence on each of eight GPUs fits with everything offloaded, or shared between GPUs."""
    request = request_for("llama-3.1-8b", "h100-sxm-80gb", 8, job=Job(seq_len=32768, global_batch=8))
    plain = make_plan(request)
    asked = make_plan(replace(request, pins=Pins(search_sequence=True)))
    assert plain.chosen.strategy.sequence_parallel == 1
    gain = plain.chosen.time.step_seconds / asked.chosen.time.step_seconds - 1
    line = next(line for line in plain.faster_with if "⟨sp⟩" in line)
    degree = asked.chosen.strategy.sequence_parallel
    assert line.startswith(f"{gain:.0%} faster with sequence parallel {degree}")


def test_what_would_fit_with_the_scripts_help_is_named() -> None:
    request = request_for("llama-3.1-8b", "h100-sxm-80gb", 8, job=Job(seq_len=65536, global_batch=8))
    with pytest.raises(NothingFits) as failed:
        make_plan(request)
    line = next(line for line in failed.value.marked.splitlines() if "⟨sp⟩" in line or "⟨tp⟩" in line)
    option, degree = line.split("⟨")[1].split(":")[0].replace("⟩", "").split()
    pins = Pins(tensor_parallel=int(degree)) if option == "tp" else Pins(sequence_parallel=int(degree))
    assert make_plan(replace(request, pins=pins))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 24, 1024])
def test_the_chosen_global_batch_is_a_multiple_of_the_gpus_and_says_why(count: int) -> None:
    cluster = Cluster(gpu=gpus.load("h200"), gpus=count)
    batch, why = choose_global_batch(Job(seq_len=4096), cluster, Pins())
    assert batch % count == 0 and 1 <= batch // count <= 32
    assert str(batch) in why


def test_nothing_fits_names_the_nearest_changes() -> None:
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-70b", "a100-40gb", 2, job=Job(seq_len=2048), host_ram=128 * GIB))
    text = failed.value.marked
    assert "where there are 128 GiB" in text
    assert "⟨method⟩" in text and "more GPUs" in text and "⟨host_ram⟩" in text
    assert failed.value.exit_code == 3


def test_a_change_that_is_named_makes_it_fit() -> None:
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-8b", "rtx-4090", 2, job=Job(seq_len=2048), host_ram=64 * GIB))
    line = next(line for line in failed.value.marked.splitlines() if "more GPUs" in line)
    count = int(line.split("⟨gpus⟩ ")[1].split(")")[0].split()[0])
    nodes = max(1, count // 8)
    assert make_plan(request_for("llama-3.1-8b", "rtx-4090", count, nodes, host_ram=64 * GIB))


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
    assert divisors(49) == [1, 7, 49]


def test_4_bit_weights_stay_on_the_gpu_unless_told_otherwise() -> None:
    job = Job(seq_len=2048, method="qlora", lora=Lora())
    plan = make_plan(request_for("llama-3.1-70b", "a100-80gb", 1, job=job), top=20)
    shown = (plan.chosen, *plan.alternatives)
    assert {c.strategy.settings.zero.offload_param.device for c in shown} == {"none"}
    pinned = make_plan(request_for("llama-3.1-70b", "a100-80gb", 1, job=job, pins=Pins(offload_param="cpu")))
    assert pinned.chosen.strategy.settings.zero.offload_param.device == "cpu"
