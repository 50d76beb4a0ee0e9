"""What every test gets: no network, no colours, no settings of whoever runs the suite."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest

import zerokit

# A slow machine is no failure; examples are the same in every run, so that a failure can be repeated.
hypothesis.settings.register_profile("zerokit", deadline=None, derandomize=True)
hypothesis.settings.load_profile("zerokit")

QUIET_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
    "PYTHONWARNINGS": "",
    "OMP_NUM_THREADS": "1",  # several threads of several processes wait for each other, each at full load
}
DROPPED = (
    "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",  # or each of some hundred processes would compile the sources anew
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Children inherit it, so it is set for the whole process and not per test."""
    sys.dont_write_bytecode = False
    os.environ.update(QUIET_ENVIRONMENT)
    for name in [name for name in os.environ if name in DROPPED or name.startswith("ZEROKIT_")]:
        del os.environ[name]
    for (
        name
    ) in DROPPED:  # readline, which pytest imports, sets COLUMNS and LINES where os.environ does not see
        os.unsetenv(name)
    # Under nohup, or in the background of a script, these come ignored, and children would inherit that.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Caches (traced models, calibrations) of the user are neither read nor written."""
    cache = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    if "PYTEST_XDIST_WORKER" in os.environ:  # one folder of traced models for all workers
        traces = tmp_path_factory.getbasetemp().parent / "profiles"
        traces.mkdir(exist_ok=True)
        (cache / "zerokit").mkdir()
        (cache / "zerokit" / "profiles").symlink_to(traces)
    # DeepSpeed's operator for CPU ranks takes minutes to compile: once, whatever cache a test has of its own
    builds = "-".join(metadata.version(name) for name in ("torch", "deepspeed"))
    os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(sys.prefix) / "var" / f"extensions-{builds}")
    # one list of fonts for all, also for tests with a cache of their own: making it takes a second or more
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))


@pytest.fixture(scope="session", autouse=True)
def _shared_imports() -> Iterator[None]:
    """Rehearsals in this process import PyTorch once for each kind of script, as a program's may."""
    with zerokit.shared_imports(5):
        yield


@functools.cache
def has_gpu() -> bool:
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and "GPU 0" in found.stdout


LONG_FILES_FIRST = (
    "rehearsal", "deepspeed", "oracle", "faults", "test_readme.py", "browser", "torch",
)  # fmt: skip
"""What takes the longest below ``tests``. Begun last, it would keep a single worker busy at the end."""


def _turn(item: pytest.Item) -> int:
    known = [index for index, name in enumerate(LONG_FILES_FIRST) if name in item.path.parts]
    return min(known, default=len(LONG_FILES_FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when asked for with -m slow; GPU tests where there is a GPU."""
    items.sort(key=_turn)
    wanted = "slow" in config.option.markexpr
    dropped = [item for item in items if item.get_closest_marker("slow") and not wanted]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """One thread for each worker: several that wait for each other on few cores take longer, not shorter."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds of the tests of each room below ``tests``, where they take minutes."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                room, *below = Path(report.nodeid.partition("::")[0]).parts[1:-1] or ["tests"]
                seconds["/".join([room, *below[:1]])] += report.duration
    if seconds.total() > 300:
        terminalreporter.section("seconds by room")
        for room, spent in seconds.most_common():
            terminalreporter.write_line(f"{spent:7.0f}  {room}")


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[object], str]:
    """Writes a model's config.json; returns its path, as ``--model`` takes it."""

    def write(config: object) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    return write


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation's site, built."""
    pytest.importorskip("mkdocs")
    from tests.support.site import build_site

    folder = tmp_path_factory.mktemp("site")
    build_site(folder)
    return folder
