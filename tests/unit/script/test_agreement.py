"""A script held to its plan: what contradicts it is named with both values."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import zerokit
from tests.support.ranks import write_script
from tests.support.scripts_read import (
    FIXED_TRAINER,
    NO_TRAINER,
    PLANNED,
    RAW,
    TRAINER,
    agreed,
    held,
    joined,
    options,
)
from zerokit import cli
from zerokit.errors import InputError
from zerokit.launcher.plan_agreement import contradictions
from zerokit.notes import with_level
from zerokit.script.agreement import obstacles, refuse_unplannable
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script

HIDDEN = """
    from transformers import Trainer, TrainingArguments
    Trainer(args=TrainingArguments(**settings)).train()
"""
HIDDEN_BESIDE_A_MODEL = """
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512))
    Trainer(model, TrainingArguments(**settings)).train()
"""
OWN_PARSER = """
    import argparse
    from transformers import Trainer, TrainingArguments
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--grad_accum", type=int)
    args = parser.parse_args()
    arguments = TrainingArguments("out", per_device_train_batch_size=args.batch_size, bf16=True,
                                  gradient_accumulation_steps=args.grad_accum, gradient_checkpointing=True)
    Trainer(args=arguments).train()
"""


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--per_device_train_batch_size 8 --bf16 False",
         ["--per_device_train_batch_size 8, but the plan has per_device_train_batch_size 4",
          "--bf16 False, but the plan trains in bf16"]),
        (TRAINER, "--no_gradient_checkpointing", ["--no_gradient_checkpointing, but the plan has"]),
        # argparse takes the beginning of an option for it, where no other begins so
        (TRAINER, "--per_device_train_b 9", ["--per_device_train_b 9, but the plan has per_device"]),
        (TRAINER, "--gradient_acc=6", ["--gradient_acc 6, but the plan has gradient_accumulation_steps"]),
        (NO_TRAINER, "--grad_accum_steps=4", ["--grad_accum_steps 4, but the plan has"]),
        (TRAINER, "--activation_checkpointing False", ["but the plan has gradient_checkpointing True"]),
        (NO_TRAINER, "--gradient_accumulation_steps=4", ["--gradient_accumulation_steps 4, but the plan"]),
        (FIXED_TRAINER, "", ["gradient_accumulation_steps is 1 by default", "bf16 is False by default"]),
        (FIXED_TRAINER.replace("size=4", "size=3"), "",
         ["t.py sets per_device_train_batch_size 3", "gradient_acc", "bf16"]),
        (HIDDEN, "", []),
        (HIDDEN_BESIDE_A_MODEL, "", []),
        # no beginning of an option that the script's own parser does not have
        (OWN_PARSER, "--grad 0 --batch 2", ["--batch 2, but the plan has per_device_train_batch_size 4"]),
        (OWN_PARSER, "--grad 2", []),  # the batch is given by its --batch-size
        # a script without the option ends there, whatever the plan
        ("import argparse, deepspeed\np = argparse.ArgumentParser()\np.parse_args()\n"
         "deepspeed.initialize()", "--micro_batch 9", []),
        # what is not argparse takes an option by its whole name alone
        ("import deepspeed, fire; deepspeed.initialize(config='ds.json')", "--micro 9", []),
    ],
)  # fmt: skip
def test_a_contradiction_names_both_values(
    tmp_path: Path, text: str, arguments: str, said: list[str]
) -> None:
    facts = read_script(write_script(tmp_path, text, "t.py"), None)
    found = ScriptOptions.read(facts, facts.style, tuple(arguments.split()))
    conflicts = contradictions(found, PLANNED, added=True)
    assert len(conflicts) == len(said), conflicts
    assert all(text in conflict for text, conflict in zip(said, conflicts, strict=True))


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--deepspeed ds.json", "--deepspeed ds.json: "),
        (
            FIXED_TRAINER.replace("size=4", "size=4, deepspeed='ds.json'"),
            "",
            "train.py sets deepspeed ds.json: ",
        ),
        (RAW, "--deepspeed --deepspeed_config=ds.json", "--deepspeed_config ds.json: "),
        (TRAINER, "--bf16 True", None),
        (RAW, "--deepspeed", None),
        (NO_TRAINER, "", None),
    ],
)
def test_a_file_of_the_scripts_own_is_refused_where_plans_are_compared(
    text: str, arguments: str, said: str | None, tmp_path: Path
) -> None:
    found = options(tmp_path, text, *arguments.split())
    if said is None:
        refuse_unplannable(found, "deepspeed")
        return
    with pytest.raises(InputError) as refused:
        refuse_unplannable(found, "deepspeed")
    assert said in str(refused.value) and "leave it out" in str(refused.value)


@pytest.mark.parametrize("text", [TRAINER, NO_TRAINER])
def test_a_pipeline_is_none_for_a_trainer_or_accelerate(text: str, tmp_path: Path) -> None:
    chosen = {"micro_batch": 8, "gradient_accumulation": 1, "pipeline_parallel": 4}
    with pytest.raises(InputError, match=r"pipeline of 4 stages, which .* cannot run; plan again with"):
        agreed(options(tmp_path, text), held(chosen), accept_mismatch=True)


@pytest.mark.parametrize(("cluster", "advised"), [
    ({"gpu": "t4"}, " --global-batch 16 --out plan -- t.py --gradient_accumulation_steps 4`, or run it"),
    ({"gpu": "cpu"}, "plan.yaml --gradient-accumulation 4 --global-batch 16 --out plan`, or run it"),
])  # fmt: skip
def test_planning_again_is_advised_by_what_is_not_refused(
    tmp_path: Path, cluster: dict[str, str], advised: str
) -> None:
    """No script is rehearsed for CPU ranks."""
    chosen = {"micro_batch": 4, "gradient_accumulation": 2, "data_parallel": 2}
    script = options(tmp_path, NO_TRAINER, "--gradient_accumulation_steps", "4")
    with pytest.raises(InputError) as refused:
        agreed(script, held(chosen, {"gpus": "2"}, cluster=cluster), on_cpu=True)
    assert advised in str(refused.value)


def test_fp16_is_neither_planned_for_cpu_ranks_nor_joined_by_bf16(tmp_path: Path) -> None:
    """DeepSpeed refuses it there, and TrainingArguments refuse both at once."""
    chosen = {"micro_batch": 8, "gradient_accumulation": 1, "data_parallel": 2}
    asked = options(tmp_path, TRAINER, "--fp16", "True")
    plan = held(chosen, {"gpus": "2"})
    with pytest.raises(InputError) as refused:
        agreed(asked, plan, on_cpu=True)
    assert "--fp16 True, but the plan trains in bf16" in str(refused.value)
    assert "plan again" not in str(refused.value) and "change it, or run it all the same" in str(
        refused.value
    )
    added = agreed(asked, plan, on_cpu=True, accept_mismatch=True).added
    assert "--bf16" not in added and "--per_device_train_batch_size" not in added  # 8 is the Trainer's own


def test_a_raw_scripts_own_file_is_held_to_the_plan(tmp_path: Path) -> None:
    """It decides in place of the plan's, as a Trainer's does."""
    file = tmp_path / "ds.json"
    found = options(tmp_path, RAW, "--deepspeed_config", str(file))
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    chosen = {"micro_batch": 4, "gradient_accumulation": 2}
    for stage, contradicts in ((3, True), (2, False)):
        file.write_text(f'{{"zero_optimization": {{"stage": {stage}}}}}')
        plan = held(chosen, folder=tmp_path / "plan")
        got = agreed(found, plan, config, accept_mismatch=True)
        told = f"--deepspeed_config {file}: stage 3, but the plan has 2"
        assert any(told in note for note in got.notes) is contradicts, got.notes


def test_a_plan_for_a_file_of_the_scripts_own_is_made_by_the_command_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan with the script would refuse the file."""
    zerokit.plan(params="125m", gpus=2, gpu="t4", micro_batch=4, zero="3", out=tmp_path / "plan")
    script, file = write_script(tmp_path, TRAINER), tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}')
    words = ["emit", "sbatch", "--plan", str(tmp_path / "plan"), str(script), "--deepspeed", str(file)]
    assert cli.run(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "stage 2, but the plan has 3 - " in said
    command = shlex.split(said.partition("plan again for what it does: `")[2].partition("`")[0])
    assert command[:2] == ["zerokit", "plan"] and cli.run(command[1:]) == 0
    assert cli.run(words) == 0


def test_a_file_in_the_place_of_all_arguments_is_held_to_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": true}')
    found = options(tmp_path, TRAINER, str(path))
    assert found.additions(PLANNED) == ()
    batch, checkpointing = contradictions(found, PLANNED, added=True)
    assert f"{path}: per_device_train_batch_size: 8, but the plan has" in batch
    assert f"{path} has no gradient_checkpointing, whose default is False" in checkpointing
    # LLaMA-Factory's way to change a key of its file
    changed = options(tmp_path, TRAINER, str(path), "per_device_train_batch_size=4")
    assert len(contradictions(changed, PLANNED, added=True)) == 1


def test_an_option_of_the_scripts_own_gets_the_batch(tmp_path: Path) -> None:
    assert joined(options(tmp_path, OWN_PARSER)) == "--batch-size 4 --grad_accum 2"


FIXED = """
    from transformers import Trainer, TrainingArguments
    Trainer(args=TrainingArguments('o', {})).train()
"""
OWN = RAW.replace("initialize()", "initialize(config={'train_batch_size': 8})")
WITH_FSDP = FIXED.format("fsdp='full_shard', bf16=True")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (FIXED.format("fsdp='full_shard'"), "", "train.py sets fsdp full_shard: FSDP and"),
        (FIXED.format("fsdp=''"), "", None),
        (TRAINER, "--fsdp full_shard", "--fsdp full_shard: FSDP and DeepSpeed exclude each other; leave it"),
        (TRAINER, "--bf16 True", None),
        (OWN, "", ":7: config={'train_batch_size': 8}: it gives deepspeed.initialize a configuration of its"),
        (RAW, "", None),
    ],
)  # fmt: skip
def test_what_no_plan_gets_past_is_named(tmp_path: Path, text: str, arguments: str, said: str | None) -> None:
    script = options(tmp_path, text, *arguments.split())
    found = obstacles(script)
    if said is None:
        assert found == []
        refuse_unplannable(script, "deepspeed")
        return
    assert len(found) == 1 and said in found[0], found
    with pytest.raises(InputError, match=r"no plan reaches the script: .* to plan, or go on without a plan"):
        refuse_unplannable(script, "deepspeed")


def test_a_launch_stops_and_says_how_to_do_without_a_plan(tmp_path: Path) -> None:
    """It does not also advise to plan again, or to accept a mismatch: neither helps."""
    script = options(tmp_path, WITH_FSDP)
    chosen = {"micro_batch": 4, "gradient_accumulation": 1}
    with pytest.raises(InputError) as refused:
        agreed(script, held(chosen), {})
    assert str(refused.value).endswith("leave it out, or launch it without a plan (no_plan=True)")
    notes = agreed(script, held(chosen), {}, accept_mismatch=True).notes
    assert any("warning: no plan reaches the script: " in with_level(note) for note in notes)
