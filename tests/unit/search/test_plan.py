"""What is planned for well-known jobs, what is refused, and what would help."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.requests import Asked, request_for
from zerokit.domain.job import Job, Lora
from zerokit.errors import InputError, NothingFits
from zerokit.search.explain import lack_words
from zerokit.search.plan import Plan, choose_global_batch, make_plan
from zerokit.search.space import Pins

GIB = 1 << 30

SEARCH_ALL = Pins(search_tensor=True, search_sequence=True)


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
    assert any("PipelineModule" in change for change in plain.faster_with)
    asked = make_plan(replace(request, pins=Pins(pipeline_module=True)))
    assert asked.chosen.strategy.pipeline_parallel > 1
    assert asked.chosen.time.step_seconds < plain.chosen.time.step_seconds


def test_a_batch_that_no_division_meets_is_refused() -> None:
    job = Job(seq_len=2047, global_batch=7, method="lora", lora=Lora())
    with pytest.raises(InputError, match=r"global_batch 7.* 8 or 16"):
        make_plan(request_for(count=8, job=job))


def test_a_batch_smaller_than_the_gpus_is_met_by_tensor_parallel_peers() -> None:
    job = Job(seq_len=2048, global_batch=7)
    with pytest.raises(InputError, match=r"use global_batch 8 or 16, or tp auto or sp auto"):
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
    assert line.startswith(f"{gain:.0%} faster with ⟨sp⟩ {degree} ")


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
    batch, why = choose_global_batch(request_for(count=count, job=Job(seq_len=4096)))
    assert batch % count == 0 and 1 <= batch // count <= 32
    assert f"{batch:,} sequence" in why


@pytest.mark.parametrize("batch", [60, 56, 3])
@pytest.mark.parametrize(
    "pins", [Pins(micro_batch=8), Pins(micro_batch=8, tensor_parallel=1, sequence_parallel=1)]
)
def test_a_global_batch_that_cannot_be_is_refused_with_the_two_next_to_it(batch: int, pins: Pins) -> None:
    job = Job(seq_len=512, global_batch=batch)
    request = request_for("gpt2", "h200", 8, job=job, pins=pins)
    with pytest.raises(InputError) as refused:
        make_plan(request)
    assert "data-parallel ranks" in refused.value.marked  # of which each takes so many
    named = re.search(r"use ⟨global_batch⟩ (\d+) or (\d+)", refused.value.marked)
    assert named is not None and named.groups() == ("64", "128")
    for size in map(int, named.groups()):
        chosen = make_plan(replace(request, job=replace(job, global_batch=size))).chosen.strategy
        assert (chosen.global_batch, chosen.settings.micro_batch) == (size, 8)


def test_nothing_fits_names_the_nearest_changes() -> None:
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-70b", "a100-40gb", 2, job=Job(seq_len=2048), host_ram=128 * GIB))
    text = failed.value.marked
    assert "where there are 128.0 GiB" in text
    assert "more GPUs" in text and "⟨host_ram⟩" in text
    assert failed.value.exit_code == 3


def test_a_lack_of_memory_is_the_reason_before_placements_that_nobody_asked_for() -> None:
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-8b", "h100-sxm-80gb", 8, pins=Pins(zero_stage=0)))
    first = failed.value.marked.splitlines()[0]
    assert ": with ⟨zero⟩ 0 the model states alone require at least 9" in first and first.endswith(
        "GiB per GPU"
    )


def test_what_was_fixed_is_named_and_nothing_else() -> None:
    fixed = Pins(zero_stage=0, checkpointing="none", tensor_parallel=1, micro_batch=1)
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-8b", "a100-80gb", 8, job=Job(seq_len=2048), pins=fixed))
    assert "without ⟨zero⟩ 0 ⟨checkpointing⟩ none: ZeRO-" in failed.value.marked
    with pytest.raises(NothingFits) as failed:  # a degree of 1 leaves nothing to free
        make_plan(request_for("llama-3.1-70b", "rtx-4090", 2, job=Job(seq_len=2048), host_ram=GIB,
                              pins=Pins(tensor_parallel=1, pipeline_parallel=1)))  # fmt: skip
    assert "without" not in failed.value.marked


def test_a_small_lack_is_shown_with_digits_that_differ() -> None:
    request = request_for("llama-3.1-8b", "a100-80gb", 8, job=Job(seq_len=2048))
    chosen = make_plan(request).chosen
    needed = chosen.memory.min_vram_bytes
    gpu = request.cluster.gpu.with_total_memory(needed - 9 * 2**20)
    words = lack_words(chosen, replace(request.cluster, gpu=gpu))
    figures = re.search(r"requires (\S+) GiB of (\S+) GiB per GPU, 9.0 MiB too much", words)
    assert figures is not None and figures[1] != figures[2]


def test_a_change_that_is_named_makes_it_fit() -> None:
    with pytest.raises(NothingFits) as failed:
        make_plan(request_for("llama-3.1-8b", "rtx-4090", 2, job=Job(seq_len=2048), host_ram=64 * GIB))
    line = next(line for line in failed.value.marked.splitlines() if "more GPUs" in line)
    count = int(line.split("⟨gpus⟩ ")[1].split(")")[0].split()[0])
    nodes = max(1, count // 8)
    assert make_plan(request_for("llama-3.1-8b", "rtx-4090", count, nodes, host_ram=64 * GIB))


def test_remarks_ask_the_memory_model_that_traces_nothing() -> None:
    request = request_for("llama-3.1-8b", "h100-sxm-80gb", 8, job=Job(seq_len=32768, global_batch=8))
    asked: set[tuple[str, int]] = set()

    def asking(name: str):  # type: ignore[no-untyped-def]
        def memory(job, strategy, cluster):  # type: ignore[no-untyped-def]
            asked.add((name, strategy.sequence_parallel))
            return request.memory(job, strategy, cluster)

        return memory

    remarks = Asked(asking("remark"))
    plan = make_plan(replace(request, memory=Asked(asking("plan"), known=lambda: remarks)))
    assert plan.faster_with and any(name == "remark" and degree > 1 for name, degree in asked)
    assert {degree for name, degree in asked if name == "plan"} == {1}


def test_every_gpu_holds_a_4_bit_model_whole_while_it_is_loaded() -> None:
    job = Job(seq_len=2048, method="qlora", lora=Lora())
    with pytest.raises(NothingFits):  # some 35 GiB of 4-bit weights, however many share them afterwards
        make_plan(request_for("llama-3.1-70b", "rtx-4090", 8, job=job))
    weights = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    tables = 2 * 128256 * 8192
    least = weights * (4 + 8 / 64) / 8 + 2 * tables  # and a scale of 8 bits for 64 weights
    held = {}
    for stage, count in ((3, 8), (3, 1), (1, 8)):
        request = request_for("llama-3.1-70b", "a100-80gb", count, job=job, pins=Pins(zero_stage=stage))
        held[stage, count] = make_plan(request).chosen.memory
    assert least < held[3, 8].worst.phases["init"] < 1.1 * least
    assert any("whole on each GPU" in note for note in held[3, 8].assumptions)
    for alike in ((3, 1), (1, 8)):  # nothing is divided: it stays as it was loaded
        assert not any("whole on each GPU" in note for note in held[alike].assumptions)


def test_4_bit_weights_stay_on_the_gpu_unless_told_otherwise() -> None:
    job = Job(seq_len=2048, method="qlora", lora=Lora())
    plan = make_plan(request_for("llama-3.1-70b", "a100-80gb", 1, job=job), top=20)
    shown = (plan.chosen, *plan.alternatives)
    assert {c.strategy.settings.zero.offload_param.device for c in shown} == {"none"}
    pinned = make_plan(request_for("llama-3.1-70b", "a100-80gb", 1, job=job, pins=Pins(offload_param="cpu")))
    assert pinned.chosen.strategy.settings.zero.offload_param.device == "cpu"


@pytest.mark.parametrize(("gpus", "nodes", "says"), [(1, 1, False), (2, 2, False), (2, 1, True)])
def test_only_ranks_of_one_node_share_its_cores(gpus: int, nodes: int, says: bool) -> None:
    """torchrun and accelerate launch set OMP_NUM_THREADS only where a node has several ranks."""
    pins = Pins(offload_optimizer="cpu")
    plan = make_plan(request_for("llama-3.2-1b", "h100-sxm-80gb", gpus, nodes, Job(seq_len=2048), pins))
    assert outcome(plan)[1] == "cpu"
    assert any("OMP_NUM_THREADS" in text for text in plan.assumptions) == says
