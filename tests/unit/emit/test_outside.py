"""A stranger's plan names no file, folder, host or code: every command refuses it alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.emit import outside

GPUS = ["plan", "--params", "350m", "--gpus", "2", "--gpu", "h100-sxm-80gb", "--seq-len", "512"]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "train.py").write_text(
        "import deepspeed, argparse\nparser = deepspeed.add_config_arguments(argparse.ArgumentParser())\n"
        "deepspeed.initialize(args=parser.parse_args())\n"
    )
    assert run([*GPUS, "--out", "plan"]) == 0
    capsys.readouterr()
    return work / "plan"


def put(plan: Path, block: dict[str, Any], name: str = "ds_config.json") -> None:
    config = json.loads((plan / name).read_text())
    (plan / name).write_text(json.dumps({**config, **block}, indent=1))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"flops_profiler": {"enabled": True, "output_file": "../precious"}}, "'../precious' ({})"),
        ({"csv_monitor": {"enabled": True, "output_path": "", "job_name": "../precious"}}, "({})"),
        ({"csv_monitor": {"enabled": True, "output_path": "linked", "job_name": "x"}}, "({}/x)"),
        ({"tensorboard": {"enabled": 1, "output_path": "gs://bucket"}}, "'gs://bucket/DeepSpeedJobName'"),
        ({"wandb": {"enabled": True}}, "another host"),
        ({"torch_autocast": {"enabled": True, "lower_precision_safe_modules": ["evil.Linear"]}}, "code"),
    ],
)
def test_every_command_refuses_what_a_plan_names_outside(
    block: dict[str, Any], said: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = plan.parents[1] / "precious"
    precious.mkdir()
    (plan.parent / "linked").symlink_to(precious)
    put(plan, block)
    for command in (
        ["check", "plan"],
        ["launch", "--dry-run", "--plan", "plan", "train.py"],
        ["rehearse", "--plan", "plan", "train.py"],
        ["emit", "sbatch", "--plan", "plan", "train.py"],
    ):
        expected = 1 if command[0] == "check" else 2
        code = run(command)
        captured = capsys.readouterr()
        words = captured.out + captured.err
        assert code in (expected, 2), words
        assert next(iter(block)) in words and "a plan may not name it" in words, command
        assert said.format(precious) in words, command


def test_in_the_run_folder_they_may_be(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = {"enabled": True, "output_path": "run/csv", "job_name": "loss"}
    launch = ["launch", "--dry-run", "--plan", "plan", "--run-dir", "run", "train.py"]
    put(plan, {"csv_monitor": monitor})
    for command, refused in ((launch, False), ([*launch[:4], *launch[-1:]], True)):
        run(command)
        assert ("a plan may not name it" in capsys.readouterr().err) is refused
    put(plan, {"csv_monitor": {**monitor, "job_name": "../.."}})
    assert run(launch) == 2
    put(plan, {"csv_monitor": {**monitor, "enabled": False, "output_path": "/"}})
    assert run(["check", "plan"]) == 0


def test_a_folder_for_nvme_is_one_that_this_user_named(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--nvme", "/local/disk", "--zero", "3", "--offload-param", "nvme", "--offload-optimizer", "nvme"]
    assert run([*GPUS, *words, "--out", "mine"]) == 0
    for command in (["check", "mine"], ["emit", "deepspeed", "--plan", "mine"]):
        assert run(command) == 0, capsys.readouterr()
    config = json.loads(Path("mine/ds_config.json").read_text())
    config["zero_optimization"]["offload_param"]["nvme_path"] = "/home/victim"
    Path("mine/ds_config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert run(["launch", "--dry-run", "--plan", "mine", "train.py"]) == 2
    assert "offload_param.nvme_path: '/home/victim'" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(plan.parent / "of-somebody-else"))
    assert run(["emit", "deepspeed", "--plan", "mine"]) == 2
    assert "name that folder with --nvme" in capsys.readouterr().err


def test_accelerate_yaml_of_a_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yaml = (plan / "accelerate.yaml").read_text()
    (plan / "accelerate.yaml").write_text(f"{yaml}main_process_ip: evil.example\ncommands: [id]\n")
    assert run(["check", "plan"]) != 0
    words = capsys.readouterr().out
    assert "main_process_ip: 'evil.example'" in words and "commands: ['id']" in words


def test_a_file_of_the_users_own_may_name_anything(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(plan, {"flops_profiler": {"enabled": True, "output_file": "/tmp/mine"}})
    own = plan.parent / "own.json"
    own.write_text((plan / "ds_config.json").read_text())
    for command in (["check", "own.json"], ["launch", "--dry-run", "--deepspeed", "own.json", "train.py"]):
        run(command)
        captured = capsys.readouterr()
        assert "a plan may not name it" not in captured.out + captured.err


@pytest.mark.parametrize(
    "text", ["~/x", "$HOME/x", "//host/share", "\\\\host\\share", "a\0b", "file:///x", 7]
)
def test_no_way_of_writing_a_path_leads_out(text: object, tmp_path: Path) -> None:
    config = {"flops_profiler": {"enabled": True, "output_file": text}}
    assert list(outside.outside(config, (str(tmp_path),)))
