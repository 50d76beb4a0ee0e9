"""What is run for a console command, and which plan a launch takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.plans import write_plan
from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.script.entry_points import resolve
from zerokit.script.reader import read_script

LAUNCHER = """
import os, subprocess, sys
def launch():  # as LLaMA-Factory 0.9 does once it sees several GPUs
    subprocess.run(["torchrun", "--nproc_per_node", "2", __file__, *sys.argv[1:]], check=True)
if __name__ == "__main__":
    from llamafactory.train.tuner import run_exp
    run_exp()
"""
TUNER = "from transformers import HfArgumentParser, Seq2SeqTrainingArguments, Seq2SeqTrainer\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages laid out as LLaMA-Factory and axolotl are."""
    site = tmp_path / "site-packages"
    for name, text in (
        ("llamafactory/__init__.py", ""),
        ("llamafactory/launcher.py", LAUNCHER),
        ("llamafactory/train/__init__.py", ""),
        ("llamafactory/train/tuner.py", TUNER),
        ("axolotl/__init__.py", ""),
        ("axolotl/cli/__init__.py", ""),
        ("axolotl/cli/train.py", "from axolotl.train import train\n"),
        ("axolotl/train.py", "from transformers import Trainer\n"),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(site)
    return site


def test_llamafactory_is_its_worker_and_the_trainer_is_found(tools: Path) -> None:
    target = resolve("llamafactory-cli", ("train", "x.yaml", "a=b")).target
    assert target.script == str(tools / "llamafactory" / "launcher.py")
    assert target.arguments == ("x.yaml", "a=b")
    facts = read_script(Path(target.script), None)
    assert facts.style == "trainer" and not facts.takes_local_rank(target.arguments)
    with pytest.raises(InputError, match="only `llamafactory-cli train"):
        resolve("llamafactory-cli", ("webui",))


def test_axolotl_is_its_worker_and_its_launcher_is_refused(tools: Path) -> None:
    target = resolve("axolotl", ("train", "x.yaml", "--no-accelerate", "--learning-rate", "1")).target
    assert (target.module, target.arguments) == ("axolotl.cli.train", ("x.yaml", "--learning-rate", "1"))
    assert read_script(None, target.module).style == "trainer"
    with pytest.raises(InputError, match="--launcher belongs to its own launcher"):
        resolve("axolotl", ("train", "x.yaml", "--launcher", "torchrun"))


def test_trl_is_its_script() -> None:
    trl = Path(pytest.importorskip("trl").__file__).parent
    target = resolve("trl", ("sft", "--config", "x.yaml")).target
    assert (target.script, target.arguments) == (str(trl / "scripts" / "sft.py"), ("--config", "x.yaml"))
    with pytest.raises(
        InputError, match=r"these commands do: distillation, dpo, grpo, kto, reward, rloo, sft$"
    ):
        resolve("trl", ("vllm-serve",))
    with pytest.raises(InputError, match="--accelerate_config"):
        resolve("trl", ("sft", "--accelerate_config", "zero2"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("accelerate launch --num_processes 2 t.py --lr", "zerokit launch --launcher accelerate t.py --lr"),
        ("deepspeed --num_gpus 8 train.py", "zerokit launch train.py"),
        ("torchrun -m mine.train", "zerokit launch --launcher torchrun SCRIPT"),
        ("nosuchtool train", "no console command of that name"),
        ("axolotl9 train", "no console command of that name"),
    ],
)  # fmt: skip
def test_what_is_no_script(words: str, said: str) -> None:
    word, *arguments = words.split()
    with pytest.raises(InputError) as caught:
        resolve(word, tuple(arguments))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan", "zerokit plan … -- t.py --lr"),
        ("rehearse", "zerokit rehearse starts the ranks itself"),
        ("tune", "zerokit tune --launcher accelerate t.py --lr"),
    ],
)
def test_a_launcher_in_front_is_answered_with_the_command_that_was_typed(command: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve("accelerate", ("launch", "--num_processes", "2", "t.py", "--lr"), command)
    assert said in str(caught.value) and "zerokit launch" not in str(caught.value)


def test_a_folder_is_a_script_only_with_a_main_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    for word in (".", "..", str(tmp_path)):
        script = Path(resolve(word, ()).target.script or "none")
        with pytest.raises(InputError, match="a folder without __main__"):
            read_script(script, None)
        (Path(word) / "__main__.py").write_text("from accelerate import Accelerator\nAccelerator()\n")
        assert read_script(script, None).style == "accelerate"
        (Path(word) / "__main__.py").unlink()


def test_any_other_console_command_is_run_as_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zerokit").mkdir()  # a folder of that name, as in a checkout, is no script
    target = resolve("zerokit", ("gpus",)).target
    assert target.script is not None and Path(target.script).name == "zerokit"
    assert target.source == "zerokit.__main__" and target.arguments == ("gpus",)


def test_what_a_tool_reads_from_its_file_is_added_in_its_own_way(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "zerokit-plan")
    Path("x.yaml").write_text("output_dir: out\ncutoff_len: 1000\n")
    added = "per_device_train_batch_size=2 disable_gradient_checkpointing=True"
    code, out, err = dry_run(capsys, "llamafactory-cli", "train", "x.yaml", "bf16=true")
    assert code == 0 and f"x.yaml bf16=true {added}" in out, err
    assert "x.yaml: cutoff_len: 1000: sequence length 1000, but the plan has 2048" in err
    plan = tmp_path / "zerokit-plan" / "plan.yaml"
    rehearsed = "chosen:\n  rehearsed: {script: another.py, command: '0'}\n"
    plan.write_text(plan.read_text().replace("chosen:\n", rehearsed))
    _, _, err = dry_run(capsys, "llamafactory-cli", "train", "x.yaml", "bf16=true")
    assert "cuts sequences" not in err  # the plan knows how long the script's data are
    assert "the plan was rehearsed with another command (another.py)" in err
    Path("x.yaml").write_text("disable_gradient_checkpointing: false\n")
    code, _, err = dry_run(capsys, "lmf", "train", "x.yaml")
    assert code == 2 and "x.yaml: disable_gradient_checkpointing: False, but the plan has" in err
    # axolotl's loader looks for the DeepSpeed file among its own settings
    Path("x.yaml").write_text("micro_batch_size: 2\n")
    words = ("--run-dir", "run", "axolotl", "train", "x.yaml")
    assert f"x.yaml --deepspeed={tmp_path}/run/ds_config.json" in dry_run(capsys, *words)[1]
    Path("x.yaml").write_text("micro_batch_size: 2\ndeepspeed: zerokit-plan/ds_config.json\n")
    assert "--deepspeed=" not in dry_run(capsys, *words)[1]
    assert "--deepspeed=" not in dry_run(capsys, *words, "--deepspeed", "zerokit-plan/ds_config.json")[1]


# ---- which plan


SCRIPTS = Path(__file__).parents[2] / "scripts"


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["launch", "--device", "cpu", "--dry-run", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_plan_in_this_folder_is_used_or_said_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = str(SCRIPTS / "raw.py")
    code, out, err = dry_run(capsys, raw)
    assert code == 0 and "--deepspeed_config" not in out and "there is no zerokit-plan here" in err
    (tmp_path / "zerokit-plan").mkdir()
    assert "holds no plan.yaml" in dry_run(capsys, raw)[2]
    write_plan(tmp_path / "zerokit-plan")
    code, out, err = dry_run(capsys, raw)
    assert code == 0 and "--deepspeed_config" in out and "plan: zerokit-plan, found here: the plan of" in err
    assert "zerokit-plan: the plan of" in dry_run(capsys, "--plan", "zerokit-plan", raw)[2]
    assert "--deepspeed_config" not in dry_run(capsys, "--no-plan", raw)[1]
    code, out, err = dry_run(capsys, raw, "--deepspeed_config", "mine.json")
    assert code == 0 and "is not used: the script is given --deepspeed_config" in err
    assert dry_run(capsys, "--no-plan", "--plan", "zerokit-plan", raw)[0] == 2


def test_a_deepspeed_file_of_the_users_in_place_of_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    body = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    Path("ds.json").write_text(json.dumps(body))
    for script, reached in (
        ("raw.py", "--deepspeed_config"),
        ("trainer.py", "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    ):
        code, out, err = dry_run(capsys, "--deepspeed", "ds.json", "--run-dir", "run", str(SCRIPTS / script))
        assert code == 0 and reached in out and "ZEROKIT_PLAN" not in out, err
    assert dry_run(capsys, "--deepspeed", "none.json", str(SCRIPTS / "raw.py"))[0] == 2
    Path("t.py").write_text("import deepspeed\ndeepspeed.initialize(config={})\n")
    code, _, err = dry_run(capsys, "--deepspeed", "ds.json", "t.py")
    assert code == 2 and "t.py:2: config={}" in err


def test_the_folder_of_a_plan_is_no_script(tmp_path: Path) -> None:
    write_plan(tmp_path / "zerokit-plan")
    with pytest.raises(InputError, match=r"is the folder of a plan, not a script: name it with plan$"):
        resolve(str(tmp_path / "zerokit-plan"), ("train.py",))


def test_a_launchers_file_is_not_left_out_silently() -> None:
    words = ("launch", "--config-file", "fsdp.yaml", "train.py")
    with pytest.raises(InputError, match=r"zerokit rehearse --accelerate fsdp\.yaml train\.py$"):
        resolve("accelerate", words, "rehearse")
    with pytest.raises(InputError, match=r"without what --config_file says: FSDP or DeepSpeed reaches it"):
        resolve("accelerate", ("launch", "--config_file=fsdp.yaml", "train.py"), "launch")
    with pytest.raises(InputError, match=r"--launcher accelerate train\.py$"):
        resolve("accelerate", ("launch", "train.py"), "rehearse")
