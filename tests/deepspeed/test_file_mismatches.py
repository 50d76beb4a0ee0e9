"""Where a script's arguments and a DeepSpeed file differ, against what Transformers itself refuses."""

from __future__ import annotations

import copy
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import needs
from zerokit.cli import run
from zerokit.script.arguments import ScriptOptions
from zerokit.script.file_mismatches import added_arguments, in_words, key_of, of_trainer
from zerokit.script.reader import read_script

needs("deepspeed")
transformers = pytest.importorskip("transformers")

PARSES = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\nTrainer(args=args).train()\n"
)
FILE = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW",
                  "params": {"lr": 3e-5, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"warmup_max_lr": 3e-5, "warmup_num_steps": 100, "total_num_steps": 1000}},
}  # fmt: skip
AGREES = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
          "--max_grad_norm", "0.5", "--learning_rate", "3e-05", "--weight_decay", "0.1", "--bf16", "True",
          "--adam_beta2", "0.95", "--warmup_steps", "100", "--max_steps", "1000")  # fmt: skip


def options(folder: Path, text: str, *arguments: str) -> ScriptOptions:
    script = folder / "train.py"
    script.write_text(text)
    facts = read_script(script, None)
    return ScriptOptions.read(facts, facts.style, arguments)


def refused(
    config: dict[str, Any], *arguments: str, kind: str = "transformers.TrainingArguments"
) -> set[str]:
    """Keys on which Transformers ends a run with these arguments, of 1,000 steps and one rank."""
    from transformers import HfArgumentParser
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    package, _, name = kind.rpartition(".")
    words = ["--output_dir", "out", "--max_steps", "1000", "--use_cpu", "True", *arguments]
    argument_class = getattr(importlib.import_module(package), name)
    (parsed,) = HfArgumentParser(argument_class).parse_args_into_dataclasses(words)
    file = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    try:
        file.trainer_config_process(parsed, auto_find_batch_size=parsed.auto_find_batch_size)
        file.trainer_config_finalize(parsed, None, 1000)
    except ValueError as error:
        return set(re.findall(r"^- ds (\S+?)=", str(error), re.MULTILINE))
    return set()


@pytest.mark.parametrize(
    ("changed", "arguments"),
    [
        ({}, ()),
        ({}, AGREES),
        ({}, AGREES[:6]),
        ({}, ("--bf16_full_eval", "True")),
        ({}, ("--auto_find_batch_size", "True")),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, ("--bf16", "True")),
        ({"bf16": {"enabled": False}}, ("--bf16", "True")),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-6}}}, ()),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}, ()),
    ],
)  # fmt: skip
def test_the_keys_are_those_that_transformers_refuses(
    changed: dict[str, Any], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    config = FILE | changed
    script = options(tmp_path, PARSES, "--output_dir", "out", "--max_steps", "1000", *arguments)
    found = of_trainer(script, config)
    assert {key_of(one) for one, _ in found} == refused(config, *arguments)


def test_what_is_named_to_add_makes_them_agree(tmp_path: Path) -> None:
    script = options(tmp_path, PARSES, "--output_dir", "out")
    added = added_arguments(of_trainer(script, FILE))
    assert refused(FILE) and not refused(FILE, *added)
    assert not of_trainer(options(tmp_path, PARSES, "--output_dir", "out", *added), FILE)


@pytest.mark.parametrize("name", ["SFTConfig", "DPOConfig"])
def test_of_trls_classes_what_was_given_is_compared(name: str, tmp_path: Path) -> None:
    """Their own defaults are a rehearsal's to tell."""
    pytest.importorskip("trl")
    parses = (
        f"from trl import {name}, TrlParser\nfrom transformers import Trainer\n"
        f"args, = TrlParser({name}).parse_args_and_config()\nTrainer(args=args).train()\n"
    )
    typed = ("--output_dir", "out", "--learning_rate", "0.5", "--per_device_train_batch_size", "8")
    found = {key_of(one) for one, _ in of_trainer(options(tmp_path, parses, *typed), FILE)}
    rates = {"optimizer.params.lr", "scheduler.params.warmup_max_lr"}
    assert found == {"train_micro_batch_size_per_gpu", *rates}
    assert found < refused(FILE, *typed, kind=f"trl.{name}")


def test_what_a_script_must_be_given_is_known_without_a_script() -> None:
    needed = added_arguments(of_trainer(None, FILE))
    assert not refused(FILE, *needed)
    for at in range(0, len(needed), 2):  # --max_steps is given below, and decides the steps all the same
        assert refused(FILE, *needed[:at], *needed[at + 2 :]) or needed[at] == "--max_steps"
    assert of_trainer(None, {"optimizer": {"params": {"lr": "auto", "weight_decay": 0.0}}}) == []


def test_arguments_that_the_script_makes_itself(tmp_path: Path) -> None:
    makes = (
        "from transformers import Trainer, TrainingArguments\n"
        "args = TrainingArguments('out', per_device_train_batch_size=8, learning_rate=3e-5{})\n"
        "Trainer(args=args).train()\n"
    )
    found = {key_of(one): one for one, _ in of_trainer(options(tmp_path, makes.format("")), FILE)}
    assert "train.py sets per_device_train_batch_size 8" in in_words(
        found["train_micro_batch_size_per_gpu"], FILE
    )
    assert "bf16.enabled" in found and "optimizer.params.lr" not in found
    assert not any(one.edit for one in found.values())  # nobody parses them
    computed = makes.format(", bf16=is_new()")
    assert "bf16.enabled" not in {key_of(one) for one, _ in of_trainer(options(tmp_path, computed), FILE)}
    hidden = {key_of(one) for one, _ in of_trainer(options(tmp_path, makes.format(", **more")), FILE)}
    assert hidden == set()  # auto_find_batch_size may be among them


def test_what_nobody_can_know_before_the_run_is_not_spoken_of(tmp_path: Path) -> None:
    own = PARSES.replace("args, =", "class Mine(TrainingArguments):\n    learning_rate: float = f()\nargs, =")
    keys = {key_of(one) for one, _ in of_trainer(options(tmp_path, own), FILE)}
    assert "optimizer.params.lr" not in keys and "bf16.enabled" in keys


def test_launch_stops_and_a_file_among_the_scripts_arguments_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(FILE))
    Path("train.py").write_text(PARSES)
    words = ["launch", "--dry-run", "--device", "cpu", "--deepspeed", "ds.json"]

    def said(code: int, *command: str) -> str:
        assert run([*command]) == code
        return " ".join(capsys.readouterr().err.split())

    text = said(2, *words, "train.py")
    assert "--per_device_train_batch_size 4" in text and "--bf16 True" in text and "--use_cpu True" in text
    assert "bf16.enabled true, but bf16 is False by default" in text
    assert 'write "auto" in ds.json, and the Trainer fills it; or give the script --' in text
    assert "warning: ds.json: the script's TrainingArguments" in said(
        0, *words, "--accept-mismatch", "train.py"
    )
    assert "contradict" not in said(0, *words, "train.py", *AGREES)
    own = ("launch", "--dry-run", "--device", "cpu", "--no-plan", "train.py", "--deepspeed", "ds.json")
    assert "warning: ds.json: the script's TrainingArguments" in said(0, *own)
