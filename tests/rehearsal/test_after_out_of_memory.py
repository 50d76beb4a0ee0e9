"""What a rehearsal of a command says after its launch ran out of a GPU's memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.support.rehearsals import SCRIPTS
from zerokit.launcher.command import Command
from zerokit.launcher.devices import Devices
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Placement
from zerokit.rehearsal.of_launch import rehearse_launch
from zerokit.report.render import print_report
from zerokit.report.schema import Failure, OutOfMemory, RunReport
from zerokit.script.entry_points import Target

WEIGHTS = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)


def launch(tmp_path: Path, script: str, device: str = "cuda") -> Launch:
    target = Target(script=str(SCRIPTS / script), module=None, arguments=("1",))
    return Launch(
        options=LaunchOptions(target=target),
        placement=Placement(devices=Devices(kind=device, ranks=1, gpu_indexes=(0,), why=""), port=29500),
        command=Command(argv=[], set_variables={"ZEROKIT_DEVICE": device}, unset_variables=[], files={}),
        environment={},
        cwd=tmp_path,
        run_dir=tmp_path,
        host="here",
        plan={"cluster": {"gpu": "t4"}},
    )


def report(memory: str = "gpu", **more: Any) -> RunReport:
    failure = Failure(rank=0, host="here", kind="oom", oom=OutOfMemory(memory=memory), **more)
    return RunReport(
        schema="zerokit.report/1",
        outcome="oom",
        exit_code=10,
        expected_ranks=1,
        ranks=[],
        first_failure=failure,
    )


def test_it_says_what_the_command_needs(tmp_path: Path) -> None:
    said: list[str] = []
    found = rehearse_launch(launch(tmp_path, "plain_loop.py"), report(), said.append)
    assert found is not None and found.stopped is None
    assert (found.fits, found.peak_phase) == (True, "step")
    # weights, gradients, Adam's two moments, and what the step takes on its way
    assert 4 * WEIGHTS < (found.peak_allocated_bytes or 0) < 6.2 * WEIGHTS
    assert "Ctrl-C skips it" in said[0]
    told = report(rehearsed=found)
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(told, console)
    assert "another process, or fragmentation, took the rest" in console.export_text()


def test_what_it_cannot_rehearse_it_says(tmp_path: Path) -> None:
    found = rehearse_launch(launch(tmp_path, "missing.py"), report(), lambda line: None)
    assert found is not None and "missing.py" in (found.stopped or "")
    slow = rehearse_launch(launch(tmp_path, "plain_loop.py"), report(), lambda line: None, seconds=0.05)
    assert slow is not None and "did not end within 0.05 s" in (slow.stopped or "")


def test_memory_of_the_host_is_not_its_matter(tmp_path: Path) -> None:
    assert rehearse_launch(launch(tmp_path, "plain_loop.py", "cpu"), report(), lambda line: None) is None
    assert rehearse_launch(launch(tmp_path, "plain_loop.py"), report("host"), lambda line: None) is None
