"""What a rank's file holds after every way in which its process can end (faults 2, 12, 13, 22, 23)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ranks import (
    BOOTSTRAP,
    rank_environment,
    read_rank,
    run_rank,
    start_rank,
    ticks_of,
    wait_for,
    write_script,
)
from tests.support.reports import report_of
from zerokit.launcher.rank_file import (
    STACKS_SIGNAL,
    RankTail,
    find_rank_files,
    rank_file,
    stacks_file,
)
from zerokit.launcher.supervisor.hang_inquiry import slowdown
from zerokit.launcher.verdict.evidence import RankExit
from zerokit.launcher.verdict.report import report_of_folder, write_report
from zerokit.report.schema import RunReport

SLEEPER = """
    import time
    print("up", flush=True)
    time.sleep(60)
"""


# -- ways to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "state", "exit_code", "error"),
    [
        ("pass", 0, "finished", 0, None),
        ("import sys; sys.exit(0)", 0, "finished", 0, None),
        ("import sys; sys.exit(7)", 7, "failed", 7, "exited with code 7"),
        ("import sys; sys.exit('no data')", 1, "failed", 1, "no data"),
        ("raise KeyError('weight')", 1, "failed", 1, "KeyError: 'weight'"),
        ("import os; os._exit(0)", 0, "finished", 0, None),
        ("import os; os._exit(9)", 9, "failed", 9, "exited with code 9"),
        ("raise MemoryError", 1, "failed", 1, "MemoryError"),
        ("def broken(:", 1, "failed", 1, "SyntaxError"),
    ],
)
def test_an_end_of_its_own_is_told_in_the_last_line(tmp_path, body, code, state, exit_code, error):
    script = write_script(tmp_path, body)
    assert run_rank(tmp_path, "--", script)[0] == code
    end = read_rank(tmp_path).records[-1]
    assert (end["type"], end["state"], end["exit_code"]) == ("end", state, exit_code)
    rank = report_of(tmp_path)["ranks"][0]
    assert rank["state"] == state
    assert (rank["error"] or "").startswith(error or "")
    assert bool(rank["error"]) == bool(error)


LEAVES = """
    import os, sys
    from zerokit.launcher.rank import probe
    probe.ACTIVE.position = int(sys.argv[1]), 0
    if sys.argv[2] == "leave":
        os._exit(0)
    if sys.argv[2] == "atexit":
        import atexit
        atexit.register(os._exit, 0)
    if sys.argv[2] == "save":
        probe.ACTIVE.begin("save")
        os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "outcome", "states"),
    [
        # half-way, while its peer comes to its end
        ([("3", "leave"), ("9", "end")], "launcher_lost", ["lost", "finished"]),
        ([("0", "leave"), ("0", "end")], "launcher_lost", ["lost", "finished"]),
        ([("3", "leave"), ("9", "leave")], "launcher_lost", ["lost", "finished"]),
        # alike, but from inside a call that was under way
        ([("3", "save"), ("3", "save")], "launcher_lost", ["lost", "lost"]),
        # on purpose, as the last thing that it does
        ([("9", "leave"), ("9", "leave")], "ok", ["finished", "finished"]),
        ([("9", "leave"), ("9", "end")], "ok", ["finished", "finished"]),
        ([("0", "leave"), ("0", "leave")], "ok", ["finished", "finished"]),
        ([("9", "atexit"), ("9", "end")], "ok", ["finished", "finished"]),
    ],
)
def test_a_rank_that_leaves_half_way_has_not_finished(tmp_path, ranks, outcome, states):
    script = write_script(tmp_path, LEAVES)
    for number, arguments in enumerate(ranks):
        assert run_rank(tmp_path, "--", script, *arguments, rank=number, ranks=2)[0] == 0
    exits = [RankExit(rank=number, code=0, at=1.0) for number in range(2)]
    report = report_of(tmp_path, ranks=2, exits=exits)
    assert (report["outcome"], [rank["state"] for rank in report["ranks"]]) == (outcome, states)
    if "lost" in states:
        error = report["ranks"][0]["error"]
        line = 12 if ranks[0][1] == "save" else 6
        assert f"os._exit(0) at {script}:{line} after {ranks[0][0]} steps" in error
        assert ("(save was under way)" in error) == (line == 12)
    warned = [text for text in report["problems"] if "left with os._exit(0)" in text]
    left = [way == "leave" and state == "finished" for (_, way), state in zip(ranks, states, strict=True)]
    assert len(warned) == any(left)


def test_an_exception_leaves_its_traceback_and_no_frame_of_ours(tmp_path):
    script = write_script(tmp_path, "def f():\n    raise ValueError('boom')\nf()\n")
    _, _, shown = run_rank(tmp_path, "--", script)
    failure = report_of(tmp_path)["first_failure"]
    assert failure["traceback"].strip() == shown.strip()
    assert "boom" in shown
    assert "bootstrap" not in shown and "rank_process" not in shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_fatal_signal_loses_at_most_half_a_second(tmp_path, number):
    script = write_script(tmp_path, SLEEPER)
    with start_rank(tmp_path, "--", script) as process:
        assert process.stdout.readline() == "up\n"
        wait_for(lambda: len(ticks_of(tmp_path)) >= 3, "three ticks")
        killed_at = time.time()
        process.send_signal(number)
        assert process.wait() == -number
    log = read_rank(tmp_path)
    assert log.last("end") is None
    assert killed_at - log.last("tick")["time"] < 0.5 * slowdown()
    exit_ = RankExit(rank=0, signal=int(number), at=killed_at)
    rank = report_of(tmp_path, exits=[exit_])["ranks"][0]
    assert (rank["state"], rank["signal"]) == ("failed", number)
    assert rank["peak_host_rss_bytes"] > 0


def test_a_crash_leaves_the_python_stack(tmp_path):
    script = write_script(tmp_path, "import ctypes\ndef deep():\n    ctypes.string_at(0)\ndeep()\n")
    code, _, _ = run_rank(tmp_path, "--", script)
    assert code == -signal.SIGSEGV
    assert "in deep" in stacks_file(tmp_path, 0).read_text()


def test_stacks_are_saved_on_request_and_training_goes_on(tmp_path):
    script = write_script(tmp_path, """
        import glob, os, time
        def stalled():
            print("up", flush=True)
            while not any(map(os.path.getsize, glob.glob(os.environ["ZEROKIT_RUN_DIR"] + "/stacks-*"))):
                time.sleep(0.05)
        stalled()
        print("on")
    """)  # fmt: skip
    with start_rank(tmp_path, "--", script) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(STACKS_SIGNAL)
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, "on\n")
    assert "in stalled" in stacks_file(tmp_path, 0).read_text()


def test_no_stacks_file_is_left_when_nothing_was_dumped(tmp_path):
    run_rank(tmp_path, "--", write_script(tmp_path, "pass"))
    assert not stacks_file(tmp_path, 0).exists()


# -- SIGTERM --------------------------------------------------------------------------------------


def sigterm(tmp_path: Path, body: str) -> tuple[int, str]:
    with start_rank(tmp_path, "--", write_script(tmp_path, body)) as process:
        first = process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=20 * slowdown())
    return process.returncode, first + rest


def test_sigterm_ends_as_without_us_and_is_told(tmp_path):
    assert sigterm(tmp_path, SLEEPER) == (-signal.SIGTERM, "up\n")
    end = read_rank(tmp_path).records[-1]
    assert (end["type"], end["state"], end["signal"]) == ("end", "terminated", signal.SIGTERM)


def test_the_scripts_own_sigterm_handler_runs_and_decides(tmp_path):
    code, out = sigterm(
        tmp_path,
        """
        import signal, sys, time
        def save(number, frame):
            print("saved", flush=True)
            time.sleep(2.5)   # longer than a stuck rank is given: a checkpoint takes its time
            sys.exit(3)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
    )
    assert (code, out) == (3, "up\nsaved\n")
    assert read_rank(tmp_path).records[-1]["exit_code"] == 3


def test_a_handler_set_before_the_script_is_chained(tmp_path):
    """As sitecustomize or a debugger would: our handler calls it and leaves the rest to it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda n, f: (print('theirs', flush=True), os._exit(5)))\n"
    )
    script = write_script(tmp_path, SLEEPER)
    environment = {**rank_environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, BOOTSTRAP, "--", script], env=environment, text=True,
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "theirs\n"
        assert process.wait(timeout=10 * slowdown()) == 5
    assert read_rank(tmp_path).records[-1]["state"] == "terminated"


def test_a_rank_blocked_in_c_code_ends_on_sigterm(tmp_path):
    """A C call that resumes after EINTR by itself, as Gloo's and NCCL's waits do."""
    code, _ = sigterm(
        tmp_path,
        """
        import ctypes
        libc = ctypes.CDLL(None)
        ready = ctypes.create_string_buffer(64)
        libc.sem_init(ready, 0, 0)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        print("up", flush=True)
        # pthread_join waits on a futex and never returns on a signal
        thread = ctypes.c_ulong()
        libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.sleep, ctypes.c_void_p),
                            ctypes.c_void_p(60))
        libc.pthread_join(thread, None)
        """,
    )
    assert code == -signal.SIGTERM
    end = read_rank(tmp_path).records[-1]
    assert (end["type"], end["state"], end["signal"]) == ("end", "terminated", signal.SIGTERM)


# -- children -------------------------------------------------------------------------------------


def test_children_claim_no_rank_and_take_signals_as_without_us(tmp_path):
    script = write_script(
        tmp_path,
        """
        import multiprocessing, os, signal, sys, time
        def work(queue):
            import zerokit
            queue.put((zerokit.snapshot(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL))
            sys.exit(4)
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                print(method, queue.get(timeout=30))
                child.join()
                print(child.exitcode)
            pid = os.fork()
            if pid == 0:
                sys.exit(5)      # runs atexit in the child: not the rank's end
            print(os.waitpid(pid, 0)[1] >> 8)
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
            time.sleep(0.2)
            os.kill(pid, signal.SIGTERM)
            print(os.waitpid(pid, 0)[1])
            time.sleep(0.6)
        """,
    )
    code, out, err = run_rank(tmp_path, "--", script)
    expected = "fork (None, True)\n4\nspawn (None, True)\n4\n5\n15\n"
    assert (code, out) == (0, expected), err
    log = read_rank(tmp_path)
    assert [record["type"] for record in log.records].count("end") == 1
    assert log.records[-1]["state"] == "finished"
    assert {record["pid"] for record in log.records} == {log.records[0]["pid"]}
    assert [path.name for path in find_rank_files(tmp_path)] == ["rank-00000.jsonl"]


def test_a_restarted_rank_appends_and_its_last_life_counts(tmp_path):
    run_rank(tmp_path, "--", write_script(tmp_path, "raise SystemExit(3)"))
    run_rank(tmp_path, "--", write_script(tmp_path, "pass"))
    rank = report_of(tmp_path)["ranks"][0]
    assert (rank["state"], rank["restarts"]) == ("finished", 1)


# -- full disks -----------------------------------------------------------------------------------


# -- damaged files --------------------------------------------------------------------------------


def test_kills_at_random_moments_never_leave_a_complete_file(tmp_path):
    """Fault 23: 12 ranks killed at random; none reads as finished, every good line is whole."""
    script = write_script(tmp_path, "import time\nwhile True: time.sleep(0.01)\n")
    chance = random.Random(23)
    batch = [start_rank(tmp_path, "--", script, rank=rank, ranks=12) for rank in range(12)]
    for rank in range(3, 12):  # three may be killed before they wrote anything
        wait_for(rank_file(tmp_path, rank).exists, f"rank {rank}")
    for process in chance.sample(batch, len(batch)):
        time.sleep(chance.uniform(0.0, 0.08))
        process.kill()
    for process in batch:
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    report = report_of(tmp_path, 12)
    assert report["outcome"] == "launcher_lost"
    assert {rank["state"] for rank in report["ranks"]} == {"lost"}
    assert not [text for text in report["problems"] if "damaged" in text]
    assert 9 <= len(find_rank_files(tmp_path)) <= 12


# -- long runs, secrets, followers ----------------------------------------------------------------


def test_a_long_file_is_compacted_and_keeps_its_story(tmp_path):
    script = write_script(
        tmp_path,
        """
        import time, zerokit
        from zerokit.launcher.rank import ticker
        ticker.COMPACT_BYTES = 3000
        zerokit.snapshot("kept")
        big = bytearray(300 << 20)
        time.sleep(0.6)
        del big
        time.sleep(3)
        """,
    )
    assert run_rank(tmp_path, "--", script)[0] == 0
    assert rank_file(tmp_path, 0).stat().st_size < 8_000
    log = read_rank(tmp_path)
    assert log.bad_lines == []
    assert [record["type"] for record in log.records[:2]] == ["start", "note"]
    rank = report_of(tmp_path)["ranks"][0]
    assert rank["state"] == "finished"
    used = [point[6] for point in rank["timeline"]]
    assert max(used) > 300 << 20 > min(used)  # what happened before the compaction is still told
    assert [note["label"] for note in rank["notes"]] == ["kept"]


def test_secrets_reach_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    script = write_script(tmp_path, "import os; raise OSError('401 for ' + os.environ['HF_TOKEN'])")
    run_rank(tmp_path, "--", script)
    write_report(tmp_path, RunReport.model_validate(report_of(tmp_path)))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path != script)
    assert b"<HF_TOKEN>" in written
    assert b"hf_abcdef" not in written and b"0123456789abcdef" not in written


def test_a_follower_sees_records_as_they_come_and_across_a_compaction(tmp_path, finished):
    path = rank_file(tmp_path, 0)
    tail = RankTail(path)
    assert tail.poll() == []
    half = finished.index(b"\n") + 20
    path.write_bytes(finished[:half])
    assert [record["type"] for record in tail.poll()] == ["start"]
    assert tail.poll() == []
    path.write_bytes(finished)
    assert [record["type"] for record in tail.poll()][-1] == "end"
    assert tail.records["end"]["state"] == "finished"
    path.unlink()
    path.write_bytes(finished[: finished.index(b"\n") + 1])
    assert [record["type"] for record in tail.poll()] == ["start"]


def test_a_run_is_shown_while_it_lives(tmp_path):
    with start_rank(tmp_path, "--", write_script(tmp_path, SLEEPER)) as process:
        assert process.stdout.readline() == "up\n"
        time.sleep(0.2)
        assert report_of_folder(tmp_path).outcome == "running"
        process.kill()
