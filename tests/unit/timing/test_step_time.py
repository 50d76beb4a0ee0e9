"""The time model against published figures and against what must hold whatever the constants."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import step_time
from tests.support.requests import request_for
from zerokit.catalog import gpus, models
from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.deepspeed_settings import from_config as from_deepspeed
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape, scaled
from zerokit.domain.strategy import Strategy, TimeEstimate
from zerokit.search.plan import make_plan
from zerokit.search.space import Pins
from zerokit.timing.constants import HUGGING_FACE, Calibration, LayerFactor
from zerokit.timing.step_time import TimeModel, retry_seconds, spare_bytes


def shape_of(name: str) -> ModelShape:
    model = models.load(name)
    return from_config(model.hf_config, name=name, parameters=model.parameters)


def step(
    shape: ModelShape,
    *,
    stage: int = 1,
    micro: int = 4,
    accumulation: int = 1,
    data: int = 8,
    checkpointing: str = "none",
    tensor: int = 1,
    pipeline: int = 1,
    sequence: int = 1,
    job: Job | None = None,
    cluster: Cluster | None = None,
    zero: ZeroSettings | None = None,
    calibration: Calibration | None = None,
    constants: object = HUGGING_FACE,
    trainable: int | None = None,
    grad_accum_dtype: str | None = None,
) -> TimeEstimate:
    settings = DeepSpeedSettings(
        grad_accum_dtype=grad_accum_dtype,
        precision="bf16",
        micro_batch=micro,
        gradient_accumulation=accumulation,
        zero=zero or ZeroSettings(stage=stage),
        autotp_size=tensor,
    )
    strategy = Strategy(
        settings=settings,
        data_parallel=data,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        sequence_parallel=sequence,
        checkpointing=checkpointing,
    )
    cluster = cluster or Cluster(gpu=gpus.load("a100-80gb"), gpus=strategy.world_size)
    model = TimeModel(shape, job or Job(seq_len=2048), cluster, constants, calibration, trainable)  # type: ignore[arg-type]
    return model.estimate(strategy)


# those of images and text, and of hybrid layers, are traced, never in closed form
@pytest.mark.parametrize(
    "name", [m.name for m in models.index() if m.head != "image-text" and m.has_closed_form]
)
def test_counts_the_catalogues_parameters_from_the_configuration(name: str) -> None:
    model = models.load(name)
    counted = from_config(model.hf_config, name=name).parameters
    tolerance = {"opt-350m": 0.08}.get(name, 0.01)  # it projects its embeddings down
    assert counted == pytest.approx(model.parameters, rel=tolerance)


def test_forward_flops_are_twice_the_matmul_parameters() -> None:
    # GPT-3 175B: 2 × 174.6e9 a token less the position table, as its paper's 3.14e23 / 300e9 / 6 has it
    shape = shape_of("gpt-3-175b")
    assert shape.matmul_parameters == pytest.approx(3.14e23 / 300e9 / 6, rel=0.01)


@pytest.mark.parametrize("count", [40_000_000, 350_000_000, 3_000_000_000, 52_000_000_000])
def test_scaling_gives_the_count_asked_for(count: int) -> None:
    shape = scaled(shape_of("llama-2-7b"), count)
    assert shape.parameters == count
    summed = shape.block_parameters + shape.embedding_parameters + shape.head_parameters
    assert summed == pytest.approx(count, rel=0.12)
    assert shape.hidden % 8 == 0


def test_parts_sum_to_the_step() -> None:
    estimate = step(shape_of("llama-3.1-8b"), stage=3, accumulation=4, checkpointing="full")
    assert sum(estimate.parts.values()) == pytest.approx(estimate.step_seconds)
    assert estimate.tokens_per_second_per_gpu == pytest.approx(4 * 4 * 2048 / estimate.step_seconds)


def test_no_gpu_runs_beyond_its_measured_matmul_rate() -> None:
    shape = shape_of("llama-3.1-8b")
    estimate = step(shape, micro=8)
    flops = 6 * shape.matmul_parameters * 8 * 2048
    assert flops / estimate.step_seconds < 271e12


def test_recomputation_costs_between_a_fifth_and_a_third() -> None:
    shape = shape_of("llama-3.1-8b")
    ratio = step(shape, checkpointing="full").step_seconds / step(shape).step_seconds
    assert 1.18 < ratio < 1.36


def test_reentrant_recomputation_repeats_the_last_product_too() -> None:
    shape = shape_of("llama-3.1-8b")
    plain = step(shape, checkpointing="full")
    reentrant = step(shape, checkpointing="full", job=Job(seq_len=2048, use_reentrant_checkpointing=True))
    assert reentrant.step_seconds > plain.step_seconds


def test_stage_1_beats_stage_2_with_accumulation() -> None:
    """Stage 2 reduces every micro-batch, stage 1 once (deepspeed/runtime/zero/stage_1_and_2.py)."""
    shape = shape_of("llama-3.1-8b")
    assert (
        step(shape, stage=1, accumulation=8).step_seconds < step(shape, stage=2, accumulation=8).step_seconds
    )


def test_a_slower_network_hurts_only_across_nodes() -> None:
    shape = shape_of("llama-2-13b")
    gpu = gpus.load("a100-80gb")

    def on(nodes: int, rate: float) -> float:
        cluster = Cluster(gpu=gpu, gpus=16, nodes=nodes, network_bytes_per_second=rate)
        return step(shape, stage=3, data=16, cluster=cluster).step_seconds

    assert on(2, 1e9) > 2 * on(2, 100e9)
    one = Cluster(gpu=gpu, gpus=8, network_bytes_per_second=1e9)
    other = replace(one, network_bytes_per_second=100e9)
    assert step(shape, stage=3, cluster=one) == step(shape, stage=3, cluster=other)


def test_the_pipeline_bubble_is_p_minus_1_over_m() -> None:
    shape = shape_of("llama-2-7b")
    estimate = step(shape, stage=0, data=1, pipeline=4, accumulation=16, micro=1)
    busy = sum(v for k, v in estimate.parts.items() if k in ("compute", "launch", "link"))
    # the bubble holds the layers' time only: the head is on the last stage
    assert estimate.parts["bubble"] == pytest.approx(busy * 3 / 16, rel=0.25)
    longer = step(shape, stage=0, data=1, pipeline=4, accumulation=64, micro=1)
    # but for the gradients' reduction, which is the last micro-batch's alone
    assert longer.parts["bubble"] == pytest.approx(estimate.parts["bubble"], rel=0.01)


def test_optimizer_offload_takes_the_time_of_cpu_adam() -> None:
    shape = shape_of("llama-3.1-8b")
    zero = ZeroSettings(stage=2, offload_optimizer=Offload(device="cpu"))
    slow = Calibration(cpu_adam_parameters_per_second=1e9)
    estimate = step(shape, zero=zero, calibration=slow)
    # and of casting the stepped weights, which is shorter
    assert shape.parameters / 1e9 < estimate.parts["host"] < 1.05 * shape.parameters / 1e9
    assert estimate.bound_by == "host"


def test_lora_spends_no_time_on_gradients_of_frozen_weights() -> None:
    """But on its own kernels: on an H200, layers of width 4,096 took 0.86 of the time that training all
    weights took (kernels.jsonl, llama-4096.l6)."""
    shape = shape_of("llama-2-13b")
    lora = step(shape, micro=16, job=Job(seq_len=2048, method="lora", lora=Lora()), trainable=60_000_000)
    full = step(shape, micro=16)
    assert 0.7 < lora.parts["compute"] / full.parts["compute"] < 0.9


def test_mixture_of_experts_costs_its_active_parameters() -> None:
    sparse, dense = shape_of("mixtral-8x7b"), shape_of("mistral-7b-v0.1")
    assert sparse.parameters > 6 * dense.parameters
    ratio = step(sparse, micro=16).parts["compute"] / step(dense, micro=16).parts["compute"]
    assert 1.5 < ratio < 2.6


def test_longer_sequences_cost_more_a_token() -> None:
    shape = shape_of("llama-3.1-8b")
    rates = [
        step(shape, micro=65536 // length, job=Job(seq_len=length)).tokens_per_second_per_gpu
        for length in (2048, 8192, 32768, 65536)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.6 * rates[0]


def test_layer_factors_speak_for_like_layers_only() -> None:
    shape = shape_of("llama-2-7b")
    point = LayerFactor(hidden=4096, tensor_parallel=1, tokens=8192, factor=1.5)
    calibration = Calibration(layer_factors=(point,))
    assert calibration.layer_factor(4096, 1, 8192) == pytest.approx(1.5, rel=0.03)
    assert calibration.layer_factor(1024, 1, 8192) == pytest.approx(1.0, abs=0.01)
    plain, measured = step(shape), step(shape, calibration=calibration)
    assert 1.3 < measured.step_seconds / plain.step_seconds < 1.5


def test_a_measured_matmul_rate_replaces_the_catalogues() -> None:
    shape = shape_of("llama-3.1-8b")
    half = step(shape, calibration=Calibration(matmul_flops=271e12 / 2))
    assert 1.5 < half.step_seconds / step(shape).step_seconds < 2.1


@pytest.mark.parametrize(("stage", "micros"), [(0, 1), (1, 1), (2, 4)])
def test_below_stage_3_gradients_are_all_reduced(stage: int, micros: int) -> None:
    """stage_1_and_2.py:1695: all ranks' parts in one all-reduce; at stage 2 in every micro-batch. Stages 1
    and 2 gather the stepped weights, half as much."""
    shape = shape_of("llama-3.1-8b")
    rate = Calibration(allreduce_bytes_per_second=1e9)
    zero = ZeroSettings(stage=stage, overlap_comm=False, reduce_bucket_size=10**10)
    seconds = step(shape, zero=zero, accumulation=4, calibration=rate).parts["link"]
    passes = 2 * micros + (1 if stage else 0)
    assert seconds == pytest.approx(passes * 7 / 8 * 2 * shape.parameters / 1e9, rel=0.02)


def test_a_collective_slows_the_kernels_beside_it_where_they_set_the_pace() -> None:
    """Seconds of link that a hidden gather costs, over those it takes alone."""
    shape, rate = shape_of("llama-3.1-8b"), Calibration(allreduce_bytes_per_second=200e9)

    def share(micro: int) -> float:
        hidden, alone = (
            step(
                shape,
                stage=3,
                micro=micro,
                calibration=rate,
                zero=ZeroSettings(stage=3, overlap_comm=overlap),
            )
            for overlap in (True, False)
        )
        return hidden.parts["link"] / alone.parts["link"]

    assert share(16) == pytest.approx(HUGGING_FACE.overlap_loss, rel=0.02)
    # of short kernels the host sets the pace
    tiny = share(1)
    assert 0 < tiny < 0.9 * HUGGING_FACE.overlap_loss


@pytest.mark.parametrize(
    ("stage", "accumulation", "down", "up"),
    [(1, 1, 4, 0), (2, 1, 4, 0), (3, 1, 6, 2), (1, 4, 4, 0), (2, 4, 12, 8), (3, 4, 12, 8)],
)
def test_gradients_go_to_the_host_as_wide_as_the_master_weights(
    stage: int, accumulation: int, down: int, up: int
) -> None:
    """Bytes per owned weight and step; stages 2 and 3 sum micro-batches on the host, in 16 bits."""
    shape = shape_of("llama-3.1-8b")
    zero = ZeroSettings(stage=stage, offload_optimizer=Offload(device="cpu"))

    def pcie(down_rate: float, up_rate: float) -> float:
        rate = Calibration(device_to_host_bytes_per_second=down_rate, host_to_device_bytes_per_second=up_rate)
        return step(shape, data=1, zero=zero, accumulation=accumulation, calibration=rate).parts["pcie"]

    slow, twice = 1e9, 2e9
    fast = pcie(twice, twice)
    assert pcie(slow, twice) - fast == pytest.approx(down * shape.parameters / twice, rel=0.01)
    # and the stepped weights come back
    assert pcie(twice, slow) - fast == pytest.approx((up + 2) * shape.parameters / twice, rel=0.01)


@pytest.mark.parametrize(("ratio", "hosted"), [(1.0, 1.0), (0.3, 0.5), (0.0, 0.0)])
def test_a_partial_offload_leaves_whole_sub_groups_on_the_gpu(ratio: float, hosted: float) -> None:
    """8.03B weights on four ranks are two sub-groups, as the memory's replay has them (stage3.py:1100)."""
    shape = shape_of("llama-3.1-8b")

    def parts(device: str, ratio: float) -> Mapping[str, float]:
        zero = ZeroSettings(stage=3, offload_optimizer=Offload(device=device, ratio=ratio))
        return step(shape, data=4, zero=zero).parts

    whole, on_gpu, here = parts("cpu", 1.0), parts("none", 1.0), parts("cpu", ratio)
    assert here.get("host", 0.0) == pytest.approx(hosted * whole["host"])
    assert whole["optimizer"] <= here["optimizer"] <= on_gpu["optimizer"]
    assert (here["pcie"] < whole["pcie"]) == (hosted < 1)


def test_gradients_summed_in_fp32_cross_once() -> None:
    """zero/stage_1_and_2.py:2144: stage 2 keeps the sum on the GPU then."""
    shape = shape_of("llama-3.1-8b")
    zero = ZeroSettings(stage=2, offload_optimizer=Offload(device="cpu"))
    once = step(shape, data=1, zero=zero, accumulation=1).parts["pcie"]
    many = step(shape, data=1, zero=zero, accumulation=8, grad_accum_dtype="fp32").parts["pcie"]
    assert many == pytest.approx(once)


def test_a_vocabulary_that_tensor_cores_cannot_read_costs_the_head_its_speed() -> None:
    """kernels.jsonl, gpt2-1600: 98 to 137 TFLOP/s where an aligned vocabulary reaches 790."""
    gpt2 = models.load("gpt2-xl").hf_config
    odd, even = (from_config({**gpt2, "vocab_size": size}, name=str(size)) for size in (50257, 50304))
    h200 = Cluster(gpu=gpus.load("h200"), gpus=1)
    one, other = (step(s, data=1, cluster=h200, job=Job(seq_len=1024)) for s in (odd, even))
    lost = one.parts["compute"] - other.parts["compute"]
    assert lost == pytest.approx(6 * 4 * 1024 * 50257 * 1600 * (1 / 120e12 - 1 / 790e12), rel=0.1)


def test_a_tied_head_under_tensor_parallel_has_its_share_of_the_logits() -> None:
    """AutoTP keeps it cut along the vocabulary: no logits cross the link, half the loss is on each of two."""
    shape = shape_of("llama-3.2-1b")
    h200 = Cluster(gpu=gpus.load("h200"), gpus=2)
    tied, own = (
        step(replace(shape, tied=kind), data=1, tensor=2, cluster=h200, job=Job(seq_len=2048))
        for kind in (True, False)
    )
    logits = 4 * 2048 * shape.vocab
    gathered = 2 * logits / 2 / (450e9 * 0.77 * 0.6)
    assert own.parts["link"] - tied.parts["link"] == pytest.approx(gathered, rel=0.2)
    assert own.parts["compute"] - tied.parts["compute"] == pytest.approx(57 * logits / 2 / 4.08e12, rel=0.1)


def test_recomputing_spares_the_last_product_unless_it_has_an_adapter() -> None:
    """peft's Linear saves the adapter's input after the product of the weight that it adapts."""
    shape = shape_of("llama-2-13b")

    def recomputed(lora: Lora) -> float:
        job = Job(seq_len=2048, method="lora", lora=lora)
        whole, none = (
            step(shape, data=1, micro=16, job=job, trainable=10**7, checkpointing=kind).parts["compute"]
            for kind in ("full", "none")
        )
        return whole - none

    everywhere, attention = recomputed(Lora()), recomputed(Lora(targets=("q_proj", "v_proj")))
    down = 2 * 16 * 2048 * 40 * 5120 * 13824 / (gpus.load("a100-80gb").peak_flops["bf16"] * 0.87)
    assert everywhere - attention > down


def test_a_layer_of_more_kernels_takes_its_host_longer() -> None:
    """With short sequences the host sets the pace: norms on queries and keys cost Qwen3 what they launch."""
    shape = shape_of("qwen3-0.6b")
    plain = replace(shape, stacks=tuple(replace(stack, kernels=38.0) for stack in shape.stacks))
    slow, fast = (step(s, data=1, micro=1, job=Job(seq_len=16)).step_seconds for s in (shape, plain))
    more = (54 / 38 - 1) * HUGGING_FACE.launch_seconds * (1 + HUGGING_FACE.backward_launch) * shape.layers
    assert slow - fast == pytest.approx(more, rel=0.1)


def test_weights_on_the_host_are_written_back_after_a_step_on_the_gpu() -> None:
    """stage3.py:2858: with the optimizer on the GPU each step ends with the fp32 weights going back and being
    cast there: torch's copy_ converts on the host unless it is told not to wait."""
    shape = shape_of("llama-3.1-8b")
    host = Offload(device="cpu")

    def pcie(zero: ZeroSettings, down: float) -> float:
        rate = Calibration(device_to_host_bytes_per_second=down)
        return step(shape, zero=zero, calibration=rate).parts["pcie"]

    weights = ZeroSettings(stage=3, offload_param=host)
    both = ZeroSettings(stage=3, offload_param=host, offload_optimizer=host)
    slow, slower = 1e9, 0.5e9
    longer = pcie(weights, slower) - pcie(weights, slow)
    assert longer == pytest.approx(4 * shape.parameters * (1 / slower - 1 / slow), rel=0.05)
    # however fast the link is: 11.3 s measured with two ranks, which have four times as much each
    assert pcie(weights, 1e18) == pytest.approx(11.3 / 4, rel=0.2)
    # stepped on the host they are where they belong: only the gradients went down, hidden or not
    assert pcie(both, slow) > 0


def test_the_network_is_that_of_the_gpus_usual_nodes_unless_it_is_given() -> None:
    """NVIDIA's DGX H100 has eight ports of 400 Gb/s for eight GPUs."""
    h100 = Cluster(gpu=gpus.load("h100-sxm-80gb"), gpus=16, nodes=2)
    assert h100.node_network_bytes_per_second == 8 * 400e9 / 8
    assert replace(h100, gpus=4).node_network_bytes_per_second == 2 * 400e9 / 8
    assert replace(h100, network_bytes_per_second=1e9).node_network_bytes_per_second == 1e9
    assert Cluster(gpu=gpus.load("rtx-4090"), gpus=16, nodes=2).node_network_bytes_per_second == 50e9


def test_pairs_pass_through_their_reference_model_too() -> None:
    def passes(trainer: str, micro_batch: int) -> tuple[float, float]:
        settings = DeepSpeedSettings(precision="bf16", micro_batch=micro_batch)
        job = Job(seq_len=2048, global_batch=micro_batch, method="lora", trainer=trainer, loss="standard")
        cluster = Cluster(gpu=gpus.load("h200"), gpus=1, nodes=1)
        work = TimeModel(shape_of("llama-3.1-8b"), job, cluster, HUGGING_FACE, Calibration()).work(
            Strategy(settings=settings, data_parallel=1)
        )
        return work.forward_seconds, work.backward_seconds

    forward, backward = passes("trl-dpo", 2)  # TRL's DPOTrainer, dpo_trainer.py:1338
    policy = passes("trl-reward", 2)  # as many rows of pairs, no reference
    assert forward == pytest.approx(2 * policy[0], rel=0.01)
    assert backward == pytest.approx(policy[1], rel=0.01)


@pytest.mark.parametrize(
    ("name", "weight_bytes", "method", "checkpointing", "more"),
    [
        # milliseconds of a layer's passes on the reference host, over bf16 without autocast and adapters:
        # rehearsed with Accelerate on one H200
        ("qwen2.5-0.5b", 4, "full", "none", 0.62),
        ("qwen2.5-0.5b", 4, "full", "full", 0.92),
        ("llama-3.2-1b", 4, "full", "full", 0.74),
        ("qwen2.5-0.5b", 2, "lora", "none", 3.44),
        ("qwen2.5-0.5b", 2, "lora", "full", 6.09),
        ("llama-3.2-1b", 2, "lora", "full", 6.16),
    ],
)
def test_casts_under_autocast_take_the_host(
    name: str, weight_bytes: int, method: str, checkpointing: str, more: float
) -> None:
    shape = shape_of(name)

    def layer_milliseconds(settings: DdpSettings, method: str) -> float:
        job = Job(seq_len=16, global_batch=1, method=method, lora=Lora() if method == "lora" else None)
        cluster = Cluster(gpu=gpus.load("h200"), gpus=1, nodes=1)
        timing = TimeModel(shape, job, cluster, HUGGING_FACE, Calibration(host_factor=1.0))
        work = timing.work(Strategy(settings=settings, data_parallel=1, checkpointing=checkpointing))
        return 1e3 * (work.forward_seconds + work.backward_seconds) / shape.layers

    plain = DdpSettings(precision="bf16")
    cast = DdpSettings(precision="bf16", weight_bytes=weight_bytes, autocast=True)
    found = layer_milliseconds(cast, method) - layer_milliseconds(plain, "full")
    assert found == pytest.approx(more, rel=0.15, abs=0.12)


def test_long_micro_batches_hide_what_the_host_does() -> None:
    took = step(shape_of("llama-3.1-8b"), data=2, micro=8, calibration=Calibration(host_factor=0.5))
    assert took.parts.get("launch", 0.0) < 0.01 * took.parts["compute"]


def test_a_gathered_partition_is_not_hidden_behind_backward() -> None:
    """ZeRO-1 and ZeRO-2 gather the stepped weights, where nothing is left to run beside it."""
    shape = shape_of("llama-3.1-8b")
    # 16 GB to each of 8 GPUs over NVLink that reaches 345 GB/s (README of the measured rows)
    for stage in (1, 2):
        assert step(shape, stage=stage, micro=8, job=Job(seq_len=4096)).parts["link"] > 16e9 * 7 / 8 / 360e9


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
