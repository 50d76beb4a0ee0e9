"""A DeepSpeed file of the user's own: what DeepSpeed refuses is said before any rank starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import needs
from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.launcher.plan_agreement import check_own_file, of_arguments, refuse_missing
from zerokit.notes import with_level
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script

GOOD = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
OLD_OFFLOAD = {"zero_optimization": {"stage": 2, "cpu_offload": True}}
"""Which made every rank of a Trainer end with ZeRORuntimeException."""


def checked(tmp_path: Path, changed: dict[str, Any], **options: Any) -> tuple[str, ...]:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(GOOD | changed))
    return check_own_file(str(path), **{"style": "trainer", "ranks": 2, "accept_mismatch": False} | options)


def test_what_deepspeed_refuses_stops_the_launch(tmp_path: Path) -> None:
    with pytest.raises(InputError) as stopped:
        checked(tmp_path, OLD_OFFLOAD | {"steps_per_print": "often", "foo": 1})
    text = str(stopped.value)
    assert "fail on 2 errors" in text and "foo" not in text
    assert f"{tmp_path}/ds.json:1:" in text and "[cpu-offload-with-scripts-optimizer]" in text
    assert f"`zerokit check --for trainer --world-size 2 {tmp_path}/ds.json` shows more" in text
    assert 'fix: write "offload_optimizer": {"device": "cpu"}' in text and "[wrong-kind]" in text
    warned = checked(tmp_path, OLD_OFFLOAD, accept_mismatch=True)
    assert any("[cpu-offload-with-scripts-optimizer]" in text for text in warned)


def test_a_key_that_deepspeed_refuses_stops_the_launch(tmp_path: Path) -> None:
    """Unlike one that it ignores, of the same rule."""
    refused = {"zero_optimization": {"stage": 3, "cpu_ofload": True}}
    with pytest.raises(InputError, match=r"DeepSpeed refuses the file.*\[unknown-key\]"):
        checked(tmp_path, refused)
    (warned,) = checked(tmp_path, refused, accept_mismatch=True)
    assert with_level(warned).startswith("warning: ")


def test_a_file_without_faults_or_without_a_reader_is_not_spoken_of(tmp_path: Path) -> None:
    assert checked(tmp_path, {}) == ()
    assert checked(tmp_path, OLD_OFFLOAD, style="none") == ()


def test_a_key_that_nobody_reads_is_a_warning(tmp_path: Path) -> None:
    (warned,) = checked(tmp_path, {"zero_optimisation": {"stage": 3}})
    assert with_level(warned) != warned and "ignores 'zero_optimisation'" in warned


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("plan.yaml", "schema: zerokit.planfile/1\n", "it is a plan: --plan "),
        (
            "a.yml",
            "deepspeed_config: {deepspeed_config_file: ds.json}\n",
            "Accelerate's YAML, which names it: ds.json",
        ),
        ("b.yml", "compute_environment: LOCAL_MACHINE\n", "this YAML names none"),
    ],
)
def test_yaml_is_told_apart_from_deepspeeds_json(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("deepspeed")
    script = tmp_path / "train.py"
    script.write_text("from accelerate import Accelerator\nAccelerator()\n")
    (tmp_path / name).write_text(text)
    words = ["launch", "--dry-run", "--device", "cpu", "--deepspeed", str(tmp_path / name), str(script)]
    assert run(words) == 2
    said_in_all = " ".join(capsys.readouterr().err.split())
    assert "--deepspeed takes DeepSpeed's JSON; " in said_in_all and said in said_in_all


def test_a_slip_in_the_scripts_own_file_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that reads the file as JSON ends with its own exception, and an estimate reads past it."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(
        '{\n "zero_optimization": {"stage": 2,},\n "train_micro_batch_size_per_gpu": 1\n}\n'
    )
    Path("train.py").write_text(
        "import argparse, deepspeed, json\n"
        "parser = deepspeed.add_config_arguments(argparse.ArgumentParser())\n"
        "args = parser.parse_args()\n"
        "json.load(open(args.deepspeed_config))\n"
        "deepspeed.initialize()\n"
    )
    slip = "ds.json:2:34: a comma before '}'"
    facts = read_script(Path("train.py"), None)
    options = ScriptOptions.read(facts, facts.style, ("--deepspeed_config", "ds.json"))
    (warned,) = of_arguments(options, 1)
    assert with_level(warned).startswith(f"warning: {slip}") and warned.endswith("[json-trailing-comma]")
    assert of_arguments(ScriptOptions.read(facts, facts.style, ()), 1) == ()
    missing = ScriptOptions.read(facts, facts.style, ("--deepspeed_config", "no/ds.json"))
    with pytest.raises(InputError, match=r"--deepspeed_config no/ds\.json: there is no such file"):
        refuse_missing(missing)
    assert run(["estimate", "--deepspeed", "ds.json", "--model", "gpt2", "--gpu", "h200", "--json"]) == 0
    assert any(note.startswith(slip) for note in json.loads(capsys.readouterr().out)["assumptions"])


PARSES = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    "Trainer(args=args).train()\n"
)


def test_the_plans_literal_file_is_not_for_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which ended with "ds optimizer.params.lr=2e-05 vs hf learning_rate=5e-05"."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARSES)
    planning = ["plan", "--params", "1m", "--gpus", "2", "--device", "cpu", "--zero", "2", "--seq-len", "64"]
    assert run([*planning, "--out", "plan"]) == 0
    words = ["train.py", "--output_dir", "out", "--deepspeed"]
    launch = ["launch", "--dry-run", "--plan", "plan"]
    capsys.readouterr()
    assert run([*launch, *words, "plan/ds_config.json"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "optimizer.params.lr 2e-05, but learning_rate is 5e-05" in said
    assert "per_device_train_batch_size" not in said.partition("contradict the file")[2]  # the plan adds it
    assert "leave --deepspeed out, and the Trainer gets the plan's configuration" in said
    assert "(or name plan/ds_config.trainer.json)" in said
    assert run([*launch, "--accept-mismatch", *words, "plan/ds_config.json"]) == 0
    assert "warning: --deepspeed plan/ds_config.json: the script's" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run([*launch, *words, "plan/ds_config.trainer.json"]) == 0
    said = capsys.readouterr().err
    assert "contradict" not in said and "left to the Trainer" not in said  # of a file that nobody reads
    agreeing = ["--learning_rate", "2e-5", "--adam_beta2", "0.95", "--weight_decay", "0.1"]
    assert run([*launch, *words, "plan/ds_config.json", *agreeing]) == 0
