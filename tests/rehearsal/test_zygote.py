"""Ranks that are forked from one process with the script's libraries are what new processes would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.rehearsals import SCRIPTS
from zerokit.catalog import gpus
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.rehearsal.zygote import Zygote
from zerokit.script.entry_points import Target

_TRAINS = """
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def request_of(folder: Path, source: str, *arguments: str) -> RehearsalRequest:
    script = folder / "train.py"
    script.write_text(source)
    target = Target(script=str(script), module=None, arguments=arguments)
    return RehearsalRequest(target=target, gpu=gpus.load("h200"), output=folder / "output.txt")


def told(request: RehearsalRequest, zygote: Zygote) -> tuple[dict[str, Any], str]:
    """The answer, but for the time that it took, and what the script printed."""
    done = rehearse(request, None, zygote)
    assert done.stopped is None and done.complete, done.stopped
    assert request.output is not None
    return replace(done, seconds=0.0, cpu_seconds=0.0).to_dict(), request.output.read_text()


def test_figures_are_those_of_a_new_process(tmp_path: Path) -> None:
    """Peaks, reserved memory, guesses, notes, and every operator of a step with its host's calls."""
    target = Target(script=str(SCRIPTS / "plain_loop.py"), module=None, arguments=("2",))
    answers = []
    for alone, times in ((True, 1), (False, 2)):  # the last takes what an earlier test has imported
        with Zygote(target, alone=alone) as zygote:
            for number in range(times):
                operators = tmp_path / f"{alone}-{number}.json"
                request = RehearsalRequest(
                    target=target, gpu=gpus.load("h200"), operators=operators, output=tmp_path / "output.txt"
                )
                answer, _ = told(request, zygote)
                answers.append((answer, json.loads(operators.read_text())))
    assert len(answers[0][1]) > 100
    assert answers[1:] == answers[:1] * 2


_PREPARES = f"""
import datasets, sys, torch
on = sys.argv[1]
def prepared(row):
    print("prepares")
    return {{"width": len(open("te" + "xt").read()) + torch.ones(4, device=on).numel()}}
data = datasets.load_dataset("json", data_files="rows.json", split="train").map(prepared)
print("width", data["width"][0])
{_TRAINS}"""


def test_data_is_prepared_once_for_all_but_what_the_gpu_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next answer depends on what was read to prepare it, though its own process did not."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text('{"row": 1}\n' * 3)
    text = tmp_path / "text"
    for on, times in (("cpu", [3, 0]), ("cuda", [3, 3])):
        text.write_text("x" * 8)
        request = request_of(tmp_path, _PREPARES, on)
        unseen = replace(request, output=None, steps=4)
        with Zygote(request.target) as zygote:
            printed = [told(request, zygote)[1] for _ in times]
            assert rehearse(unseen, None, zygote).complete
        assert [one.count("prepares") for one in printed] == times
        assert all("width 12\n" in one for one in printed)
        assert rehearse(unseen).when_kept
        text.write_text("x" * 9)
        assert not rehearse(unseen).when_kept


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two installed packages: one reads a variable when it is imported, the other takes its function."""
    site = tmp_path / "site-packages"
    for name, source in {
        "of_variable": "import os\nVALUE = os.environ.get('OF_VARIABLE')\ndef name(): return 'its own'\n",
        "of_other": "from of_variable import name\n",
    }.items():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.slow  # each value takes a new process
def test_a_library_reads_what_the_script_has_set(library: Path, tmp_path: Path) -> None:
    """The same one again, another, none; once it is imported it reads nothing any more."""
    source = (
        "import os, sys\nif sys.argv[1]: os.environ['OF_VARIABLE'] = sys.argv[1]\n"
        "import of_variable, torch\nassert of_variable.VALUE == (sys.argv[1] or None)\n"
        f"print('value', of_variable.VALUE)\n{_TRAINS}"
    )
    with Zygote(request_of(tmp_path, source).target) as zygote:
        for value in ("one", "one", "two", ""):
            _, printed = told(request_of(tmp_path, source, value), zygote)
            assert f"value {value or None}\n" in printed


def test_a_library_takes_what_the_script_has_replaced(library: Path, tmp_path: Path) -> None:
    source = (
        "import of_variable, torch\nof_variable.name = lambda: 'of the script'\n"
        f"import of_other\nprint('name', of_other.name())\n{_TRAINS}"
    )
    request = request_of(tmp_path, source)
    with Zygote(request.target) as zygote:
        for _ in range(2):
            assert "name of the script\n" in told(request, zygote)[1]


def test_an_empty_folder_is_there_in_each_fork(library: Path, tmp_path: Path) -> None:
    """As torch's compiler makes for its cache when it is imported, on a machine where it never ran."""
    cache = tmp_path / "cache"
    (library / "of_other" / "__init__.py").write_text(
        f"import os\nos.makedirs({str(cache)!r}, exist_ok=True)\n"
    )
    source = f"import of_other, os, torch\nprint('listed', os.listdir({str(cache)!r}))\n{_TRAINS}"
    request, said = request_of(tmp_path, source), []
    with Zygote(request.target) as zygote:
        for _ in range(2):
            assert rehearse(request, said.append, zygote).complete
            assert request.output is not None
            assert "listed []" in request.output.read_text()
    assert not any("imported anew" in line for line in said)
    assert not cache.exists()


def test_what_a_library_sets_when_it_is_imported_it_sets_itself(library: Path, tmp_path: Path) -> None:
    """As scikit-learn, which a script's libraries import where it is used."""
    (library / "of_other" / "__init__.py").write_text("import os\nos.environ.setdefault('OF_OTHER', 'its')\n")
    source = (
        "import importlib, os, torch\nimportlib.import_module('of_other')\n"
        f"print('set', os.environ['OF_OTHER'])\n{_TRAINS}"
    )
    request, said = request_of(tmp_path, source), []
    with Zygote(request.target) as zygote:
        for _ in range(3):
            assert rehearse(request, said.append, zygote).complete
            assert request.output is not None
            assert "set its\n" in request.output.read_text()
    assert not any("imported anew" in line for line in said)


def test_a_library_does_not_meet_the_driver_of_this_machine(library: Path, tmp_path: Path) -> None:
    """As DeepSpeed, which starts NVML when it is imported, that of a machine with GPUs makes a file."""
    source = "import ctypes\nctypes.CDLL('libnvidia-ml.so.1')\n"
    (library / "of_other" / "__init__.py").write_text(source)
    source = f"import torch\ntry:\n    import of_other\nexcept OSError as error:\n    print(error)\n{_TRAINS}"
    request = request_of(tmp_path, source)
    with Zygote(request.target) as zygote:
        _, printed = told(request, zygote)
    assert "libnvidia-ml.so.1: a rehearsal asks no driver\n" in printed


@pytest.fixture
def drawn(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Rehearses a script of a new folder: what a library drew when it was imported."""
    (library / "of_variable" / "__init__.py").write_text(_DRAWS)
    time.sleep(0.05)  # a process that begins within a clock's tick of a change takes it for a later one

    def draw(folder: str, imports: str = "of_variable, torch", *hides: str) -> str:
        (tmp_path / folder).mkdir()
        for name in hides:
            (tmp_path / folder / name).write_text("DRAWN = VALUE = 'beside the script'\n")
        monkeypatch.chdir(tmp_path / folder)
        text = f"import {imports}\nprint('drawn', of_variable.DRAWN, of_variable.VALUE)\n{_TRAINS}"
        request = request_of(tmp_path / folder, text)
        done = rehearse(request)
        assert done.complete, done.stopped
        assert request.output is not None
        return request.output.read_text().partition("drawn ")[2].rstrip()

    return draw


_DRAWS = "import time, os\nDRAWN = time.time_ns()\nVALUE = os.environ.get('OF_VARIABLE')\ndef name(): pass\n"


def test_scripts_with_the_same_imports_share_them(drawn: Callable[..., str]) -> None:
    with zerokit.shared_imports():
        assert drawn("first") == drawn("second", "sys, of_variable, torch")


@pytest.mark.slow  # each takes a new process
def test_imports_are_shared_no_more_where_they_would_differ(
    drawn: Callable[..., str], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zerokit.shared_imports():
        first = drawn("first")
        hidden = drawn("hidden", "of_variable, torch", "of_variable.py")
        assert hidden == "beside the script beside the script"
        monkeypatch.setenv("OF_VARIABLE", "one")
        assert drawn("with a variable").endswith(" one")
        monkeypatch.delenv("OF_VARIABLE")
        (library / "of_variable" / "__init__.py").write_text(f"{_DRAWS}# another release\n")
        assert drawn("after an update") != first


@pytest.mark.slow
def test_a_script_finds_nothing_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, draws, variables and the program itself."""
    monkeypatch.chdir(tmp_path)
    source = (
        "import torch, numpy, os, random, sys, tempfile\nfrom pathlib import Path\n"
        "for folder in (tempfile.gettempdir(), os.environ['HF_MODULES_CACHE'], '.', '/dev/shm'):\n"
        "    with open(Path(folder, 'of-the-script'), 'x') as file: file.write('here')\n"
        "assert 'OF_SCRIPT' not in os.environ and sys.argv[1:] == ['an argument']\n"
        "assert sys.modules['__main__'].Path is Path and sys.stdin.read() == ''\n"
        "os.environ['OF_SCRIPT'] = '1'\n"
        "print('drawn', random.random(), numpy.random.rand(), torch.initial_seed(), flush=True)\n"
        f"{_TRAINS}"
    )
    request = request_of(tmp_path, source, "an argument")
    drawn = []
    with Zygote(request.target) as zygote:
        for _ in range(3):
            _, printed = told(request, zygote)
            drawn.append(printed.partition("drawn ")[2].split())
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [3, 3, 1]
    assert not (tmp_path / "of-the-script").exists()


def test_nothing_outlives_the_command(tmp_path: Path) -> None:
    """Killed in the middle of a rehearsal, with no time for a last word."""
    request_of(tmp_path, "import torch, time\nprint('here')\ntime.sleep(600)\n")
    mark = f"of-{os.getpid()}-zygote"
    command = [sys.executable, "-m", "zerokit", "rehearse", "--gpu", "h200", "train.py", mark]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "MARK": mark}) as process:
        while len(_marked(mark)) < 6:
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not _marked(mark):
            break
        time.sleep(0.1)
    assert not _marked(mark)


def _marked(mark: str) -> list[str]:
    """Processes with this variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={mark}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
