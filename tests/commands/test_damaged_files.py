"""Plans and run folders that are damaged or forged: every command says where, or does without; none fails."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hostile import MARKER, damaged, odd
from tests.support.plans import write_plan
from tests.support.run_folders import PLAN_COMMANDS, write_run
from zerokit.cli import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "plan")
    (tmp_path / "t.py").write_text("print(1)\n")
    return tmp_path


def ended(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capfd.readouterr()
    assert code in (0, 2, 3) and "Traceback" not in err and "internal-error" not in out, err
    assert not Path(MARKER).exists() and "\x1b[31mx" not in out
    return code, out, err


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("assumptions",), True, "assumptions must be a list"),
        (("reasons",), [1], "reasons must be a mapping"),
        (("files",), "x", "files must be a mapping"),
        (("trainer_arguments",), 3, "trainer_arguments must be a list"),
        (("cluster",), True, "cluster must be a mapping"),
        (("cluster", "nodes"), 0, "cluster.nodes: 0 must be"),
        (("chosen", "estimate"), [1], "chosen.estimate must be a mapping"),
        (("chosen", "data_parallel"), 10**30, "must be a whole number from 1"),
        (("chosen", "estimate", "per_rank"), {"a": 1}, "per_rank must be a list"),
        (("chosen", "estimate", "per_rank", 0), True, "per_rank[0] must be a mapping"),
        (("chosen", "estimate", "per_rank", 0, "ranks"), ["a", "b"], "must be two whole numbers"),
        (("chosen", "estimate", "per_rank", 1, "phases"), {"step": "x"}, "must be bytes by name"),
        (("chosen", "deepspeed_config", "optimizer"), 0.5, "optimizer must be a mapping"),
        (("chosen", "deepspeed_config", "optimizer"), {"params": [1]}, "optimizer.params must be a mapping"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_named_with_its_line(
    capfd: pytest.CaptureFixture[str], path: tuple[Any, ...], value: object, words: str
) -> None:
    plan = yaml.safe_load(Path("plan/plan.yaml").read_text())
    block = plan
    for name in path[:-1]:
        block = block[name]
    block[path[-1]] = value
    Path("plan/plan.yaml").write_text(yaml.safe_dump(plan))
    Path("plan/ds_config.json").unlink()
    for command in (PLAN_COMMANDS[0], PLAN_COMMANDS[2], PLAN_COMMANDS[7]):
        code, out, err = ended(capfd, *command)
        assert code == 2 and words in err and "plan.yaml:" in err and out == ""


def test_an_optimizer_without_a_mapping_of_parameters(capfd: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": [1]}})
    Path("plan/ds_config.json").write_text(text)
    for command in PLAN_COMMANDS[:2]:
        code, _, err = ended(capfd, *command)
        assert code == 2 and "ds_config.json:1:" in err and "optimizer.params must be a mapping" in err


def test_a_gradient_clipping_that_is_no_number(capfd: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": [1]}))
    job = ("estimate", "--params", "1b", "--gpus", "4", "--gpu", "h200", "--deepspeed", "c.json")
    code, _, err = ended(capfd, *job)
    assert code == 2 and "c.json:1:39: error: gradient_clipping is [1]" in err


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_hundreds_of_damaged_plans(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(27)
    shutil.copytree("plan", "whole")
    plan = yaml.safe_load(Path("plan/plan.yaml").read_text())
    config = json.loads(Path("plan/ds_config.json").read_text())
    refused = 0
    for _ in range(count):
        shutil.copytree("whole", "plan", dirs_exist_ok=True)
        name, value = draw.choice([("plan.yaml", plan), ("plan.yaml", plan), ("ds_config.json", config)])
        path = Path("plan", name)
        if draw.random() < 0.75:
            path.write_text(json.dumps(odd(value, draw)))
        else:
            path.write_bytes(damaged(path.read_bytes(), draw))
        refused += ended(capfd, *draw.choice(PLAN_COMMANDS))[0] == 2
    assert count // 6 < refused < count - 3


def test_a_broken_plan_does_not_hide_its_run(capfd: pytest.CaptureFixture[str]) -> None:
    write_run(Path("run"))
    assert 'predicted_peak_allocated_bytes": 123456789' in ended(capfd, "report", "--json", "run")[1]
    for text in ("{", "schema: zerokit.planfile/1\nrequest: {}\nchosen: 0.5\n", "- 1\n"):
        Path("run/plan.yaml").write_text(text)
        code, out, _ = ended(capfd, "report", "--json", "run")
        report = json.loads(out)
        assert code == 0 and report["ranks"] and report["predicted_vs_measured"] is None
        assert any(
            "the plan is not used" in problem and "plan.yaml:" in problem for problem in report["problems"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_hundreds_of_damaged_run_folders(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(23)
    write_run(Path("run"))
    Path("run/report.json").write_text(ended(capfd, "report", "--json", "run")[1])
    shutil.copytree("run", "whole")
    shown = 0
    for _ in range(count):
        shutil.rmtree("run")
        shutil.copytree("whole", "run")
        name = draw.choice(["rank-00000.jsonl", "rank-00001.jsonl", "report.json", "plan.yaml"])
        if name != "report.json":
            Path("run/report.json").unlink()
        path = Path("run", name)
        what = draw.random()
        if what < 0.65 and path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines[draw.randrange(len(lines))] = odd(draw.choice(lines), draw)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif what < 0.65:
            path.write_text(json.dumps(odd(yaml.safe_load(path.read_text()), draw)))
        elif what < 0.9:
            path.write_bytes(damaged(path.read_bytes(), draw))
        else:
            path.unlink()
            draw.choice([path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")])()  # noqa: B023
        command = draw.choice([(), ("--json",), ("--html", "page.html"), ("whole",)])
        shown += ended(capfd, "report", *command, "run")[0] == 0
        if Path("page.html").exists():
            assert "<script>alert" not in Path("page.html").read_text()
    assert shown > 2 * count // 3


def test_a_path_that_is_too_long_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    long = "x" * 3000
    for command in PLAN_COMMANDS:
        words = [word.replace("plan/", f"{long}/") if "/" in word else word for word in command]
        words = [long if word == "plan" and at else word for at, word in enumerate(words)]
        code, _, err = ended(capfd, *words)
        assert code == 2 and "File name too long" in err, command[:2]
    for words in (["report", long], ["estimate", "--model", f"./{long}"], ["launch", f"./{long}.py"]):
        code, _, err = ended(capfd, *words)
        assert code == 2 and "File name too long" in err, words[0]
