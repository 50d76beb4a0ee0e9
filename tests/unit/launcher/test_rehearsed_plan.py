"""A launch says where its plan was not rehearsed with its command, and how to plan with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.plans import write_plan
from zerokit.cli import run
from zerokit.emit import plan_file
from zerokit.launcher.rehearsed_plan import (
    Agreement,
    PlannedCommand,
    fewer_steps,
    joined,
    unlike_arguments,
)
from zerokit.notes import with_level
from zerokit.planner import recipes
from zerokit.script.entry_points import Target
from zerokit.temporary import temporary_folder

SFT = Target(
    script=None, module="trl.scripts.sft", arguments=("--max_length", "1024", "--hub_token", "hf_0123456789")
)


def rehearsed_with(
    folder: Path, arguments: tuple[str, ...] | None = None, **rehearsed: Any
) -> plan_file.PlanFile:
    plan = plan_file.read(write_plan(folder))
    script = {} if arguments is None else {"script": {"arguments": list(arguments)}}
    plan_file.write(folder, plan.request, {**plan.chosen, "rehearsed": rehearsed, **script})
    return plan_file.read(folder)


def test_it_names_the_command_that_plans_with_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "a plan"
    said = PlannedCommand(plan_file.read(write_plan(folder)), SFT).note("trainer", tmp_path / "run") or ""
    assert said.startswith("the plan was not rehearsed with this script, whose arguments alone were compared")
    assert "to plan with the script (model= leaves that to the script): zerokit plan" in said
    words = shlex.split(said[said.index("zerokit plan") :])
    assert words[:6] == ["zerokit", "plan", "--recipe", f"{folder}/plan.yaml", "--out", str(folder)]
    assert words[6:] == [
        "model=",
        "--",
        "-m",
        "trl.scripts.sft",
        "--max_length",
        "1024",
        "--hub_token",
        "<redacted>",
    ]


@pytest.mark.parametrize(
    ("asked", "unlike", "left_out"),
    [
        ({"params": "1m"}, (), ["model="]),  # a size alone is no model
        ({"model": "gpt2"}, (), []),
        ({"model": "gpt2", "seq_len": 64}, ("model", "seq-len"), ["model=", "seq_len="]),
        ({"model": "gpt2"}, ("seq-len",), []),  # nobody asked for one
    ],
)
def test_the_command_leaves_to_the_script_what_it_decides_otherwise(
    tmp_path: Path, asked: dict[str, Any], unlike: tuple[str, ...], left_out: list[str]
) -> None:
    """With both, the plan would be refused."""
    zerokit.plan(**asked, gpus=1, gpu="t4", out=tmp_path)
    said = (
        PlannedCommand(plan_file.read(tmp_path), SFT).note(
            "trainer", tmp_path, Agreement(unlike=tuple(unlike))
        )
        or ""
    )
    told = f" ({' and '.join(left_out)} leave{'' if left_out[1:] else 's'} th" if left_out else ": zerokit"
    assert f"to plan with the script{told}" in said
    words = shlex.split(said[said.index("zerokit plan") :])
    assert words[2:4] == ["--recipe", f"{tmp_path}/plan.yaml"]
    assert words[6 : words.index("--")] == left_out
    kept = recipes.merged(words[3], {}, left_out, for_script=True)
    assert {name for name in ("model", "params", "seq_len") if kept.get(name)} == {
        name for name in asked if f"{name}=" not in left_out and (name != "params" or not left_out)
    }


def test_a_dry_run_tells_a_plan_for_another_model_and_length_with_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zerokit.plan(model="gpt2", seq_len=256, gpus=1, gpu="t4", out=tmp_path / "plan")
    script = Path(__file__).parents[3] / "examples" / "train_causal_lm.py"
    for words in (["launch", "--device", "cpu", "--dry-run"], ["emit", "sbatch"]):
        assert run([*words, "--plan", str(tmp_path / "plan"), str(script), "--steps", "10"]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert "another model than the plan's gpt2" in said
        assert f"--out {tmp_path}/plan model= seq_len= -- {script} --steps 10" in said


def test_one_command_plans_for_all_that_a_script_does_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model and accumulation: no warning has a command or an option of its own beside it."""
    zerokit.plan(model="gpt2", method="lora", lora_rank=8, seq_len=256, gpus=2, gpu="t4", global_batch=10,
                 micro_batch=5, out=tmp_path / "plan")  # fmt: skip
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\n"
        "from accelerate import Accelerator\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--model')\n"
        "parser.add_argument('--seq_len', default=512)\n"
        "args = parser.parse_args()\n"
        "accelerator = Accelerator()\n"
    )
    config = Path(__file__).parents[3] / "examples" / "tiny-llama.json"
    words = ["launch", "--device", "cpu", "--dry-run", "--plan", str(tmp_path / "plan"), str(script)]
    assert run([*words, "--model", str(config)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    for told in ("sequence length 512, but the plan has 256", "is another model than the plan's gpt2"):
        assert told in said
    assert "plan again" not in said and said.count("zerokit plan ") == 1
    assert (f"plan.yaml --out {tmp_path}/plan lora_rank= method= model= seq_len= -- {script} ") in said


def test_the_command_is_the_same_whether_a_mismatch_is_accepted_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan's global batch of 32 on 4 ranks cannot be met with 8 at a time, accumulated three times."""
    plan = tmp_path / "plan"
    zerokit.plan(model="gpt2", gpus=4, gpu="t4", global_batch=32, micro_batch=8, out=plan)
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\n"
        "from accelerate import Accelerator\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--per_device_train_batch_size', type=int, default=4)\n"
        "parser.add_argument('--gradient_accumulation_steps', type=int, default=1)\n"
        "args = parser.parse_args()\n"
        "accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)\n"
    )
    given = ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "3"]
    launch = ["launch", "--device", "cpu", "--dry-run", "--plan", str(plan)]
    for words in ([], ["--accept-mismatch"]):
        assert run([*launch, *words, str(script), *given]) == (0 if words else 2)
        said = " ".join(capsys.readouterr().err.split())
        assert (
            f"{plan}/plan.yaml --global-batch 96 --out {plan} micro_batch= -- {script} {' '.join(given)}"
            in said
        )


def test_no_command_plans_with_a_script_that_names_its_own_deepspeed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``plan`` refuses it: the script would train with the file, whatever the plan."""
    plan, script, own = tmp_path / "plan", tmp_path / "train.py", tmp_path / "own.json"
    zerokit.plan(model="gpt2", gpus=1, gpu="t4", zero=1, out=plan)
    script.write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "Trainer(args=args).train()\n"
    )
    own.write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    words = ["--device", "cpu", "--dry-run", "--accept-mismatch", "--plan", str(plan), str(script)]
    assert run(["launch", *words, "--deepspeed", str(own)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "contradicts the plan" in said and "zerokit plan" not in said
    assert run(["launch", *words]) == 0
    assert f"-- {script}" in " ".join(capsys.readouterr().err.split())


def test_a_plan_that_goes_with_this_process_is_named_where_its_copy_lies(tmp_path: Path) -> None:
    with temporary_folder("plan") as folder:
        plan = plan_file.read(write_plan(folder))
        assert f"zerokit plan --recipe {tmp_path}/plan.yaml model= -- -m" in (
            PlannedCommand(plan, SFT).note("raw", tmp_path) or ""
        )
        said = PlannedCommand(plan, SFT).note("raw", None) or ""
        words = shlex.split(said[said.index("zerokit plan") :])
        written = words[2 : words.index("--")]
        asked = {name: value for name, value in plan.request.items() if name != "params"}
        assert asked and written == [word for name in asked for word in (f"--{name}", str(asked[name]))]


def test_a_plan_of_this_very_command_needs_no_word(tmp_path: Path) -> None:
    plan = rehearsed_with(tmp_path, script="sft", command=SFT.digest)
    assert PlannedCommand(plan, SFT).note("trainer", tmp_path) is None
    assert PlannedCommand(plan, SFT).content["chosen"]["rehearsed"]["script"] == "sft"
    assert PlannedCommand(plan, SFT).content["folder"] == str(plan.folder)
    with temporary_folder("plan") as folder:
        assert (
            "folder"
            not in PlannedCommand(rehearsed_with(folder, script="sft", command=SFT.digest), SFT).content
        )


def test_a_plan_of_another_command_is_warned_of(tmp_path: Path) -> None:
    plan = rehearsed_with(tmp_path, script="dpo.py", command="0")
    said = PlannedCommand(plan, SFT).note("trainer", tmp_path) or ""
    assert with_level(said).startswith("warning: the plan was rehearsed with another command (dpo.py)")
    assert f"zerokit plan --recipe {tmp_path}/plan.yaml" in said
    chosen = PlannedCommand(plan, SFT).content["chosen"]
    assert "rehearsed" not in chosen and chosen["rehearsed_with"] == "dpo.py"


def test_the_arguments_that_differ_are_named(tmp_path: Path) -> None:
    arguments = ("--max_length", "512", "--hub_token", "<redacted>")
    plan = rehearsed_with(tmp_path, arguments, script="trl.scripts.sft", command="0")
    said = PlannedCommand(plan, SFT).note("trainer", tmp_path) or ""
    assert "another command (trl.scripts.sft: --max_length 512, not 1024), so" in said
    assert "hf_0123456789" not in said
    assert (
        PlannedCommand(plan, SFT).content["chosen"]["rehearsed_with"]
        == "trl.scripts.sft: --max_length 512, not 1024"
    )


def test_a_run_of_fewer_steps_names_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan made with it would take the place of one that has a rehearsed step time."""
    script = tmp_path / "train.py"
    script.write_text("import deepspeed\nparser.add_argument('--deepspeed_config')\ndeepspeed.initialize()\n")
    plan = rehearsed_with(tmp_path / "plan", (), script="train.py", command="0")
    words = ["launch", "--device", "cpu", "--plan", str(plan.folder), "--dry-run", str(script)]
    assert run([*words, "--max_steps", "2"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "takes fewer optimizer steps than the plan's rehearsal did (--max_steps 2)" in said
    assert "another command" not in said and "zerokit plan" not in said
    fewer = Target(script=str(script), module=None, arguments=("--max_steps", "2"))
    chosen = PlannedCommand(plan, fewer).content["chosen"]  # what the report of the run is made with
    assert "rehearsed" in chosen and "rehearsed_with" not in chosen
    assert run([*words, "--max_steps", "2", "--rows", "3"]) == 0
    assert "another command (train.py: without --max_steps 2" in " ".join(capsys.readouterr().err.split())


def test_another_place_to_write_to_or_another_secret_is_the_same_run(tmp_path: Path) -> None:
    arguments = ("--output_dir", "out", "--hub_token", "<redacted>", "--max_length=1024")
    plan = rehearsed_with(tmp_path, arguments, script="trl.scripts.sft", command="0")
    assert PlannedCommand(plan, SFT).note("trainer", tmp_path) is None
    assert PlannedCommand(plan, SFT).content["chosen"]["rehearsed"]["script"] == "trl.scripts.sft"


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"gpu": "h200", "inference": True}])
def test_what_cannot_be_rehearsed_is_not_advised(tmp_path: Path, options: dict[str, Any]) -> None:
    zerokit.plan(params="1m", gpus=1, seq_len=64, out=tmp_path, **options)
    assert PlannedCommand(plan_file.read(tmp_path), SFT).note("trainer", tmp_path) is None
    assert PlannedCommand(plan_file.read(write_plan(tmp_path / "other")), SFT).note("none", tmp_path) is None


def test_a_dry_run_says_it_and_quiet_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import deepspeed\nparser.add_argument('--deepspeed_config')\ndeepspeed.initialize()\n")
    words = ["--device", "cpu", "--plan", str(write_plan(tmp_path / "plan")), "--dry-run", str(script)]
    assert run(["launch", *words]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("not rehearsed with this script") == 1
    assert (
        "errors of the script's own; the `zerokit plan` command above rehearses it" in said
        and "`zerokit rehearse`" not in said
    )  # one hint
    assert run(["launch", "--no-plan", *words[:2], *words[4:]]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "`zerokit rehearse` with the same script and arguments" in said
    target = Target(script=str(script), module=None, arguments=())
    plan = rehearsed_with(tmp_path / "rehearsed", script="train.py", command=target.digest)
    for device, ranks, elsewhere in (("cuda", "2", False), ("cuda", "1", True), ("cpu", "2", True)):
        more = ["--plan", str(plan.folder), "--num-ranks", ranks]
        assert run(["launch", "--device", device, *more, *words[4:]]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert "errors of the script's own; the plan's rehearsal ran the script with these options" in said
        assert ("these options, on the plan's GPUs" in said) is elsewhere and "zerokit rehearse" not in said
    for more_words in (["--steps", "3"], ["--no-such", "3"]):
        assert run(["launch", "--device", "cuda", "--plan", str(plan.folder), *words[4:], *more_words]) == 0
        assert "the plan's rehearsal ran" not in " ".join(capsys.readouterr().err.split())
    assert run(["launch", "--quiet", *words]) == 0
    assert "rehearsed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rehearsed", "given", "words"),
    [
        ("--a 1 --b", "--b --a=1", ()),
        ("--rows 8", "--rows 4", ("--rows 8, not 4",)),
        ("--rows 8", "", ("--rows 8, which is not given",)),
        ("", "--use_peft", ("without --use_peft",)),
        ("--names a b", "--names a", ("--names a b, not a",)),
        ("one.yaml", "two.yaml --x 1", ("one.yaml, not two.yaml", "without --x 1")),
        ("--output_dir out --logging-dir a", "--output_dir out2", ()),
        ("", "--max_steps 20 --learning_rate 1e-5 --logging-steps 1 --seed 3", ()),
        ("--max_steps 5", "--max_steps -1", ()),
        ("--max_steps 2", "", ("--max_steps 2, which is not given",)),
        ("--steps 4", "--steps 40", ()),
        ("--max_steps 3", "", ()),
        ("--gradient-accumulation-steps 2 --a 1", "--a 1", ()),
        (
            "--gradient-accumulation-steps 2",
            "--gradient-accumulation-steps 4",
            ("--gradient-accumulation-steps 2, not 4",),
        ),
        ("--max_length 512", "--max_length 1024 --max_steps 20", ("--max_length 512, not 1024",)),
    ],
)
def test_each_option_that_differs_is_named(rehearsed: str, given: str, words: tuple[str, ...]) -> None:
    assert unlike_arguments(rehearsed.split(), given.split()) == words


def test_of_many_the_first_are_named() -> None:
    unlike = unlike_arguments([], ["--a", "1", "--b", "2", "--c", "3", "--d", "4", "--e", "5", "--f", "6"])
    assert joined(unlike).endswith("without --d 4; and 2 more")


@pytest.mark.parametrize(
    ("rehearsed", "given", "option"),
    [
        ("--a 1", "--a 1 --max_steps 2", "--max_steps 2"),
        ("--max_steps 100", "--max-train-steps 3 --max_steps 100", "--max-train-steps 3"),
        ("--max_steps 4", "--max_steps=1 --seed 7", "--max_steps 1"),
        ("--max_steps 2", "--max_steps 4", None),
        ("--max_steps 2", "", None),
        ("--a 1", "--a 2 --max_steps 2", None),
        ("--a 1", "--a 1 --max_steps many", None),
        ("--a 1", "--a 1 --max_steps 20", None),
    ],
)
def test_fewer_steps_alone_are_told_from_other_differences(
    rehearsed: str, given: str, option: str | None
) -> None:
    assert fewer_steps(rehearsed.split(), given.split()) == option
