"""``zerokit plan … -- SCRIPT``: the script is rehearsed, and what cannot be rehearsed is said."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import zerokit
from tests.support.rehearsals import SCRIPTS, rehearse
from zerokit.cli import run
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.rehearsal.result import Stop
from zerokit.script.entry_points import Target
from zerokit.script_planner import plan_script
from zerokit.script_planner.rehearsals import RehearsedScript

MIB = 1 << 20
PARAMETERS = 2 * 1000 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256


def plan(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "plan", "--json", *words],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.slow
def test_a_plan_for_a_script_holds_what_the_script_holds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = str(SCRIPTS / "teacher.py")
    code, body, said = plan(
        tmp_path, "--gpus", "2", "--gpu", "h200", "--zero", "2", "--global-batch", "8", "--out", "plan",
        "--loss", "liger", "--", script,
    )  # fmt: skip
    assert code == 0, said
    chosen = body["chosen"]
    estimate = chosen["estimate"]
    assert (estimate["basis"], estimate["fits"]) == ("rehearsed", True)
    assert chosen["parameters"] == PARAMETERS  # nobody named the model
    assert body["request"]["seq-len"] == "128"
    # which the script does not compute
    assert body["request"]["loss"] == "standard" and "--loss liger left out" in " ".join(said.split())
    assert all(rehearsal["stopped"] is None for rehearsal in body["rehearsals"])
    assert {rehearsal["probe"] for rehearsal in body["rehearsals"]} == {True, False}
    purposes = ("to learn what the script takes",
                "to learn what another sequence takes", "one of the fastest that should fit")  # fmt: skip
    assert all(purpose in " ".join(said.split()) for purpose in purposes)
    # the teacher's weights are in every phase but the first two
    plain = zerokit.estimate(
        model=body["request"]["model"], gpus=2, gpu="h200", zero=2, seq_len=128,
        micro_batch=chosen["micro_batch"], gradient_accumulation=chosen["gradient_accumulation"],
    )  # fmt: skip
    more = estimate["per_rank"][0]["phases"]["forward"] - plain.per_rank[0].phases["forward"]
    assert abs(more - 512 * MIB) < 16 * MIB
    # the plan's files, rehearsed by themselves, tell the same
    _, again, _ = rehearse(tmp_path, "--plan", "plan", script)
    assert again["ranks"][0]["phases"] == estimate["per_rank"][0]["phases"]
    assert again["min_vram_bytes"] == estimate["min_vram_bytes"]


@pytest.mark.slow
def test_a_batch_of_pairs_is_counted_in_pairs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, **shape}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "plan", "--gpus", "2", "--gpu", "h200", "--zero", "1",
         "--global-batch", "4", "--micro-batch", "2", "--checkpointing", "none", "--explain", "--",
         str(SCRIPTS / "pairs.py"), "--model", ".", "--output_dir", "out"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "2 per GPU × 1 accumulation × 2 GPUs = 4 pairs × 2 × 512 tokens" in said
    assert "a step of 4 pairs" in said and "of 4 sequences" not in said
    assert said.count("(a probe): ") == 1
    assert "batch sizes count pairs" in said and "one sequence of each" not in said
    kept = yaml.safe_load((tmp_path / "zerokit-plan" / "plan.yaml").read_text())
    assert kept["chosen"]["sequences_per_row"] == 2  # by which a launch with other arguments is judged


@pytest.mark.slow
def test_a_batch_that_the_script_computes_decides_the_plan(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, body, said = plan(
        tmp_path, "--gpus", "2", "--gpu", "h200", "--zero", "1", "--tp", "1", "--offload-optimizer", "none",
        "--", str(SCRIPTS / "computed_batch.py"),
    )  # fmt: skip
    assert code == 0, said
    assert body["chosen"]["micro_batch"] == 3  # neither of the two that were tried first
    assert "computed_batch.py feeds its engine 3 rows at a time" in said
    assert any("whatever the plan had" in note for note in body["assumptions"])


@pytest.mark.slow
def test_what_a_trainer_computes_decides_the_plan(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hardware = ("--gpus", "1", "--gpu", "h200", "--zero", "1", "--offload-optimizer", "none")
    script = str(SCRIPTS / "computed_trainer.py")
    code, body, said = plan(tmp_path, *hardware, "--", script)
    assert code == 0, said
    chosen = body["chosen"]
    assert (chosen["micro_batch"], chosen["gradient_accumulation"], chosen["precision"]) == (3, 2, "bf16")
    assert "computed_trainer.py trains with micro-batch 3, gradient-accumulation 2" in said
    first, *others = body["rehearsals"]
    assert (
        first["peak_allocated_bytes"] is None and "the script trained with micro-batch 3" in first["stopped"]
    )
    assert others and all(one["peak_allocated_bytes"] for one in others)
    code, _, said = plan(tmp_path, *hardware, "--micro-batch", "4", "--", script)
    assert code == 2 and "--micro-batch 4: the script trains with 3" in said


def test_a_script_that_no_plan_reaches_is_planned_without(tmp_path: Path) -> None:
    script = str(SCRIPTS / "plain_loop.py")
    found = zerokit.plan(script, ["2"], params="350m", gpus=2, gpu="h200", out=tmp_path / "plan")
    assert found.chosen.estimate.basis == "traced"
    assert any("plain_loop.py could not be rehearsed: no plan's" in note for note in found.assumptions)
    assert found.rehearsals == ()
    with pytest.raises(InputError, match=r"could not be rehearsed.*name the model"):
        zerokit.plan(script, ["2"], gpus=2, gpu="h200")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--params", "1b", "--"), "name a script"),
        (("--params", "1b", "--", "-m"), "name a script"),
        (("--params", "1b", "--", "missing.py"), "missing.py"),
        (("--params", "1b", "--rehearsal-seconds", "9"), "only with a script"),
        (("--gpus", "2", "--gpu", "mi300x", "--", str(SCRIPTS / "teacher.py")), "cannot be rehearsed"),
        (("--params", "1b", "--gpus", "2", "--", "torchrun", "train.py"), "torchrun"),
    ],
)
def test_bad_input_names_it(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["plan", "--out", str(tmp_path), *words]) == 2
    assert named in capsys.readouterr().err


def test_a_deepspeed_file_of_the_scripts_own_is_refused_before_any_rehearsal(tmp_path: Path) -> None:
    """Every candidate would be that file under another label."""
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "Trainer(args=HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]).train()\n"
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    said: list[str] = []
    target = Target(script=str(script), module=None, arguments=("--deepspeed", "ds.json"))
    with pytest.raises(InputError, match=r"^--deepspeed ds\.json: .*whatever the plan; leave it out"):
        plan_script(target, {"gpus": 2, "gpu": "h200"}, say=said.append)
    assert said == []


IN_LOAD = {"load": 1}


@pytest.mark.parametrize(
    ("phases", "reason", "rehearsals"),
    [
        (IN_LOAD, "ConnectionError: no such data set\nsee https://example", 1),
        (IN_LOAD, "ConnectionError: no such data set for this batch size", 2),
        ({**IN_LOAD, "forward": 2}, "ConnectionError: no such data set", 4),
    ],
)
def test_what_stops_a_script_before_its_engine_is_not_tried_at_every_batch(
    phases: dict[str, int], reason: str, rehearsals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(
        target: Any, options: Any, request: Any, strategy: Strategy, seconds: float, **_: Any
    ) -> RehearsedScript:
        ranks = (SimpleNamespace(phases=phases),)
        stop = Stop(location="", operator="", reason=reason)
        done: Any = SimpleNamespace(ranks=ranks, stopped=stop, when_kept="", few_layers=None)
        return RehearsedScript(strategy=strategy, done=done, rehearsed=None)

    monkeypatch.setattr("zerokit.script_planner.planning.rehearse_strategy", stopped)
    script = tmp_path / "train.py"
    script.write_text("from accelerate import Accelerator\nAccelerator()\n")
    said: list[str] = []
    with pytest.raises(
        InputError,
        match=r"no such data set.*; fix what stops it, or name the model",
    ):
        plan_script(
            Target(script=str(script), module=None, arguments=()), {"gpus": 2, "gpu": "h200"}, say=said.append
        )
    told = [line for line in said if line.startswith("rehearsal ")]
    assert len(told) == rehearsals and all("to learn what the script takes: " in line for line in told)


def test_a_plan_without_a_rehearsal_keeps_the_loss_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch then gives it to the script."""

    def stopped(
        target: Any, options: Any, request: Any, strategy: Strategy, seconds: float, **_: Any
    ) -> RehearsedScript:
        done: Any = SimpleNamespace(
            ranks=(SimpleNamespace(phases=IN_LOAD),),
            stopped=Stop(location="", operator="", reason="no data"),
            when_kept="",
            few_layers=None,
        )
        return RehearsedScript(strategy=strategy, done=done, rehearsed=None)

    monkeypatch.setattr("zerokit.script_planner.planning.rehearse_strategy", stopped)
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "Trainer(args=HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]).train()\n"
    )
    said: list[str] = []
    options = {"model": "qwen2.5-0.5b", "gpus": 2, "gpu": "h200", "loss": "liger"}
    found = plan_script(Target(script=str(script), module=None, arguments=()), options, say=said.append)
    assert found.request["loss"] == "liger" and not any("left out" in line for line in said)


TYPE_ERROR = "TypeError: DataLoader.__init__() got an unexpected keyword argument 'batch_sz'"


@pytest.mark.parametrize(
    ("cause", "reason", "is_to_fix", "rehearsals"),
    [
        ("script", TYPE_ERROR, True, 1),
        ("argument", "ValueError: not used by the HfArgumentParser: ['--per_device_batch']", True, 1),
        ("script", "ValueError: the batch is not divisible by 3", False, 2),
        ("rehearsal", TYPE_ERROR, False, 2),
    ],
)
def test_an_error_of_the_scripts_own_is_to_be_fixed_before_a_launch(
    cause: str,
    reason: str,
    is_to_fix: bool,
    rehearsals: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(
        target: Any, options: Any, request: Any, strategy: Strategy, seconds: float, **_: Any
    ) -> RehearsedScript:
        stop = Stop(location="train.py:9", operator="", reason=reason, cause=cause)
        done: Any = SimpleNamespace(
            ranks=(SimpleNamespace(phases=IN_LOAD),), stopped=stop, when_kept="", few_layers=None
        )
        return RehearsedScript(strategy=strategy, done=done, rehearsed=None)

    monkeypatch.setattr("zerokit.script_planner.planning.rehearse_strategy", stopped)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from accelerate import Accelerator\nAccelerator()\n")
    words = ("--model", "gpt2", "--gpus", "2", "--gpu", "h200", "--html", "plan.html", "--", "train.py")
    assert run(["plan", *words]) == 0
    out, err = capsys.readouterr()
    answer, _, following = out.partition("\nNext\n")
    assert err.count("to learn what the script takes: ") == rehearsals
    where = "the script's arguments" if cause == "argument" else "train.py:9"
    error = f"{where}: {reason}"
    title, under, *_ = answer.splitlines()
    assert title.startswith("Plan for gpt2")
    assert under.startswith("The script failed") is is_to_fix
    assert " ".join(following.split()).startswith(f"fix {error}; then plan again") is is_to_fix
    assert ("zerokit launch" in following) is not is_to_fix
    page = html.unescape(Path("plan.html").read_text())
    assert (f"The script failed in its rehearsal; to fix: {error}" in page) is is_to_fix
    assert ("zerokit launch" in page) is not is_to_fix
    assert all(len(line) <= 80 for line in out.splitlines())
    assert run(["plan", "--gpus", "2", "--gpu", "h200", "--", "train.py"]) == 2
    assert ("; fix that, then plan again" in " ".join(capsys.readouterr().err.split())) is is_to_fix
