"""Work of the processes below a rank is the rank's work; one that hangs is a hang."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Launch, wait_for
from zerokit.launcher.locks import stale_locks

HEARTBEAT = ("--heartbeat", "5", "--grace", "1")

# One short-lived process after another, as ninja starts compilers: none lives for long.
COMPILES = """
    import subprocess, sys, time
    BURN = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"
    BUILD = (
        "import subprocess, sys, time\\nend = time.monotonic() + 9\\n"
        "while time.monotonic() < end: subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    )
    subprocess.run([sys.executable, "-S", "-c", BUILD, BURN], check=True)
    print("built")
"""
DOWNLOADS = """
    import subprocess, sys
    COPY = (
        "import os, time\\nend = time.monotonic() + 9\\nsource = open('/dev/zero', 'rb')\\n"
        "sink = open(os.devnull, 'wb')\\n"
        "while time.monotonic() < end: sink.write(source.read(1 << 21)); sink.flush(); time.sleep(0.5)"
    )
    subprocess.run([sys.executable, "-S", "-c", COPY], check=True)
    print("built")
"""


def write(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "script.py").write_text(textwrap.dedent(text))
    return ("script.py",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(COMPILES, id="compilers"),
        pytest.param(DOWNLOADS, id="a download", marks=pytest.mark.slow),  # one of test_slow_is_not_hung.py
    ],
)
def test_a_child_at_work_is_no_hang(launch: Launch, tmp_path: Path, text: str) -> None:
    run = launch(script=write(tmp_path, text), ranks=1, options=HEARTBEAT)
    code, out, err = run.end(120)
    assert code == 0, out + err
    assert "built" in out


@pytest.mark.slow
@pytest.mark.parametrize("who", ["zerokit", "a rank"])
def test_shared_memory_of_killed_ranks_is_removed(launch: Launch, tmp_path: Path, who: str) -> None:
    run = launch("all:shares", options=("--grace", "0"))
    wait_for(lambda: len(list(tmp_path.glob("shared-*"))) == 2, 60, lambda: "no shared memory")
    pids = run.until_started(2)
    if who == "zerokit":
        run.process.terminate()
    else:
        os.kill(pids[0], signal.SIGKILL)
    assert run.end()[0] == (143 if who == "zerokit" else 10)
    names = [path.read_text() for path in tmp_path.glob("shared-*")]
    assert names and not [name for name in names if Path("/dev/shm", name).exists()]
    assert not run.left()


@pytest.mark.slow
def test_a_child_that_hangs_is_a_hang(launch: Launch, tmp_path: Path) -> None:
    text = "import subprocess\nsubprocess.run(['sleep', '600'])"
    run = launch(script=write(tmp_path, text), ranks=1, options=HEARTBEAT)
    code, out, err = run.end(120)
    assert code == 11, out + err
    assert not run.left()


@pytest.fixture
def slow_compiler(tmp_path: Path) -> Path:
    """A compiler that works for 9 s before it does what g++ does."""
    path = tmp_path / "slow-g++"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *.cpp*) {sys.executable} -S -c \'import time; end = time.monotonic() + 9\n'
        'while time.monotonic() < end: pass\';; esac\nexec g++ "$@"\n'
    )
    path.chmod(0o755)
    return path


BUILDS = """
    import sys, pathlib
    from torch.utils import cpp_extension
    source = pathlib.Path("answer.cpp").absolute()
    cpp_extension.load(name="answer", sources=[str(source)], is_python_module=False, extra_cflags=["-O0"])
    print("built")
"""


@pytest.mark.slow
def test_the_first_build_of_an_operator_is_named_and_waited_for(
    launch: Launch, tmp_path: Path, slow_compiler: Path
) -> None:
    (tmp_path / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    environment = {"CXX": str(slow_compiler), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    run = launch(script=write(tmp_path, BUILDS), options=HEARTBEAT, environment=environment)
    activities: set[str] = set()

    def over() -> bool:
        for path in run.run_dir.glob("rank-*.jsonl"):
            activities.update(re.findall(r'"activity": ?"([^"]+)"', path.read_text(errors="replace")))
        return run.process.poll() is not None

    wait_for(over, 180, lambda: "the build takes too long")
    code, out, err = run.end(10)
    assert code == 0, out + err
    assert "built" in out
    lock = tmp_path / "extensions" / "answer" / "lock"
    assert "building operator answer" in activities
    assert f"waiting for another build to release {lock}" in activities  # the other rank
    assert not lock.exists()


def test_a_lock_that_nobody_holds_is_named_before_the_run(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    lock = tmp_path / "extensions" / "answer" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 3600,) * 2)
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    run = launch(script=write(tmp_path, BUILDS), ranks=1, options=HEARTBEAT, environment=environment)
    code, out, err = run.end(120)
    assert code == 11, out + err
    assert f"rm {lock}" in err
    assert f"waiting for another build to release {lock}" in json.dumps(run.report()) + err


def test_a_lock_that_a_process_holds_is_not_stale(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    lock = tmp_path / "torch_extensions" / "py311_cpu" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, time; os.open({str(lock)!r}, os.O_CREAT | os.O_EXCL); time.sleep(600)",
        ]
    )
    try:
        wait_for(lock.exists, 20, lambda: "the lock is made")
        os.utime(lock, (time.time() - 900,) * 2)
        assert stale_locks(environment, tmp_path) == []
    finally:
        holder.kill()
        holder.wait()
    (stale,) = stale_locks(environment, tmp_path)
    assert stale.path == lock and stale.command == f"rm {lock}" and "fused_adam" in stale.description
