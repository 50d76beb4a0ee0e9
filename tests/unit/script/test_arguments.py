"""How a script is told of a plan's batch and checkpointing: only by what it declares or the user wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ranks import write_script
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.strategy import Strategy
from zerokit.script.arguments import PlannedValues, ScriptOptions
from zerokit.script.reader import read_script
from zerokit.search.space import Pins

RAW = """
    import argparse, deepspeed
    parser = argparse.ArgumentParser()
    deepspeed.add_config_arguments(parser)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--micro-batch-size", type=int)
    deepspeed.initialize()
"""
PLAIN_RAW = """
    import argparse, deepspeed
    parser = argparse.ArgumentParser()
    deepspeed.add_config_arguments(parser)
    deepspeed.initialize()
"""
TRAINER = """
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(args=args).train()
"""
FIXED_TRAINER = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(per_device_train_batch_size=4, gradient_checkpointing=True)
    Trainer(args=args).train()
"""


def options(folder: Path, text: str, *given: str) -> ScriptOptions:
    facts = read_script(write_script(folder, text), None)
    return ScriptOptions.read(facts, facts.style, given)


def strategy(checkpointing: str = "full", precision: str = "bf16") -> Strategy:
    settings = DeepSpeedSettings(
        precision=precision, micro_batch=4, gradient_accumulation=2, gradient_clipping=1.0
    )
    return Strategy(settings=settings, data_parallel=2, checkpointing=checkpointing)


def test_declared_options_are_given_and_the_users_come_first(tmp_path: Path) -> None:
    found = options(tmp_path, RAW, "--lr", "0.1", "--", "data.txt")
    assert found.arguments(strategy()) == (
        "--lr", "0.1", "--micro-batch-size", "4", "--gradient-checkpointing", "--", "data.txt",
    )  # fmt: skip
    assert "--gradient-checkpointing" not in found.arguments(strategy("none"))
    assert found.pins(Pins()) == (Pins(), ())


def test_what_the_user_gives_is_fixed_and_not_given_twice(tmp_path: Path) -> None:
    found = options(tmp_path, RAW, "--gradient-checkpointing", "--micro-batch-size=2")
    pins, notes = found.pins(Pins())
    assert (pins.checkpointing, pins.micro_batch) == ("full", 2) and len(notes) == 2
    assert found.arguments(strategy()) == found.given


def test_placeholders_are_filled_in(tmp_path: Path) -> None:
    given = (
        "--bs={micro_batch}",
        "--acc",
        "{gradient_accumulation}",
        "--ckpt",
        "{checkpointing}",
        '{"a": 1}',
    )
    found = options(tmp_path, PLAIN_RAW, *given)
    assert found.pins(Pins()) == (Pins(), ())
    assert found.arguments(strategy()) == ("--bs=4", "--acc", "2", "--ckpt", "true", '{"a": 1}')
    assert found.arguments(strategy("none"))[4] == "false"


def test_a_script_that_cannot_be_told_fixes_checkpointing(tmp_path: Path) -> None:
    pins, notes = options(tmp_path, PLAIN_RAW).pins(Pins())
    assert pins.checkpointing == "none" and "no option" in notes[0]
    enabled = PLAIN_RAW + "    model.gradient_checkpointing_enable()\n"
    assert options(tmp_path, enabled).pins(Pins())[0].checkpointing == "full"
    # what the user pinned stays
    assert options(tmp_path, PLAIN_RAW).pins(Pins(checkpointing="full")) == (Pins(checkpointing="full"), ())


def test_a_trainer_that_parses_its_arguments_gets_them(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "--output_dir", "out")
    assert found.pins(Pins()) == (Pins(search_tensor=True), ())
    assert found.arguments(strategy()) == (
        "--output_dir", "out", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
        "--bf16", "True", "--gradient_checkpointing", "True",
    )  # fmt: skip
    assert "--bf16" not in found.arguments(strategy(precision="fp32"))
    placed = options(tmp_path, TRAINER, "--per_device_train_batch_size", "{micro_batch}")
    assert placed.arguments(strategy())[:2] == ("--per_device_train_batch_size", "4")
    assert placed.arguments(strategy()).count("--per_device_train_batch_size") == 1


def test_a_trainer_fed_from_a_file_is_not_added_to(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "arguments.json")
    assert found.arguments(strategy()) == ("arguments.json",)


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("", "fp32"),
        ("bf16=True", "bf16"),
        ("fp16=True", "fp16"),
        ("bf16=False", "fp32"),
        ("bf16=can()", "auto"),
    ],
)
def test_a_trainer_decides_its_precision(tmp_path: Path, arguments: str, precision: str) -> None:
    text = FIXED_TRAINER.replace("gradient_checkpointing=True", arguments)
    assert options(tmp_path, text).precision("auto")[0] == precision
    assert options(tmp_path, text).precision("fp16") == ("fp16", ())
    assert (
        options(tmp_path, TRAINER).precision("auto")
        == options(tmp_path, RAW).precision("auto")
        == ("auto", ())
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIXED_TRAINER, Pins(micro_batch=4, gradient_accumulation=1, checkpointing="full")),
        # the Trainer's defaults
        (
            FIXED_TRAINER.replace("per_device_train_batch_size=4, gradient_checkpointing=True", ""),
            Pins(micro_batch=8, gradient_accumulation=1, checkpointing="none"),
        ),
        # computed: only the run will tell
        (
            FIXED_TRAINER.replace("size=4", "size=compute()"),
            Pins(micro_batch=None, gradient_accumulation=1, checkpointing="full"),
        ),
    ],
)
def test_a_trainer_without_options_fixes_its_batch(tmp_path: Path, text: str, expected: Pins) -> None:
    found = options(tmp_path, text)
    assert found.pins(Pins())[0] == replace(expected, search_tensor=True)
    assert found.arguments(strategy()) == ()


# ---- what launch adds, and where it stops

PLANNED = PlannedValues(
    micro_batch=4, gradient_accumulation=2, precision="bf16", checkpointing="full", gradient_clipping=0.5
)
ALPACA = """
    import transformers
    from dataclasses import dataclass, field
    @dataclass
    class TrainingArguments(transformers.TrainingArguments):
        optim: str = field(default="adamw_torch")
        per_device_train_batch_size: int = field(default=4)
    parser = transformers.HfArgumentParser((TrainingArguments,))
    (args,) = parser.parse_args_into_dataclasses()
    transformers.Trainer(args=args).train()
"""
NO_TRAINER = """
    import argparse
    from accelerate import Accelerator
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    Accelerator()
"""
HIDDEN = """
    from transformers import Trainer, TrainingArguments
    Trainer(args=TrainingArguments(**settings)).train()
"""


def joined(found: ScriptOptions, **changed: object) -> str:
    return " ".join(found.additions(replace(PLANNED, **changed)))  # type: ignore[arg-type]


def test_what_the_plan_decided_is_added_where_the_user_gave_nothing(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "--fp16", "False", "--gradient-accumulation-steps=2")
    assert joined(found) == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 True --gradient_checkpointing True"
    )
    assert found.conflicts(PLANNED, added=True) == []
    assert joined(options(tmp_path, TRAINER), precision="fp32", checkpointing="none") == (
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_grad_norm 0.5"
    )
    # the script's own class has the plan's batch already
    assert "--per_device_train_batch_size" not in joined(options(tmp_path, ALPACA))
    # bf16 on CPU ranks needs one more, or TrainingArguments refuse
    assert joined(found, on_cpu=True).endswith("--use_cpu True")
    assert joined(options(tmp_path, NO_TRAINER)) == (
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    )


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--per_device_train_batch_size 8 --bf16 False",
         ["--per_device_train_batch_size 8, but the plan has per_device_train_batch_size 4",
          "--bf16 False, but the plan has bf16 True"]),
        (TRAINER, "--no_gradient_checkpointing", ["--gradient_checkpointing false, but the plan has"]),
        (TRAINER, "--activation_checkpointing False", ["but the plan has gradient_checkpointing True"]),
        (NO_TRAINER, "--gradient_accumulation_steps=4", ["--gradient_accumulation_steps 4, but the plan"]),
        (FIXED_TRAINER, "", ["gradient_accumulation_steps is 1 by default", "bf16 is False by default"]),
        (FIXED_TRAINER.replace("size=4", "size=3"), "",
         ["t.py sets per_device_train_batch_size 3", "gradient_acc", "bf16"]),
        (HIDDEN, "", []),
    ],
)  # fmt: skip
def test_a_contradiction_names_both_values(
    tmp_path: Path, text: str, arguments: str, said: list[str]
) -> None:
    facts = read_script(write_script(tmp_path, text, "t.py"), None)
    found = ScriptOptions.read(facts, facts.style, tuple(arguments.split()))
    conflicts = found.conflicts(PLANNED, added=True)
    assert len(conflicts) == len(said), conflicts
    assert all(text in conflict for text, conflict in zip(said, conflicts, strict=True))


def test_a_file_in_the_place_of_all_arguments_is_held_to_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": true}')
    found = options(tmp_path, TRAINER, str(path))
    assert found.additions(PLANNED) == ()
    batch, checkpointing = found.conflicts(PLANNED, added=True)
    assert f"{path}: per_device_train_batch_size: 8, but the plan has" in batch
    assert f"{path} has no gradient_checkpointing, whose default is False" in checkpointing
    # LLaMA-Factory's way to change a key of its file
    changed = options(tmp_path, TRAINER, str(path), "per_device_train_batch_size=4")
    assert len(changed.conflicts(PLANNED, added=True)) == 1


def test_trls_own_defaults_and_configuration_file_count(tmp_path: Path) -> None:
    """bf16 and checkpointing are on in TRL's classes; its parser reads ``--config``."""
    trl = pytest.importorskip("trl")
    facts = read_script(Path(trl.__file__).parent / "scripts" / "sft.py", None)
    assert facts.style == "trainer"
    (tmp_path / "x.yaml").write_text("gradient_accumulation_steps: 4\nmax_length: 512\n")
    found = ScriptOptions.read(
        facts, facts.style, ("--dataset_name", "d", "--config", str(tmp_path / "x.yaml"))
    )
    assert found.defaults["max_length"] == 512
    assert joined(found) == "--per_device_train_batch_size 4 --max_grad_norm 0.5"
    assert joined(found, precision="fp32", checkpointing="none") == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 False --gradient_checkpointing False"
    )
    (conflict,) = found.conflicts(PLANNED, added=True)
    assert (
        "x.yaml: gradient_accumulation_steps: 4, but the plan has gradient_accumulation_steps 2" in conflict
    )
    assert found.pins(Pins())[0].micro_batch is None and found.pins(Pins())[0].gradient_accumulation == 4
