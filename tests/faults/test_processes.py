"""Faults of processes: every signal named here is really sent, and nobody may be left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import SCRIPT, Figure, Launch, Run, wait_for
from zerokit.launcher.supervisor.hang_inquiry import slowdown

SLOW = pytest.mark.slow


def slack_seconds() -> float:
    """What the time limits of the fault table leave to Python's own start and end; more on a busy machine."""
    return 4.0 * slowdown()


def nobody_left(run: Run, figure: Figure, seconds: float = 3.0) -> None:
    took = wait_for(lambda: not run.left(), seconds + slack_seconds(), lambda: f"left: {run.left()}")
    figure("seconds", took)


def test_success_is_reported_and_arguments_arrive_verbatim(launch: Launch) -> None:
    extra = ["--plan", "mine", "-x", "", "a b", "--lr=1e-4", "--", "--help", "ä'\"$HOME`id`", "*"]
    run = launch("all:arguments", *extra)
    code, out, err = run.end()
    assert code == 0, err
    report = run.report()
    assert report["outcome"] == "ok"
    assert [rank["state"] for rank in report["ranks"]] == ["finished", "finished"]
    assert "rank" in out
    assert not run.left()
    for rank in (0, 1):
        argv = (run.folder / f"argv-{rank}").read_text()
        assert argv == ascii([str(SCRIPT), "all:arguments", *extra])
    record = json.loads((run.run_dir / "command.json").read_text())
    assert record["expected_ranks"] == 2 and record["environment"]["ZEROKIT_RUN_DIR"] == str(run.run_dir)


@pytest.mark.parametrize(
    ("rank", "number"),
    [
        (0, signal.SIGKILL), (1, signal.SIGSEGV), pytest.param(0, signal.SIGABRT, marks=SLOW),
        pytest.param(0, signal.SIGTERM, marks=SLOW), pytest.param(1, signal.SIGKILL, marks=SLOW),
    ],
)  # fmt: skip
def test_a_rank_is_killed(launch: Launch, rank: int, number: signal.Signals, figure: Figure) -> None:
    run = launch("all:work")
    pids = run.until_started(2)
    os.kill(pids[rank], number)
    began = time.monotonic()
    code, _, err = run.end()
    assert figure("seconds", time.monotonic() - began) <= 3 + slack_seconds()
    assert code == 10, err
    assert f"rank {rank} on " in err and number.name in err
    report = run.report()
    assert report["outcome"] == "rank_failed"
    assert report["first_failure"]["rank"] == rank
    states = {entry["rank"]: (entry["state"], entry["signal"]) for entry in report["ranks"]}
    assert states[rank] == ("failed", int(number))
    assert states[1 - rank][0] == "terminated"
    assert not run.left()


@pytest.mark.slow
def test_a_rank_that_looks_dead_while_its_threads_run_is_ended(launch: Launch) -> None:
    """As a rank does whose GPU's driver still tears down: no process may be left when the launch ends."""
    run = launch("all:headless", options=("--grace", "1"))
    pids = run.until_started(2)

    def headless() -> bool:
        return all("State:\tZ" in Path(f"/proc/{pid}/status").read_text() for pid in pids.values())

    wait_for(headless, 20, lambda: "the main threads end")
    os.kill(run.process.pid, signal.SIGTERM)
    code, _, err = run.end()
    assert code == 143, err
    assert not [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]


def test_a_rank_fails_by_itself(launch: Launch) -> None:
    run = launch("all:work", "1:fail")
    code, _, err = run.end()
    assert code == 10
    assert "code 7" in err
    assert run.report()["first_failure"]["rank"] == 1
    assert not run.left()


@pytest.mark.parametrize("who", [pytest.param(0, marks=SLOW), 1])  # rank 0's output is on the terminal
def test_a_traceback_is_shown_once_and_last(launch: Launch, who: int) -> None:
    run = launch("all:work", f"{who}:raise")
    code, out, err = run.end()
    assert code == 10
    assert (out + err).count("Traceback (most recent call last)") == 1
    assert f"its output: {run.run_dir}/logs/rank-0000{who}.err.log" in err
    *_, error, verdict, logs, folder = err.splitlines()
    assert error == "ValueError: the learning rate is a lemon" or who == 0
    assert f"rank failed: rank {who}" in verdict and "err.log" in logs and "run folder" in folder


def test_a_rank_runs_out_of_memory(launch: Launch) -> None:
    run = launch("all:work", "1:memory")
    code, _, err = run.end()
    assert code == 10
    assert "oom: " in err and "rank 1" in err
    report = run.report()
    assert report["outcome"] == "oom" and report["first_failure"]["rank"] == 1
    assert [rank["state"] for rank in report["ranks"]] == ["terminated", "failed"]
    assert not run.left()


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["segv", pytest.param("raise", marks=SLOW)])
def test_a_rank_fails_before_anybody_looks(launch: Launch, deed: str) -> None:
    run = launch(f"0:{deed}", ranks=1)
    code, _, err = run.end()
    assert code == 10, err
    assert run.report()["first_failure"]["rank"] == 0


@pytest.mark.slow
def test_os_exit_zero_is_a_finish(launch: Launch) -> None:
    run = launch("all:os_exit")
    code, _, err = run.end()
    assert code == 0, err
    assert {rank["state"] for rank in run.report()["ranks"]} == {"finished"}


@pytest.mark.slow
def test_a_rank_without_report_is_no_success(launch: Launch) -> None:
    run = launch("0:unreported")
    code, _, err = run.end()
    assert code == 12, err
    assert run.report()["outcome"] == "launcher_lost"


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW), pytest.param(signal.SIGHUP, marks=SLOW),
        pytest.param(signal.SIGQUIT, marks=SLOW),
    ],
)  # fmt: skip
def test_zerokit_is_told_to_end(launch: Launch, number: signal.Signals, figure: Figure) -> None:
    grace = 5.0
    run = launch("all:saves", options=("--grace", str(grace)))
    run.until_started(2)
    began = time.monotonic()
    os.kill(run.process.pid, number)
    code, _, err = run.end()
    assert figure("seconds", time.monotonic() - began) <= grace + 2 + slack_seconds()
    assert code == 128 + number, err
    report = run.report()
    assert report["outcome"] == "interrupted" and report["exit_code"] == 128 + number
    assert sorted(path.name for path in run.folder.glob("saved-*")) == ["saved-0", "saved-1"]
    assert not run.left()


@pytest.mark.slow
def test_a_second_interrupt_skips_the_grace(launch: Launch, figure: Figure) -> None:
    run = launch("all:stubborn", options=("--grace", "120"))
    run.until_started(2)
    os.kill(run.process.pid, signal.SIGINT)
    time.sleep(1.0)
    assert run.process.poll() is None
    began = time.monotonic()
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end()[0] == 130
    assert figure("seconds", time.monotonic() - began) <= 2 + slack_seconds()
    assert not run.left()


def test_zerokit_is_killed(launch: Launch, figure: Figure) -> None:
    run = launch("all:work")
    run.until_started(2)
    run.process.kill()
    nobody_left(run, figure)
    wait_for((run.run_dir / "report.json").exists, 10, lambda: "no report by the guard")
    report = run.report()
    assert report["outcome"] == "launcher_lost" and report["exit_code"] == 12


@pytest.mark.slow
def test_the_guard_is_killed(launch: Launch, figure: Figure) -> None:
    run = launch("all:work")
    run.until_started(2)
    (guard,) = run.children("guard.py")
    os.kill(guard, signal.SIGKILL)
    nobody_left(run, figure)
    code, _, err = run.end()
    assert code == 12, err
    assert run.report()["outcome"] == "launcher_lost"


def test_deepspeed_is_killed(launch: Launch) -> None:
    run = launch("all:work")
    run.until_started(2)
    outer = [pid for pid in run.children("bin/deepspeed") if pid not in run.children("--inner")]
    os.kill(outer[0], signal.SIGKILL)
    code, _, err = run.end()
    assert code == 12, err
    assert run.report()["outcome"] == "launcher_lost"
    assert not run.left()


@pytest.mark.slow
def test_the_inner_launcher_is_killed(launch: Launch) -> None:
    run = launch("all:work")
    run.until_started(2)
    os.kill(run.children("--inner")[0], signal.SIGKILL)
    code, _, err = run.end()
    assert code == 12, err
    assert not run.left()


@pytest.mark.parametrize("ranks", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_ranks_that_ignore_sigterm(launch: Launch, ranks: int, figure: Figure) -> None:
    grace = 2.0
    run = launch("all:stubborn", ranks=ranks, options=("--grace", str(grace)))
    run.until_started(ranks, 180)
    began = time.monotonic()
    os.kill(run.process.pid, signal.SIGTERM)
    code, _, _ = run.end(120)
    assert code == 143
    assert figure("seconds", time.monotonic() - began) <= grace + 3 + slack_seconds() * (1 + ranks // 32)
    assert len(run.report()["ranks"]) == ranks
    assert not run.left()


@pytest.mark.parametrize(
    ("how", "deed"),
    [
        ("rank", "daemon"), ("zerokit", "session"), pytest.param("rank", "session", marks=SLOW),
        pytest.param("zerokit", "daemon", marks=SLOW), pytest.param("zerokit", "child", marks=SLOW),
    ],
)  # fmt: skip
def test_what_a_rank_started_goes_too(launch: Launch, deed: str, how: str, figure: Figure) -> None:
    run = launch(f"all:{deed}")
    pids = run.until_started(2)
    if how == "rank":
        os.kill(pids[1], signal.SIGKILL)
        assert run.end()[0] == 10
    else:
        run.process.kill()
    nobody_left(run, figure)


@pytest.mark.parametrize("how", ["stop", "blocked", pytest.param("sleep", marks=SLOW)])
def test_a_rank_stalls(launch: Launch, how: str, figure: Figure) -> None:
    heartbeat, grace = 3.0, 2.0
    deeds = ("all:work",) if how == "stop" else ("all:blocked", f"1:{how}")
    run = launch(*deeds, options=("--heartbeat", str(heartbeat), "--grace", str(grace)))
    pids = run.until_started(2)
    began = time.monotonic()
    if how == "stop":
        os.kill(pids[1], signal.SIGSTOP)
    code, _, err = run.end()
    assert code == 11, err
    assert figure("seconds", time.monotonic() - began) <= heartbeat + grace + 3 + slack_seconds()
    report = run.report()
    assert report["outcome"] == "hung"
    for rank in (0, 1):
        stacks = (run.run_dir / f"stacks-{rank:05d}.txt").read_text()
        assert "rank.py" in stacks
    assert not run.left()


@pytest.mark.slow
def test_a_guard_and_a_launcher_that_are_stopped_are_continued(launch: Launch) -> None:
    run = launch("all:short")
    run.until_started(2)
    for pid in (*run.children("guard.py"), *run.children("bin/deepspeed")):
        os.kill(pid, signal.SIGSTOP)
    code, _, err = run.end()
    assert code == 0 and "it is continued" in err
    assert not run.left()


@pytest.mark.slow
def test_a_run_that_works_is_not_hung(launch: Launch) -> None:
    run = launch("all:work", options=("--heartbeat", "4"))
    run.until_started(2)
    time.sleep(9)
    assert run.process.poll() is None
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end()[0] == 143


def test_the_launcher_fails_before_any_rank(launch: Launch) -> None:
    run = launch("all:work", options=("--launcher", "torchrun"), environment={"PYTHONPATH": "/nonexistent"})
    os.kill(run.process.pid, signal.SIGTERM)
    code, _, _ = run.end()
    assert code in (143, -signal.SIGTERM)  # before or after it could listen
    assert not run.left()


@pytest.mark.slow
def test_output_is_kept_apart(launch: Launch) -> None:
    run = launch("all:noisy")
    code, out, _ = run.end(120)
    assert code == 0
    logs = run.run_dir / "logs"
    for rank in (0, 1):
        lines = (logs / f"rank-{rank:05d}.out.log").read_text().splitlines()
        assert len(lines) == 200_000
        assert all(f"of rank {rank} with" in line for line in lines)
    assert "of rank 1" not in out


@pytest.mark.slow
def test_a_modules_arguments_arrive_verbatim(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text(SCRIPT.read_text())
    extra = ["all:arguments", "--plan", "mine", "--", "-m", "x"]
    run = launch(*extra, ranks=1, script=("-m", "pkg.train"))
    assert run.end()[0] == 0
    assert (run.folder / "argv-0").read_text() == repr([str(tmp_path / "pkg" / "train.py"), *extra])


def test_secrets_are_written_nowhere(launch: Launch) -> None:
    secrets = {"HF_TOKEN": "hf_abcdefghijklmnop", "WANDB_API_KEY": "0123456789abcdef0123"}
    run = launch("all:secret", "--hub_token", "hf_abcdefghijklmnop", environment=secrets)
    code, out, err = run.end()
    assert code == 0, err
    written = [path for path in run.folder.rglob("*") if path.is_file()]
    assert any("command.json" in path.name for path in written)
    for path in written:
        for secret in secrets.values():
            assert secret.encode() not in path.read_bytes(), path
    assert "hf_abcdefghijklmnop" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["fail", pytest.param("short", marks=SLOW)])
def test_nobody_reads_our_output(launch: Launch, deed: str) -> None:
    run = launch(f"all:{deed}")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.stdout = None
    _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == (10 if deed == "fail" else 0), err
    assert "Traceback" not in err and "BrokenPipe" not in err


def test_three_launches_into_one_folder(launch: Launch) -> None:
    runs = [launch("all:short", environment={"MARK": str(number)}) for number in range(3)]
    ends = [run.end() for run in runs]
    codes = sorted(code for code, _, _ in ends)
    assert codes == [0, 2, 2], [err for _, _, err in ends]
    first = next(run for run, (code, _, _) in zip(runs, ends, strict=True) if code == 0)
    for code, _, err in ends:
        assert code == 0 or f"pid {first.process.pid} " in err, err
    report = first.report()
    assert report["outcome"] == "ok" and [rank["state"] for rank in report["ranks"]] == ["finished"] * 2
    assert not list(first.run_dir.glob("previous-*")) and (first.run_dir / "command.json").is_file()


@pytest.mark.slow
def test_a_killed_launch_keeps_its_folder_until_its_report_is_written(launch: Launch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    first = launch("all:work", environment={"TMPDIR": str(temporary)})
    first.until_started(2)
    assert list(temporary.iterdir())
    first.process.kill()
    second = launch("all:short")
    code, _, err = second.end()
    if code == 2:  # the guard was not done yet
        assert f"pid {first.process.pid} was killed" in err or f"pid {first.process.pid} " in err
        wait_for(lambda: (first.run_dir / "report.json").exists(), 20, lambda: "no report")
        wait_for(lambda: not first.left(), 10, lambda: f"left: {first.left()}")
        code, _, err = launch("all:short").end()
    assert code == 0, err
    before = json.loads((first.run_dir / "previous-1" / "report.json").read_text())
    assert before["outcome"] == "launcher_lost"
    assert not list(temporary.iterdir())
    assert first.report()["outcome"] == "ok"


@pytest.mark.slow
def test_secrets_of_the_command_line_are_nowhere(launch: Launch) -> None:
    value = "-s3cret/of+the.command-line"
    environment = {"MYSQL_PWD": "1234567890123", "DATABASE_URL": "postgres://me:dbpassword9@h/d"}
    run = launch("1:tells", "--hub_token", value, f"hub.password={value}", environment=environment)
    code, out, err = run.end()
    assert code == 10, err  # the rank's own error names them too
    shown = {"terminal": out + err}
    for path in run.run_dir.rglob("*"):
        if path.is_file():
            shown[path.name] = path.read_text(errors="replace")
            assert path.suffix != ".log" or path.stat().st_mode & 0o777 == 0o600
    for name, text in shown.items():
        for secret in (value, "1234567890123", "dbpassword9"):
            assert secret not in text, (name, secret)
    assert "<redacted>" in shown["command.json"] and "<redacted>" in shown["report.json"]
