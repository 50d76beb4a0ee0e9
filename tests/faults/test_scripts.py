"""Scripts that do what scripts do: the outcome is the truth, and nobody is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Figure, Launch, wait_for
from tests.support.ranks import start_rank, ticks_of, write_script
from zerokit.launcher.rank.deadman import PIPE_SECONDS
from zerokit.launcher.supervisor.hang_inquiry import slowdown

WELL = {
    "closes its streams": """
        import sys, time
        print("before")
        sys.stdout.close()
        sys.stderr.close()
        time.sleep(0.6)
    """,
    "closes every descriptor": """
        import os, time
        os.closerange(0, 4096)
        time.sleep(1.0)
    """,
    "leaves and removes its folder": """
        import os, tempfile, time
        os.chdir(tempfile.mkdtemp())
        os.rmdir(os.getcwd())
        time.sleep(0.6)
    """,
    "starts itself anew": """
        import os, sys, time
        if "AGAIN" not in os.environ:
            os.environ["AGAIN"] = "1"
            os.execv(sys.executable, [sys.executable, *sys.argv])
        time.sleep(0.6)
    """,
    "leaves a daemon and workers behind": """
        import multiprocessing, os, time
        multiprocessing.set_start_method("fork")
        for _ in range(2):
            multiprocessing.Process(target=time.sleep, args=(600,)).start()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        time.sleep(0.6)
        os._exit(0)
    """,
    "clears its environment": """
        import os, time
        os.environ.clear()
        time.sleep(0.6)
    """,
}
BADLY = {
    "one rank exits with 3": ("1", "exited with code 3", """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(3)
        time.sleep(600)
    """),
    "one rank exits with a reason": ("0", "the data is not there", """
        import os, sys, time
        if os.environ["RANK"] == "0":
            sys.exit("the data is not there")
        time.sleep(600)
    """),
    "an exception that cannot be shown": ("0", "Odd: <it cannot be shown>", """
        import os, time
        class Odd(Exception):
            def __str__(self):
                raise ValueError
        if os.environ["RANK"] == "0":
            raise Odd
        time.sleep(600)
    """),
}  # fmt: skip


def write(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "script.py").write_text(textwrap.dedent(text))
    return ("script.py",)


FURTHER = (
    "closes its streams", "leaves and removes its folder", "starts itself anew", "clears its environment",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in FURTHER else name for name in WELL]
)
def test_a_script_that_ends_well(launch: Launch, tmp_path: Path, name: str) -> None:
    run = launch(script=write(tmp_path, WELL[name]))
    code, out, err = run.end()
    assert code == 0, out + err
    report = run.report()
    assert report["outcome"] == "ok"
    assert [rank["state"] for rank in report["ranks"]] == ["finished", "finished"]
    assert not run.left()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if at else ()) for at, name in enumerate(BADLY)]
)
def test_a_script_that_ends_badly(launch: Launch, tmp_path: Path, name: str) -> None:
    rank, said, text = BADLY[name]
    run = launch(script=write(tmp_path, text), options=("--grace", "2"))
    code, out, err = run.end()
    assert code == 10, out + err
    failure = run.report()["first_failure"]
    assert said in failure["error"] and str(failure["rank"]) == rank
    assert "zerokit/launcher" not in err  # no traceback of ours
    assert not run.left()


@pytest.mark.slow
def test_a_rank_that_kills_its_process_group(launch: Launch, tmp_path: Path) -> None:
    """The launcher and its ranks go at once, the guard is not among them; which was seen first is open."""
    text = """
        import os, signal, time
        time.sleep(1.0)
        if os.environ["RANK"] == "0":
            os.killpg(0, signal.SIGKILL)
        time.sleep(600)
    """
    run = launch(script=write(tmp_path, text))
    code, out, err = run.end()
    assert code in (10, 12), out + err
    assert run.report()["outcome"] in ("rank_failed", "launcher_lost")
    assert "guard" not in err
    assert not run.left()


@pytest.mark.slow
def test_bytes_that_are_no_text_pass_through(launch: Launch, tmp_path: Path) -> None:
    run = launch(script=write(tmp_path, "import os\nos.write(1, bytes(range(256)) * 1000)"), ranks=1)
    assert run.process.stdout is not None
    out = run.process.stdout.buffer.read()
    assert run.process.wait(60) == 0
    assert bytes(range(256)) * 1000 in out
    assert (run.run_dir / "logs" / "rank-00000.out.log").read_bytes() == bytes(range(256)) * 1000
    run.process.stdout.close()


@pytest.mark.slow
def test_a_hundred_megabytes_are_not_kept_in_memory(launch: Launch, tmp_path: Path) -> None:
    text = "import os\nfor _ in range(100 << 10): os.write(1, b'x' * 1023 + b'\\n')\nos.read(os.pipe()[0], 1)"
    run = launch(script=write(tmp_path, text), ranks=1, options=("--show", "none", "--heartbeat", "0"))
    log = run.run_dir / "logs" / "rank-00000.out.log"
    wait_for(lambda: log.exists() and log.stat().st_size == 100 << 20, 60, lambda: "not all was written")
    status = Path(f"/proc/{run.process.pid}/status").read_text()
    peak_kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak_kib < 100 << 10
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end()[0] == 143


def test_a_script_that_deletes_the_run_folder_trains_on(launch: Launch, tmp_path: Path) -> None:
    text = """
        import os, shutil, time
        time.sleep(0.6)
        shutil.rmtree(os.environ["ZEROKIT_RUN_DIR"])
        time.sleep(1.0)
        print("trained to the end")
    """
    run = launch(script=write(tmp_path, text), ranks=1)
    code, out, err = run.end()
    assert "trained to the end" in out
    assert code == 0, err  # the report is made of what was read before
    assert "Traceback" not in err
    assert not run.left()


@pytest.mark.slow
def test_another_program_in_a_ranks_place_is_no_success(launch: Launch, tmp_path: Path) -> None:
    run = launch(script=write(tmp_path, "import os\nos.execv('/bin/true', ['true'])"), ranks=1)
    code, _, err = run.end()
    assert code == 12, err
    assert "launcher lost: rank 0" in err and "another program" in err


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "import atexit, time\natexit.register(time.sleep, 3600)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()",
])  # fmt: skip
def test_a_script_that_does_not_end_after_its_last_line(launch: Launch, tmp_path: Path, text: str) -> None:
    run = launch(script=write(tmp_path, text), options=("--heartbeat", "3", "--grace", "1"))
    code, _, err = run.end()
    assert code == 11, err
    assert not run.left()


@pytest.mark.slow
def test_zerokit_and_its_guard_are_killed_together(launch: Launch, figure: Figure) -> None:
    run = launch("all:work")
    run.until_started(2)
    (guard,) = run.children("guard.py")
    os.kill(run.process.pid, signal.SIGSTOP)  # or it would see the guard die, and end the ranks
    os.kill(guard, signal.SIGKILL)
    run.process.kill()
    took = wait_for(lambda: not run.left(), PIPE_SECONDS + 12, lambda: f"left: {run.left()}")
    figure("seconds", took)


def test_writing_a_large_checkpoint_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from Python the rank stands still while other code writes: here a thread of its own."""
    script = write_script(tmp_path, """
        import os, sys, threading
        target = os.open("checkpoint", os.O_RDWR | os.O_CREAT)
        def write():
            piece = bytes(1 << 22)
            while True:
                os.pwrite(target, piece, 0)
        threading.Thread(target=write, daemon=True).start()
        threading.Event().wait(60.0)
    """)  # fmt: skip
    monkeypatch.chdir(tmp_path)
    process = start_rank(tmp_path, script)
    try:
        wait_for(
            lambda: any(tick["uptime_seconds"] > 3 for tick in ticks_of(tmp_path)), 30, lambda: "no tick"
        )
        tick = ticks_of(tmp_path)[-1]
        assert tick["idle_seconds"] < min(1.0 * slowdown(), tick["uptime_seconds"] / 2)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with 300 MiB of memory."""
    for root, limit, swap in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ):
        if not (root / "cgroup.procs").exists():
            continue
        group = root / f"zerokit-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(300 << 20))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        if (group / swap).exists():
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(300 << 20))
        yield group
        for _ in range(50):
            try:
                group.rmdir()
                return
            except OSError:
                time.sleep(0.1)
        return
    pytest.skip("no control group with a memory limit can be made here")


@pytest.mark.slow
def test_the_kernels_out_of_memory_killer(stub_python: Path, tmp_path: Path, memory_group: Path) -> None:
    write(tmp_path, """
        import os, time
        time.sleep(1.0)
        hoard = []
        while os.environ["RANK"] == "1" and len(hoard) < 1000:
            hoard.append(bytearray(os.urandom(1 << 20)))
        time.sleep(60)
    """)  # fmt: skip
    inside = f'echo $$ > {memory_group}/cgroup.procs && exec "$0" "$@"'
    command = ["sh", "-c", inside, str(stub_python), "-m", "zerokit", "launch", "--device", "cpu",
               "--run-dir", "run", "--num-ranks", "2", "--grace", "1", "script.py"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 10, done.stdout + done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["outcome"] == "oom"
    assert report["first_failure"]["rank"] == 1
    assert report["first_failure"]["oom"]["killer"] is True
    assert "the host's memory ran out" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("options", "is_shown"), [((), True), (("-q",), False)])
def test_a_quiet_launch_shows_no_progress(
    tmp_path: Path, stub_python: Path, options: tuple[str, ...], is_shown: bool
) -> None:
    """On a terminal, where the status line comes at once; errors are shown all the same."""
    script = write(tmp_path, "import sys, time\ntime.sleep(1.5)\nsys.exit(3)")
    ours, theirs = os.openpty()
    words = ["launch", *options, "--device", "cpu", "--num-ranks", "1", "--run-dir", "run", *script]
    process = subprocess.Popen(
        [str(stub_python), "-m", "zerokit", *words],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        env={**os.environ, "TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO at its end
        while data := os.read(ours, 1 << 16):
            said += data
    os.close(ours)
    assert process.wait(60) == 10
    assert (b"host memory" in said, b"run folder" in said) == (is_shown, is_shown)
    assert b"exited with code 3" in said
