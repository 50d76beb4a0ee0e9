"""``zerokit tune`` in real processes: trials that fail, hang or are interrupted; what is kept of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.conftest import PROGRAMS, wait_for

SLOW = pytest.mark.slow
JOB = ("--model", "gpt2", "--device", "cpu", "--gpus", "2", "--seq-len", "128", "--global-batch", "8",
       "--host-ram", "32GiB", "--precision", "fp32")  # fmt: skip
KNOWN = (
    "import argparse, deepspeed\np = argparse.ArgumentParser()\ndeepspeed.add_config_arguments(p)\n"
    "p.add_argument('--batch', type=int)\np.parse_args()\ndeepspeed.initialize()\n"
)
"""A script whose options are all in its source."""
PINS = ("--micro-batch", "2", "--checkpointing", "none", "--top", "4", "--steps", "6", "--grace", "2")


class Tune:
    """One ``zerokit tune`` in its own process."""

    def __init__(self, python: Path, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [str(python), "-m", "zerokit", "tune", *JOB, "--run-dir", "tuned", *arguments],
            cwd=folder,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, seconds: float = 120) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err

    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / "tuned" / "tune.json").read_text())
        return value

    def kept(self) -> list[dict[str, Any]]:
        """Observations for later plans."""
        files = list((self.folder / "cache" / "zerokit" / "tuned").glob("*.json"))
        return [observation for path in files for observation in json.loads(path.read_text())["observations"]]

    def left(self) -> list[int]:
        """Living ranks or launchers of any trial."""
        marker = f"ZEROKIT_RUN_DIR={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    alive = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
                    if alive and marker in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


Start = Callable[..., Tune]


@pytest.fixture
def tune(stub_python: Path, tmp_path: Path) -> Iterator[Start]:
    """``tune("1=oom", options=(…))``: what each stage does; four stages to try, one micro-batch."""
    started: list[Tune] = []

    def start(*deeds: str, options: tuple[str, ...] = ()) -> Tune:
        script = str(PROGRAMS / "tuned.py")
        started.append(Tune(stub_python, tmp_path, [*PINS, *options, script, *deeds]))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.wait()
        for pid in run.left():
            os.kill(pid, signal.SIGKILL)


def by_stage(body: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {trial["strategy"]["zero_stage"]: trial for trial in body["trials"]}


def test_the_fastest_is_kept_and_what_fails_is_survived(tune: Start) -> None:
    run = tune("0=oom", "1=0.3", "2=fail", "3=0.03", options=("--json",))
    code, out, err = run.end()
    assert code == 0, err
    body = json.loads(out)
    assert body == {**run.result(), "seconds": body["seconds"]}
    trials = by_stage(body)
    assert {stage: trial["outcome"] for stage, trial in trials.items()} == {
        0: "oom", 1: "stopped", 2: "rank_failed", 3: "stopped",
    }  # fmt: skip
    assert body["fastest"] == trials[3]["trial"]
    assert 0.05 < trials[1]["measured_step_seconds"] < 0.6
    assert 0.02 < trials[3]["measured_step_seconds"] < trials[1]["measured_step_seconds"]
    assert trials[3]["measured_peak_bytes"] > 1 << 20 and trials[3]["memory"] == "host"
    assert "can't allocate" in trials[0]["problem"] and "step 2" in trials[0]["problem"]
    for trial in trials.values():
        report = json.loads((Path(trial["run_dir"]) / "report.json").read_text())
        assert report["outcome"] == trial["outcome"]
        assert (Path(trial["run_dir"]) / "plan" / "plan.yaml").is_file()
    plan = yaml.safe_load((run.folder / "zerokit-plan" / "plan.yaml").read_text())
    assert plan["chosen"]["zero_stage"] == 3
    assert plan["chosen"]["parameters"] and plan["chosen"]["seq_len"]  # by which a launch judges its run
    assert plan["request"]["micro-batch"] == "2" and plan["request"]["checkpointing"] == "none"
    assert plan["chosen"]["measured"]["step_seconds"] == trials[3]["measured_step_seconds"]
    config = json.loads((run.folder / "zerokit-plan" / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 3
    assert (run.folder / "zerokit-plan" / "accelerate.yaml").is_file()
    assert sorted(row["zero_stage"] for row in run.kept()) == [1, 3]
    assert not run.left()
    assert "trial 1 of 4" in err and "memory" in err


def test_what_the_user_runs_today_is_measured_beside_the_plans(tune: Start, tmp_path: Path) -> None:
    """The file itself runs, its bucket too."""
    theirs = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 12345},
    }  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(theirs))
    run = tune("0=0.02", "1=0.02", "2=0.2", "3=0.02", options=("--against", "mine.json", "--json"))
    code, out, err = run.end()
    assert code == 0, err
    body = json.loads(out)
    against, best = body["against"], body["trials"][body["fastest"] - 1]
    assert against["path"] == "mine.json" and against["trial"] == 0 and against["counts"]
    assert best["strategy"]["zero_stage"] != 2
    ratio = against["measured_step_seconds"] / best["measured_step_seconds"]
    assert against["times_as_fast"] == pytest.approx(ratio) and ratio > 3
    ran = json.loads((Path(against["run_dir"]) / "ds_config.json").read_text())
    assert ran["zero_optimization"]["reduce_bucket_size"] == 12345
    assert len(run.kept()) == sum(trial["counts"] for trial in body["trials"])  # of plans alone


def test_only_a_deepspeed_file_is_measured_beside_the_plans(tune: Start, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    code, _, err = tune(options=("--against", "mine.yaml")).end()
    assert code == 2 and "--against mine.yaml: tune runs a DeepSpeed JSON beside its plans" in err


def test_a_later_plan_on_the_same_machine_takes_the_measured_fastest(tune: Start) -> None:
    pins = ("--micro-batch", "2", "--checkpointing", "none", "--json")

    def plan(folder: Path) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "plan", *JOB, *pins],
            cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    listed = tune(options=("--dry-run", "--json"))
    predicted, second, *_ = by_stage(json.loads(listed.end()[1]))
    assert plan(listed.folder)["chosen"]["zero_stage"] == predicted
    run = tune(f"{predicted}=0.2", f"{second}=0.02", options=("--top", "2"))
    code, out, err = run.end()
    assert code == 0, err
    assert "fastest" in out and "Kept for later plans here" in out and "zerokit launch --plan" in out
    later = plan(run.folder)
    assert later["chosen"]["zero_stage"] == second
    assert any("ranked by the measured steps of 2 strategies" in note for note in later["assumptions"])


@pytest.mark.slow
def test_ctrl_c_ends_all_and_keeps_what_was_measured(tune: Start) -> None:
    listed = tune(options=("--dry-run", "--json"))
    stages = [trial["strategy"]["zero_stage"] for trial in json.loads(listed.end()[1])["trials"]]
    assert sorted(stages) == [0, 1, 2, 3] and not (listed.folder / "tuned").exists()
    run = tune(f"{stages[0]}=0.03", *(f"{stage}=hang" for stage in stages[1:]), options=("--json",))
    second = run.folder / "tuned" / "trial-2" / "rank-00001.jsonl"
    wait_for(lambda: second.exists() and '"engine"' in second.read_text(), 60, lambda: "trial 2 runs not")
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end(30)
    assert code == 130, err
    assert not run.left()
    body = run.result()
    assert body["interrupted"] is True and body["fastest"] == 1
    assert json.loads(out)["trials"] == body["trials"]
    assert [t["outcome"] for t in body["trials"]] == ["stopped", "interrupted", "not_run", "not_run"]
    assert [row["zero_stage"] for row in run.kept()] == stages[:1]
    assert body["files"] == {} and not (run.folder / "zerokit-plan").exists()


@pytest.mark.parametrize(
    ("deeds", "options", "code", "words"),
    [
        (("0=oom", "1=oom", "2=oom", "3=oom"), ("--top", "2"), 10, "All ran out of memory"),
        pytest.param(
            ("0=fail", "1=fail", "2=fail", "3=fail"), ("--top", "2"), 10, "exited with code 3", marks=SLOW
        ),
        (("0=hang", "1=hang", "2=hang", "3=hang"), ("--top", "1", "--timeout", "5"), 11, "not done within 5"),
        pytest.param(("--steps", "2"), ("--top", "1"), 2, "only 2 optimizer steps", marks=SLOW),
        (("--batch", "7"), ("--top", "1"), 2, "batch size per GPU 7 ran, not 2"),
    ],
)
def test_when_no_trial_counts_the_exit_code_says_why(
    tune: Start, deeds: tuple[str, ...], options: tuple[str, ...], code: int, words: str
) -> None:
    run = tune(*deeds, options=options)
    ended, out, err = run.end()
    assert ended == code, err
    assert words in err and "none of the plans could be timed" in err
    assert "Tried" in out
    assert run.result()["fastest"] is None and run.kept() == []
    assert not (run.folder / "zerokit-plan").exists() and not run.left()


@pytest.mark.slow
def test_a_script_of_another_job_is_tuned_but_calibrates_nothing(tune: Start) -> None:
    run = tune("--tokens", "64", options=("--top", "1"))
    code, out, err = run.end()
    assert code == 0, err
    assert "give --seq-len 64" in " ".join(out.split()) and run.kept() == []
    assert (run.folder / "zerokit-plan" / "plan.yaml").is_file()


@pytest.mark.slow
def test_a_second_tune_in_the_same_folder_loses_nothing(tune: Start) -> None:
    assert tune(options=("--top", "1")).end()[0] == 0
    again = tune(options=("--top", "1"))
    assert again.end()[0] == 0
    assert (again.folder / "tuned" / "previous-1" / "tune.json").is_file()
    assert (again.folder / "tuned" / "previous-1" / "trial-1" / "report.json").is_file()
    assert len(again.kept()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*JOB], "name a script"),
        ([*JOB, "--steps", "2", "SCRIPT"], "--steps 2: at least 3, of which 2 warm up"),
        ([*JOB, "--launcher", "mpirun", "SCRIPT"], "--launcher: 'mpirun'; use one of deepspeed"),
        ([*JOB, "--out", "plain.py/plan", "SCRIPT"], "plain.py is a file; name a folder"),
        ([*JOB, "--top", "0", "SCRIPT"], "--top"),
        ([*JOB, "--timeout", "0", "SCRIPT"], "--timeout: 0 must be at least 1 second"),
        ([*JOB, "--inference", "SCRIPT"], "--inference"),
        ([*JOB, "--json", "--show", "all", "SCRIPT"], "leave --show out"),
        ([*JOB, "nowhere.py"], "there is no such file"),
        ([*JOB, "SCRIPT", "--deepspeed_config", "mine.json"], "leave it out"),
        ([*JOB, "plain.py"], "no plan reaches this script"),
        ([*JOB, "known.py", "--dry-run"], "stand before the script: zerokit tune --dry-run … known.py …"),
        ([*JOB, "known.py", "--batch", "{microbatch}"], "is not filled in; did you mean {micro_batch}?"),
        (["--model", "gpt2", "--gpu", "h200", "SCRIPT"], "--device cpu in its place tunes on CPU ranks"),
        (["--model", "gpt2", "--vram", "80GiB", "SCRIPT"], "--vram"),
        (["--model", "gpt2", "--gpus", "2", "--device", "cuda", "SCRIPT"], "no GPU was found"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from zerokit.cli import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    (tmp_path / "plain.py").write_text("print('trains nothing')\n")
    (tmp_path / "known.py").write_text(KNOWN)
    given = [str(PROGRAMS / "tuned.py") if argument == "SCRIPT" else argument for argument in arguments]
    assert run(["tune", *given]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("model", "is_warned"), [("llama-3.1-8b", True), ("gpt2", False)])
def test_another_model_than_the_scripts_is_warned_of(
    model: str, is_warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its trials would measure the script's model under plans for the other."""
    from zerokit.cli import run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import argparse, deepspeed\np = argparse.ArgumentParser()\ndeepspeed.add_config_arguments(p)\n"
        f"p.add_argument('--model', default='{model}')\np.parse_args()\ndeepspeed.initialize()\n"
    )
    assert run(["tune", *JOB, "--dry-run", "train.py"]) == 0
    said = capsys.readouterr().err
    told = "train.py's own --model llama-3.1-8b (its default) is another model than the plan's gpt2"
    assert (told in said) is is_warned
    assert ("; tune with --model llama-3.1-8b" in said) is is_warned


@SLOW  # the examples of docs/guide/tune.md run real DeepSpeed too
def test_real_deepspeed_survives_an_out_of_memory_and_keeps_the_rest(
    stub_python: Path, tmp_path: Path
) -> None:
    """The example under DeepSpeed on two CPU ranks; one stage asks for more memory than there is."""
    pytest.importorskip("deepspeed")
    model = Path(__file__).parents[2] / "examples" / "tiny-llama.json"
    job = ("--model", str(model), "--device", "cpu", "--gpus", "2", "--seq-len", "128", "--global-batch", "4")
    more = (
        "--micro-batch",
        "2",
        "--precision",
        "fp32",
        "--top",
        "2",
        "--steps",
        "4",
        "--style",
        "raw",
        "--json",
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def zerokit(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(stub_python), "-m", "zerokit", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip

    script = str(Path(__file__).parents[1] / "scripts" / "runs_out_of_memory.py")
    listed = json.loads(zerokit("tune", *job, *more, "--dry-run", script, "9").stdout)
    first, second = (trial["strategy"]["zero_stage"] for trial in listed["trials"])
    done = zerokit("tune", *job, *more, "--run-dir", "tuned", script, str(first), "--steps", "1000")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    failed, good = body["trials"]
    assert (failed["outcome"], failed["counts"]) == ("oom", False)
    assert (good["outcome"], good["counts"], good["steps"]) == ("stopped", True, 4)
    assert good["strategy"]["zero_stage"] == second and body["fastest"] == 2
    assert good["measured_step_seconds"] > 0
    assert good["measured_peak_bytes"] > 12e6 * 16 / 2  # the states of 12 million parameters, shared by two
    report = json.loads((Path(good["run_dir"]) / "report.json").read_text())
    engine = report["ranks"][1]["engine"]
    assert (engine["zero_stage"], engine["batch_rows"], engine["batch_columns"]) == (second, 2, 128)
    assert engine["gradient_checkpointing"] is False and 12e6 < engine["parameters"] < 13e6
    plan = yaml.safe_load((tmp_path / "zerokit-plan" / "plan.yaml").read_text())
    assert plan["chosen"]["zero_stage"] == second
    # the step time is known to the next plan, and a stopped trial is no finished training to anybody
    later = json.loads(zerokit("plan", *job, "--micro-batch", "2", "--precision", "fp32", "--json").stdout)
    assert any("1 strategy of this job" in note for note in later["assumptions"])
    shown = zerokit("report", good["run_dir"])
    assert "Outcome: stopped (stopped at its step limit" in shown.stdout
