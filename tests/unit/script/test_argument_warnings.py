"""What is wrong with a script's arguments, said before it runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.ranks import write_script
from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.cli import run
from zerokit.cli.launch import command as launch
from zerokit.cli.plan import command as plan
from zerokit.cli.rehearse import command as rehearse
from zerokit.cli.tune import command as tune
from zerokit.errors import InputError
from zerokit.notes import with_level
from zerokit.script.argument_warnings import (
    COMMON,
    OPTIONS,
    folder_meant,
    misplaced,
    named_model,
    reads_checkpoint,
    refused_bf16,
    why_no_training,
    why_not_resumed,
    without_defaults,
)
from zerokit.script.entry_points import Target
from zerokit.script.reader import read_script

IN_CODE = (
    "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()"
)
PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--steps')\n{}\np.parse_args()"
DATACLASS = "from transformers import HfArgumentParser\nclass A:\n    {}: bool\nHfArgumentParser(A)"
ELSEWHERE = (
    "import sys\nfrom transformers import Trainer\nimport settings_of_ours\nsettings_of_ours.read(sys.argv)"
)


@pytest.mark.parametrize(
    ("text", "arguments", "refused"),
    [
        (IN_CODE, ["--accept-mismatch"], True),
        (IN_CODE, ["--device", "cuda"], True),  # it reads no arguments at all
        (PARSER.format(""), ["--steps", "3", "--dry-run"], True),
        (PARSER.format(""), ["--run-dir=here"], True),
        (DATACLASS.format("fast"), ["--dry-run"], True),
        (ELSEWHERE, ["--dry-run"], False),  # a warning: its parser cannot be read
        (PARSER.format("p.add_argument('--dry-run')"), ["--dry-run"], None),
        (PARSER.format("p.add_argument('--dry_run')"), ["--dry-run"], None),
        (DATACLASS.format("dry_run"), ["--dry-run"], None),
        (PARSER.format(""), ["--steps", "3", "--", "--dry-run"], None),
        (PARSER.format(""), ["--device", "cuda"], True),
        (PARSER.format("import lib; lib.more(p)"), ["--device", "cuda"], None),  # may be the library's
    ],
)
def test_an_option_of_launch_behind_a_script_without_it(
    tmp_path: Path, text: str, arguments: list[str], refused: bool | None
) -> None:
    script = write_script(tmp_path, text)
    facts = read_script(script, None)
    if refused:
        with pytest.raises(InputError, match="stand before the script: zerokit launch --"):
            misplaced(facts, Target(script="train.py", module=None, arguments=tuple(arguments)), "launch")
        return
    said = misplaced(facts, Target(script="train.py", module=None, arguments=tuple(arguments)), "launch")
    assert said == [] if refused is None else with_level(said[0]).startswith("warning: --dry-run")


@pytest.mark.parametrize(
    ("command", "option", "fix"),
    [
        ("plan", "--explain", "zerokit plan --explain … -- train.py"),
        ("tune", "--top=2", "zerokit tune --top … train.py"),
        ("rehearse", "--gpu", "zerokit rehearse --gpu … train.py"),
        ("rehearse", "--host-speed=0.9", "zerokit rehearse --host-speed … train.py"),
    ],
)
def test_each_command_knows_its_own(tmp_path: Path, command: str, option: str, fix: str) -> None:
    facts = read_script(write_script(tmp_path, PARSER.format("")), None)
    target = Target(script="train.py", module=None, arguments=("--steps", "3", option))
    with pytest.raises(InputError, match=fix):
        misplaced(facts, target, command)
    assert misplaced(facts, target, "launch") == []


@pytest.mark.parametrize(
    ("name", "command"), [("launch", launch), ("plan", plan), ("rehearse", rehearse), ("tune", tune)]
)
def test_every_name_is_an_option_of_its_command(name: str, command: click.Command) -> None:
    assert {known for option in command.params for known in option.opts} >= {
        *OPTIONS[name],
        *COMMON[name],
    }


RESUMES = TRAINER.replace(".train()", ".train(resume_from_checkpoint=args.resume_from_checkpoint)")


@pytest.mark.parametrize(
    ("text", "arguments", "is_said"),
    [
        (TRAINER, "--output_dir out --resume_from_checkpoint True", True),
        (TRAINER, "--output_dir out --resume_from_checkpoint=out/checkpoint-4", True),
        (TRAINER, "--output_dir out --resume_from_checkpoint False", False),
        (TRAINER, "--output_dir out", False),
        (RESUMES, "--output_dir out --resume_from_checkpoint last", False),
        ("import deepspeed\ndeepspeed.initialize()\n", "--resume_from_checkpoint True", False),
    ],
)
def test_a_checkpoint_that_no_code_reads_is_told(
    tmp_path: Path, text: str, arguments: str, is_said: bool
) -> None:
    said = why_not_resumed(without_defaults(options(tmp_path, text).facts, arguments.split()))
    assert (said is not None) is is_said
    assert said is None or ("never reads --resume_from_checkpoint" in said and "training begins anew" in said)


def test_only_code_that_reads_the_option_takes_a_checkpoint_by_it(tmp_path: Path) -> None:
    assert reads_checkpoint(options(tmp_path, RESUMES).facts)
    assert not reads_checkpoint(options(tmp_path, TRAINER).facts)


@pytest.mark.parametrize("given", ["True", "False", "out/checkpoint-20"])
def test_a_folder_that_is_not_there_is_told(given: str, tmp_path: Path) -> None:
    """The word true is a folder to a Trainer, whose parser has text here."""
    facts = options(tmp_path, RESUMES).facts
    said = why_not_resumed(without_defaults(facts, ["--resume_from_checkpoint", given]))
    assert said == f"--resume_from_checkpoint {given}: there is no such folder"
    found = without_defaults(facts, ["--resume_from_checkpoint", str(tmp_path / "./")])
    assert why_not_resumed(found) is None


def test_true_in_a_file_of_arguments_is_a_switch(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"output_dir": "out", "resume_from_checkpoint": true}')
    facts = options(tmp_path, RESUMES + "    HfArgumentParser(A).parse_json_file(path)\n").facts
    assert why_not_resumed(without_defaults(facts, [str(tmp_path / "args.json")])) is None


OWN = "    parser.add_argument('--model', default={})\n"


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        (
            TRAINER,
            "--model_name_or_path gpt2 --output_dir out",
            ("gpt2", "train.py's --model_name_or_path gpt2"),
        ),
        (RAW, "--model-name=gpt2", ("gpt2", "train.py's --model-name gpt2")),
        (RAW, "--steps 3", None),
        (RAW + OWN.format("'gpt2'"), "", ("gpt2", "train.py's own --model gpt2 (its default)")),
        (RAW + OWN.format("'gpt2'"), "--model=qwen", ("qwen", "train.py's --model qwen")),
        (RAW + OWN.format("read()"), "", None),
    ],
)
def test_the_model_stands_in_the_arguments(
    tmp_path: Path, text: str, arguments: str, named: tuple[str, str] | None
) -> None:
    assert named_model(options(tmp_path, text, *arguments.split())) == named


def test_the_model_stands_in_a_file_of_arguments(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"model_name_or_path": "gpt2"}')
    found = named_model(options(tmp_path, TRAINER, str(file)))
    assert found is not None and found[0] == "gpt2" and "args.json" in found[1]


def test_a_default_beside_the_script_is_its_whole_path(tmp_path: Path) -> None:
    found = named_model(options(tmp_path, RAW + OWN.format("Path(__file__).with_name('tiny.json')")))
    assert found is not None
    assert Path(found[0]).name == "tiny.json" and Path(found[0]).parent.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("my-modle", "my-model"),
        ("my_model", "my-model"),
        ("my-model", None),  # it is there
        ("their/my-modle", None),  # may be a repository
        ("my-dta", None),  # a folder, and no model's
        ("another", None),
        ("", None),
    ],
)
def test_a_folder_is_meant_by_a_name_that_is_nearly_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("my-model", "my-data"):
        Path(folder).mkdir()
    Path("my-model/config.json").write_text("{}")
    assert folder_meant(name) == meant


def test_a_dry_run_warns_of_a_misspelt_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run would ask the Hub again and again, and name the connection as the fault."""
    monkeypatch.chdir(tmp_path)
    for folder in ("my-model", "gpt-2"):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text("{}")
    script = write_script(tmp_path, RAW)
    words = ["launch", "--dry-run", "--device", "cpu", "--no-plan", str(script), "--model"]
    said = []
    for name in ("my-modle", "my-model", "gpt2"):  # gpt2 is a model of the Hub
        assert run([*words, name]) == 0
        said.append(" ".join(capsys.readouterr().err.split()))
    assert (
        "warning: train.py's --model my-modle: no such folder is here, but my-model is; the script would "
        "look for my-modle on the Hugging Face Hub" in said[0]
    )
    assert "no such folder" not in said[1] + said[2]


RUN_CLM = TRAINER.replace("Trainer(args=args).train()", "if args.do_train: Trainer(args=args).train()")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (RUN_CLM, "--output_dir out", "which is not among its arguments"),
        (RUN_CLM, "--do_train False", "its arguments have --do_train False"),
        (RUN_CLM, "--do_train", None),
        (RUN_CLM, "--do_train=true", None),
        (RUN_CLM.replace("if args", "args.do_train = True\n    if args"), "", None),
        (TRAINER, "", None),  # trains whatever it is given
        (TRAINER + "\ndef do_train(): ...\ndo_train()\n", "", None),  # a function of that name, as Axolotl's
    ],
)
def test_a_script_without_its_switch_is_named(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = why_no_training(without_defaults(options(tmp_path, text).facts, arguments.split()))
    assert found is None if said is None else found is not None and said in found


def test_the_switch_may_stand_in_a_file_of_arguments(tmp_path: Path) -> None:
    facts = options(tmp_path, RUN_CLM).facts
    for value, trains in (("true", True), ("false", False)):
        file = tmp_path / f"{value}.json"
        file.write_text(f'{{"output_dir": "out", "do_train": {value}}}')
        assert (why_no_training(without_defaults(facts, [str(file)])) is None) is trains


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        ("", False),
        ("--bf16 True", True),
        ("--bf16", True),
        ("--bf16 False", False),
        ("--bf16_full_eval", True),
        ("--bf16 True --use_cpu True", False),
        ("--bf16 True --no_cuda", False),
        ("--fp16", False),
    ],
)
def test_bf16_without_use_cpu_is_refused(arguments: str, is_refused: bool, tmp_path: Path) -> None:
    said = refused_bf16(options(tmp_path, TRAINER, *arguments.split()))
    assert (said is not None) is is_refused
