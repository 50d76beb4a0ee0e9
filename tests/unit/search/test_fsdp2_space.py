"""Plans under FSDP2, and of both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.errors import InputError, NothingFits

JOB = {"model": "llama-3.1-8b", "gpus": 4, "gpu": "h200", "seq_len": 4096, "global_batch": 32}


def test_a_plan_says_how_fsdp2_divides() -> None:
    chosen = zerokit.plan(**JOB, engine="fsdp2").to_dict()["chosen"]
    assert (chosen["engine"], chosen["zero_stage"], chosen["deepspeed_config"]) == ("fsdp2", None, None)
    assert (chosen["sharding"], chosen["replicas"], chosen["context_parallel"]) == (4, 1, 1)
    assert chosen["accelerate_config"]["fsdp_config"]["fsdp_version"] == 2
    assert chosen["accelerate_config"]["num_processes"] == 4


def test_auto_takes_the_faster_of_both_engines() -> None:
    plans = {engine: zerokit.plan(**JOB, engine=engine) for engine in ("deepspeed", "fsdp2", "auto")}
    seconds = {engine: plan.chosen.estimate.step_seconds for engine, plan in plans.items()}
    assert seconds["auto"] == pytest.approx(min(seconds.values()), rel=0.02)
    engines = {strategy["engine"] for strategy in plans["auto"].to_dict()["alternatives"]}
    assert engines == {"deepspeed", "fsdp2"}


def test_auto_does_not_doubt_that_the_other_engine_fits() -> None:
    """One within the noise leaves the choice to DeepSpeed, and tens of GiB of headroom are enough."""
    plan = zerokit.plan(model="qwen2.5-0.5b", gpus=2, gpu="h200", seq_len=2048, engine="auto").to_dict()
    assert (
        plan["chosen"]["engine"] == "deepspeed" and "FSDP2 keeping gathered weights" in plan["chosen"]["why"]
    )
    faster = next(one["why"] for one in plan["alternatives"] if one["engine"] == "fsdp2")
    assert "% faster, less than the runs of one plan differ by" in faster


def test_auto_says_which_engine_it_leaves_out_and_why() -> None:
    told = zerokit.plan(**JOB, engine="auto", zero=2).to_dict()
    assert told["chosen"]["zero_stage"] == 2
    assert any(note["id"] == "engine-left-out" and "--zero" in note["text"] for note in told["notes"])


@pytest.mark.parametrize(
    ("option", "degree", "engine", "other"),
    [("cp", 2, "fsdp2", "deepspeed"), ("cp", "auto", "fsdp2", "deepspeed"), ("sp", 2, "deepspeed", "fsdp2")],
)
def test_auto_leaves_out_the_engine_that_shares_sequences_otherwise(
    option: str, degree: object, engine: str, other: str
) -> None:
    told = zerokit.plan(**JOB, engine="auto", **{option: degree}).to_dict()
    assert {one["engine"] for one in (told["chosen"], *told["alternatives"])} == {engine}
    (note,) = [one["text"] for one in told["notes"] if one["id"] == "engine-left-out"]
    assert note.startswith(f"--engine {other} left out: --{option} {degree}: not planned with")


def test_sequences_are_shared_in_one_way() -> None:
    with pytest.raises(InputError, match="sp beside cp"):
        zerokit.plan(**JOB, engine="auto", sp=2, cp="auto")


@pytest.mark.parametrize("option", ["offload_optimizer", "offload_param"])
def test_an_offload_that_was_asked_for_is_kept(option: str) -> None:
    """Weights and states go together, so either option asks for both."""
    chosen = zerokit.plan(**JOB, engine="fsdp2", **{option: "cpu"}).to_dict()["chosen"]
    assert (chosen["offload_optimizer"], chosen["offload_param"]) == ("cpu", "cpu")


def test_nodes_may_hold_a_replica_each() -> None:
    slow = {**JOB, "gpus": 16, "nodes": 2, "network": "25Gb/s", "all_gpus": True}
    chosen = zerokit.plan(**slow, engine="fsdp2").to_dict()["chosen"]
    assert (chosen["sharding"], chosen["replicas"]) == (8, 2)


def test_one_rank_loads_where_the_host_cannot_hold_the_model_for_each() -> None:
    """Eight copies of 8 billion weights in fp32 are 239 GiB."""
    job = {**JOB, "gpus": 8, "engine": "fsdp2"}
    for host, loads_once in (("300GiB", False), ("200GiB", True)):
        plan = zerokit.plan(**job, host_ram=host)
        block = plan.to_dict()["chosen"]["accelerate_config"]["fsdp_config"]
        assert block["fsdp_cpu_ram_efficient_loading"] is loads_once
        assert any("the weights once per node" in line for line in plan.script_must) is loads_once


def test_ranks_may_share_each_sequence(tmp_path: Path) -> None:
    long = {**JOB, "gpus": 8, "nodes": 2, "seq_len": 131_072, "global_batch": 2}
    plan = zerokit.plan(**long, engine="fsdp2", cp="auto", out=tmp_path)
    chosen, strategy = plan.to_dict()["chosen"], plan.chosen.strategy
    assert chosen["context_parallel"] == strategy.sequence_parallel > 1
    assert chosen["sequence_parallel"] == 1 == plan.to_dict()["alternatives"][0]["sequence_parallel"]
    assert chosen["sharding"] * chosen["replicas"] == 8 == strategy.data_parallel * strategy.sequence_parallel
    told = zerokit.estimate(
        accelerate=tmp_path / "accelerate.yaml", model="llama-3.1-8b", gpu="h200", seq_len=131_072,
        global_batch=2, micro_batch=strategy.settings.micro_batch,
    )  # fmt: skip
    assert told.planned.strategy == strategy
    assert told.peak_allocated_bytes == chosen["estimate"]["peak_allocated_bytes"]
    (shared,) = [line for line in plan.script_must if "maybe_context_parallel" in line]
    assert "position_ids" in shared


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"seq_len": 32_769, "engine": "fsdp2"}, "32,769 tokens of a sequence are no multiple of 4"),
        ({"model": "gemma-2-9b", "engine": "fsdp2"}, "full causal attention alone"),
        ({"seq_len": 32_769}, "sequence parallel 2 does not divide"),
    ],
)
def test_where_no_ranks_can_share_a_sequence_the_plan_says_why(job: dict[str, Any], why: str) -> None:
    asked = {**JOB, **job, "gpus": 8}
    option = "cp" if "engine" in job else "sp"
    (told,) = [one for one in zerokit.plan(**asked, **{option: "auto"}).notes if one.id == "not-shared"]
    with pytest.raises(InputError) as refused:
        zerokit.plan(**asked, **{option: 2})
    assert (
        why in told and told.removeprefix(f"⟨{option}⟩ auto leaves sequences whole: ") in refused.value.marked
    )
    with pytest.raises(NothingFits, match=f"{option} auto leaves sequences whole: .*{why}"):
        zerokit.plan(**{**asked, "vram": "12GiB"}, **{option: "auto"})


def test_sharing_sequences_takes_time_for_keys_and_values() -> None:
    """Keys and values of 131,072 tokens of a layer in bf16 are 0.5 GiB, gradients twice as much in fp32."""
    job = {"model": "llama-3.1-8b", "gpus": 4, "gpu": "h200", "seq_len": 131_072, "engine": "fsdp2", "cp": 4}
    shared = zerokit.estimate(**job, checkpointing="full").planned.candidate.time
    alone = zerokit.estimate(**{**job, "cp": 1, "gpus": 4}, checkpointing="full").planned.candidate.time
    crossed = 32 * (3 * 0.75 + 4 * 0.5 * 0.75) * 0.5 * 2**30 / 450e9  # bytes/s of NVLink 4
    assert shared.parts["link"] - alone.parts["link"] > 0.9 * crossed
    assert shared.step_seconds < alone.step_seconds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zero": 3}, "⟨zero⟩ is DeepSpeed's"),
        ({"reduce_bucket": 10**8}, "⟨reduce_bucket⟩ is DeepSpeed's"),
        ({"set": ["grad_accum_dtype=fp32"]}, "⟨set⟩ sets values of DeepSpeed's"),
        ({"tp": 4}, "tensor parallel 4 takes all GPUs: Transformers leaves FSDP2 out"),
        ({"tp": 2, "precision": "fp16"}, "not modelled for tensor parallel with fp16"),
        ({"sp": "auto"}, "⟨sp⟩ auto: not planned with ⟨engine⟩ fsdp2; use ⟨engine⟩ deepspeed"),
        ({"cp": 2, "tp": 2}, "no context parallelism beside tensor parallelism"),
        ({"cp": 2, "attention": "flash_attention_2"}, "use sdpa"),
        ({"pipeline_module": True}, "⟨pipeline_module⟩: not planned with ⟨engine⟩ fsdp2"),
        ({"offload_optimizer": "cpu", "offload_param": "none"}, "together"),
        ({"inference": True}, "serving is not planned"),
    ],
)
def test_what_is_not_fsdp2s_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        zerokit.plan(**JOB, engine="fsdp2", **options)
    assert said in refused.value.marked


def test_sizes_and_estimates_are_of_one_engine() -> None:
    with pytest.raises(InputError, match="sizes are of one engine"):
        zerokit.size(model="llama-3.1-8b", engine="auto")
    job = {key: value for key, value in JOB.items() if key != "global_batch"}
    with pytest.raises(InputError, match="an estimate is of one strategy"):
        zerokit.estimate(**job, engine="auto")


def test_fewest_gpus_of_fsdp2_hold_its_own_plan() -> None:
    sized = zerokit.size(model="llama-3.1-8b", engine="fsdp2", gpu="a100-80gb", method="full")
    row = next(row for row in sized.to_dict()["sizes"] if not row["offload_allowed"])
    job = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "engine": "fsdp2", "offload_optimizer": "none"}
    assert zerokit.plan(**job, gpus=row["gpus"]).chosen.estimate.fits
    with pytest.raises(NothingFits):
        zerokit.plan(**job, gpus=row["gpus"] - 1)


@pytest.mark.parametrize("model", ["gemma-4-e4b", "granite-4.0-h-tiny", "lfm2-1.2b", "llama-4-scout-17b-16e"])
def test_context_parallel_is_refused_where_layers_attend_otherwise(model: str) -> None:
    """As Accelerate refuses each (1.15, big_modeling.py:819), by what its configuration says or implies."""
    job = {**JOB, "gpus": 8, "model": model}
    with pytest.raises(InputError, match="full causal attention alone"):
        zerokit.plan(**job, engine="fsdp2", cp=2)
