"""What a rehearsal says would lower its peak."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerokit.rehearsal.changes import CHECKPOINTING, changes, next_steps
from zerokit.rehearsal.result import Change, HeldAtPeak, RankMemory, Rehearsal
from zerokit.script.entry_points import Target

GIB = 1 << 30


def rank(peak_phase: str = "backward", **live: float) -> RankMemory:
    """With so many GiB of each kind live at its peak."""
    rows = tuple(
        HeldAtPeak(what=what.replace("_", " "), module="", location="", bytes=int(size * GIB))
        for what, size in live.items()
    )
    peak = sum(row.bytes for row in rows)
    phases = {"forward": peak // 2, "backward": peak // 2} | {peak_phase: peak}
    return RankMemory(
        rank=0, peak_allocated_bytes=peak, peak_phase=peak_phase, peak_reserved_bytes=peak + 3 * GIB,
        smallest_reserved_bytes=peak + 2 * GIB, host_bytes=0, written_bytes=0, phases=phases, at_peak=rows,
        expandable_segments=True,
    )  # fmt: skip


def told(
    found: RankMemory, gpus: int = 1, engine: dict[str, object] | None = None, **more: Any
) -> dict[str, float]:
    return {change.what: change.saves_bytes / GIB for change in changes(found, gpus, engine, **more)}


def test_tensor_parallel_ranks_hold_no_copies_to_divide() -> None:
    states = rank(optimizer_states=8, activations=1)
    engine = {"zero_stage": 0, "gradient_checkpointing": True, "micro_batch": 1}
    words = "ZeRO-1: optimizer states and fp32 weights divided over 4 GPUs"
    assert told(states, 8, {**engine, "tensor_parallel": 2})[words] == 6
    assert not [what for what in told(states, 2, {**engine, "tensor_parallel": 2}) if "ZeRO-" in what]


def test_activations_shrink_with_the_batch_or_are_recomputed() -> None:
    held = rank(activations=20, model=4)
    engine = {"zero_stage": 2, "micro_batch": 4, "gradient_checkpointing": False}
    assert told(held, engine=engine) == {
        "activation checkpointing (a Trainer's --gradient_checkpointing True): of each layer only its input "
        "is kept": 20,
        "half the batch size per GPU (2 in place of 4)": 10,
    }
    checkpointed = engine | {"gradient_checkpointing": True, "micro_batch": 1}
    shorter = "half the sequence length (the batch size per GPU is 1 already)"
    assert told(held, engine=checkpointed) == {shorter: 10}
    assert told(held, batch_rows=1)[shorter] == 10
    assert told(held, batch_rows=1, checkpointing=True) == {shorter: 10}  # without an engine
    # checkpointing recomputes layers, not the loss behind them
    # what backward holds of the batch shrinks with it, and ZeRO divides none of it
    passing = told(rank(gradients=4, backward_temporaries=20), 2, {"zero_stage": 1, "micro_batch": 2})
    assert passing["half the batch size per GPU (1 in place of 2)"] == 10
    assert passing["ZeRO-2: gradients divided over 2 GPUs"] == 2
    with_loss = told(rank(activations=20, loss=4), engine=engine)
    assert list(with_loss.values()) == [20, 12]
    assert told(held, batch_rows=3)["half the batch size per GPU (1 in place of 3)"] == 10


def test_16_bits_halve_the_activations_of_what_computes_in_fp32() -> None:
    held = rank(activations=20, model=4, loss=3)
    in_bf16 = "bf16 in place of fp32 (a Trainer's --bf16 True, or torch.autocast)"
    assert told(held, halved="bf16")[in_bf16] == 10
    assert in_bf16 not in told(held)


def test_fsdp2_moves_all_that_it_divides_to_the_host_together() -> None:
    held = rank(optimizer_states=8, model=4, activations=8)
    offload = "(Accelerate's `fsdp_offload_params`, or `CPUOffloadPolicy` of `fully_shard`)"
    said = told(held, 2, {"offload_optimizer": "none"}, fully_sharded=True)
    assert said[f"weights, gradients and optimizer states in host memory {offload}"] == 12
    assert not any("ZeRO" in what or "DeepSpeed" in what for what in said)
    assert not any(
        offload in what for what in told(held, 2, {"offload_optimizer": "cpu"}, fully_sharded=True)
    )


def test_zero_divides_what_its_stage_leaves_whole() -> None:
    held = rank(optimizer_states=8, engine_and_its_buffers=4, gradients=2, model=2)
    assert told(held, 4, {"zero_stage": 0}) == {
        "ZeRO-3: optimizer states, fp32 weights, gradients and weights divided over 4 GPUs": 12,
        "optimizer states and fp32 weights in host memory (`offload_optimizer`)": 12,
        "ZeRO-2: optimizer states, fp32 weights and gradients divided over 4 GPUs": 10.5,
        "ZeRO-1: optimizer states and fp32 weights divided over 4 GPUs": 9,
    }
    offloaded = {"zero_stage": 2, "offload_optimizer": "cpu"}
    assert told(held, 4, offloaded) == {"ZeRO-3: weights divided over 4 GPUs": 1.5}
    above_1 = told(held, 4, offloaded | {"zero_stage": 1})
    assert above_1["ZeRO-3: gradients and weights divided over 4 GPUs"] == 3
    assert told(held, 1, {"zero_stage": 2, "offload_optimizer": "cpu"}) == {}
    # without an engine what init allocates is DDP's, and stays
    assert told(held, 1)["optimizer states in host memory (DeepSpeed's `offload_optimizer`)"] == 8


def test_frozen_weights_are_worth_4_bits_and_stay_when_optimizer_states_move() -> None:
    lora = rank(frozen_parameters=16, optimizer_states=1, activations=4)
    assert told(lora, engine={"zero_stage": 0, "micro_batch": 1, "gradient_checkpointing": True}) == {
        # 4 bits and 0.127 of constants for each 16 (QLoRA, arXiv 2305.14314, section 3)
        "the frozen weights in 4 bits (QLoRA: `load_in_4bit` of BitsAndBytesConfig)": pytest.approx(
            16 - 4 - 0.127
        ),
        "half the sequence length (the batch size per GPU is 1 already)": 2,
        "optimizer states and fp32 weights in host memory (`offload_optimizer`)": 1,
    }
    assert told(lora, 2, {"zero_stage": 2})["ZeRO-3: weights divided over 2 GPUs"] == 8
    # what bitsandbytes leaves in 16 bits, embeddings and the head, has no 4 bits
    assert told(rank(quantised_parameters=5, frozen_parameters=2), engine={"zero_stage": 0}) == {}


def test_a_script_that_stopped_before_training_has_no_peak_to_lower() -> None:
    loading = rank("load", model=6)
    trained = told(loading)
    stopped = told(replace(loading, phases={"load": loading.peak_allocated_bytes}))
    assert (list(trained), stopped) == (
        ["loading the weights in 16 bits, or straight to where they stay"], {},
    )  # fmt: skip
    assert list(told(rank("load", quantised_parameters=6))) == [
        "loading the quantised weights straight to where they stay"
    ]


def test_a_peak_outside_of_training_comes_first_where_it_is_what_counts() -> None:
    (first, *_) = told(rank("eval", evaluation=30, model=2)).items()
    assert first == (
        "a smaller batch in forwards without gradients (evaluation, or a reference model), or outputs "
        "of an evaluation moved to the host (`eval_accumulation_steps`)",
        16,
    )


def test_fragmentation_is_a_matter_of_the_allocators_setting() -> None:
    held = rank(model=10)
    setting = (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which `zerokit launch` sets: less is reserved and "
        "not used"
    )
    assert told(replace(held, expandable_segments=False)) == {setting: 2}
    assert told(held) == {}
    assert held.fragmented_bytes == 2 * GIB


def test_nothing_is_told_of_nothing() -> None:
    assert told(rank()) == {}


TOO_LARGE = Rehearsal(
    complete=True, fits=False, min_vram_bytes=90 * GIB, vram_bytes=80 * GIB, gpu="a100-80gb", gpus=1, steps=3,
    repeats=True, ranks=(), bf16=True, changes=(Change(what=CHECKPOINTING, saves_bytes=24 * GIB),),
)  # fmt: skip
PARSES = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n" + (
    "Trainer(args=HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]).train()\n"
)
FIXED = (
    "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()\n"
)


def named(done: Rehearsal, source: str = PARSES, *arguments: str) -> dict[str, str]:
    """Commands, by what they are for."""
    Path("train.py").write_text(source)
    target = Target(script="train.py", module=None, arguments=arguments)
    typed = ("rehearse", "--gpu", "a100-80gb", "train.py", *arguments)
    steps = next_steps(done, target, ("--gpus", "1", "--gpu", "a100-80gb"), typed)
    return {step.purpose: shlex.join(step.words) for step in steps}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_scripts_own_checkpointing_comes_before_a_plan() -> None:
    assert named(TOO_LARGE, PARSES, "--bf16", "True") == {
        "with activation checkpointing it may fit, which another rehearsal tells":
            "zerokit rehearse --gpu a100-80gb train.py --bf16 True --gradient_checkpointing True",
        "which batch size, checkpointing, ZeRO stage and offload fit under DeepSpeed, with its fp32 master "
        "weights": "zerokit plan --gpus 1 --gpu a100-80gb -- train.py --bf16 True",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("done", "source", "arguments"),
    [
        (TOO_LARGE, FIXED, ()),  # which has no options
        (TOO_LARGE, PARSES, ("--gradient_checkpointing", "False")),  # which the user wants
        (replace(TOO_LARGE, min_vram_bytes=110 * GIB), PARSES, ()),  # of which it saves too little
        (replace(TOO_LARGE, changes=()), PARSES, ()),  # layers recompute already
    ],
)
def test_checkpointing_is_named_only_where_the_script_takes_it_and_it_helps(
    done: Rehearsal, source: str, arguments: tuple[str, ...]
) -> None:
    (purpose,) = named(done, source, *arguments)
    assert purpose.startswith("which batch size")


def test_a_plan_is_made_without_the_scripts_deepspeed_file() -> None:
    done = replace(TOO_LARGE, changes=(), engine={"zero_stage": 2}, config_files=("ds.json",))
    for words in (("--deepspeed", "ds.json"), ("--deepspeed=ds.json",)):
        assert named(done, PARSES, *words, "--bf16", "True") == {
            "which batch size, checkpointing, ZeRO stage and offload fit in place of ds.json":
                "zerokit plan --gpus 1 --gpu a100-80gb -- train.py --bf16 True"
        }  # fmt: skip
    assert named(done, PARSES) == {}  # a file that no argument names


def test_a_plan_that_is_here_is_not_replaced() -> None:
    done = replace(TOO_LARGE, changes=())
    for taken in ("zerokit-plan", "zerokit-plan-train"):
        Path(taken).mkdir()
        out = "zerokit-plan-train" if taken == "zerokit-plan" else "zerokit-plan-train-2"
        (command,) = named(done).values()
        assert f" --out {out} -- train.py" in command


def test_nothing_is_named_where_it_fits_or_no_plan_reaches_the_script() -> None:
    assert named(replace(TOO_LARGE, fits=True)) == {} == named(replace(TOO_LARGE, fits=None))
    assert named(TOO_LARGE, "import torch\ntorch.nn.Linear(2, 2)") == {}
    assert not any("plan" in command for command in named(replace(TOO_LARGE, fully_sharded=True)).values())
