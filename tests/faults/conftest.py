"""Real ``zerokit launch`` processes with ranks that import no torch, and a look for anybody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_rank, write_script
from zerokit.launcher.rank_file import rank_file
from zerokit.launcher.supervisor.hang_inquiry import slowdown

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = PROGRAMS / "rank.py"


@pytest.fixture(scope="session")
def stub_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See :func:`make_stub_python`."""
    return make_stub_python(tmp_path_factory.mktemp("venv"))


def make_stub_python(root: Path) -> Path:
    """A Python in ``root`` whose ``deepspeed`` program is the stand-in, and all else as installed.

    But Matplotlib: loading it and drawing is a quarter of such a launch, which no test here looks at. Runs
    of ``sys.executable`` (``test_real_deepspeed.py``, ``tests/corpus_scripts``) draw them.
    """
    (root / "bin").mkdir()
    python = root / "bin" / "python"
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    python.symlink_to(base)
    (root / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    site = root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    repository = Path(__file__).parents[2]
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "everything.pth").write_text("\n".join([str(repository), *packages, ""]))
    (site / "matplotlib.py").write_text("raise ModuleNotFoundError('left out', name='matplotlib')\n")
    (root / "bin" / "deepspeed").write_text((PROGRAMS / "deepspeed.py").read_text())
    return python


class Run:
    """One ``zerokit launch`` in its own process."""

    def __init__(self, python: Path, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.began = time.monotonic()
        command = [str(python), "-m", "zerokit", "launch", "--device", "cpu", "--run-dir", "run"]
        self.process = subprocess.Popen(
            [*command, "--rehearsal-seconds", "0", "--no-host-probe", *arguments],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until_started(self, ranks: int, seconds: float = 60) -> dict[int, int]:
        """Wait until so many ranks have written; their process ids by rank."""
        pids: dict[int, int] = {}

        def look() -> bool:
            for path in self.run_dir.glob("rank-*.jsonl"):
                for line in path.read_text(errors="replace").splitlines():
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue
                    if record.get("type") == "start":
                        pids[int(path.name[5:10])] = record["pid"]
            return len(pids) >= ranks

        wait_for(look, seconds, lambda: f"{len(pids)} of {ranks} ranks started")
        time.sleep(0.6)  # the guard looks for ranks five times a second
        return pids

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """Wait for the end; exit code, standard output, standard error. A busy machine gets longer."""
        out, err = self.process.communicate(timeout=seconds * slowdown())
        return self.process.returncode, out, err

    def report(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "report.json").read_text())
        return value

    def left(self) -> list[int]:
        """Living processes that were started by this launch, wherever they are in the tree."""
        marker = f"ZEROKIT_RUN_DIR={self.run_dir}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                alive = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
                if alive and marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def children(self, named: str) -> list[int]:
        """Processes of this launch whose command line holds the text."""
        found = []
        for pid in self.left():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if named in command:
                found.append(pid)
        return found

    def clean_up(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def wait_for(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> float:
    """Wait until the condition holds; returns the seconds it took. A busy machine gets longer."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds * slowdown():
            pytest.fail(f"not within {seconds} s: {what()}")
        time.sleep(0.02)
    return time.monotonic() - began


Launch = Callable[..., Run]
Figure = Callable[[str, float], float]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """``figure("seconds", 1.2)`` keeps what was measured for the fault table; returns the value."""

    def keep(name: str, value: float) -> float:
        record_property(name, round(value, 3))
        return value

    return keep


@pytest.fixture
def launch(stub_python: Path, tmp_path: Path) -> Iterator[Launch]:
    """``launch("--num-ranks", "4", "--", "1:sleep")``: options, then the deeds of the ranks."""
    runs: list[Run] = []

    def start(
        *deeds: str,
        ranks: int = 2,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        script: tuple[str, ...] = (str(SCRIPT),),
    ) -> Run:
        arguments = ["--num-ranks", str(ranks), *options, *script, *deeds]
        runs.append(Run(stub_python, tmp_path, arguments, environment or {}))
        return runs[-1]

    yield start
    for run in runs:
        run.clean_up()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> bytes:
    """The file of a rank that finished, with an error-free life of some ticks."""
    folder = tmp_path_factory.mktemp("finished")
    run_rank(folder, "--", write_script(folder, "import time; time.sleep(0.5)"))
    return rank_file(folder, 0).read_bytes()
