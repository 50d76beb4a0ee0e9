"""Memory in the script's own tracker. The real libraries: tests/corpus_scripts/test_trackers.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zerokit.launcher.rank import trackers
from zerokit.launcher.rank.phase_record import Identity, PhaseRecord
from zerokit.launcher.rank.probe import Probe

GIB = 1 << 30


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    identity = Identity(rank=0, local_rank=0, world_size=1, host="here", device="cpu", script="train.py")
    probe = Probe(identity, tmp_path)
    yield probe
    probe.end("finished", 0)


def step(probe: Probe) -> None:
    for phase in ("forward", "backward", "step", "other"):
        probe.enter(phase)
    probe.step_done()


def wandb(probe: Probe) -> tuple[Any, list[tuple[dict[str, Any], Any]]]:
    """A run of a module with W&B's function, hooked, and what reaches it."""
    calls: list[tuple[dict[str, Any], Any]] = []

    class Run:
        def log(self, data: dict[str, Any], step: int | None = None) -> None:
            calls.append((data, step))

    module = ModuleType("wandb.sdk.wandb_run")
    module.Run = Run  # type: ignore[attr-defined]
    trackers.hooks(probe)["wandb.sdk.wandb_run"](module)
    return module.Run(), calls


def test_memory_goes_with_the_scripts_own_call_once_a_step(probe: Probe) -> None:
    run, calls = wandb(probe)
    own = {"loss": 2.0}
    run.log(own, step=0)
    assert calls.pop() == ({"loss": 2.0}, 0)  # nothing is trained yet
    step(probe)
    run.log(own, step=1)
    run.log(data={"eval_loss": 3.0}, step=1)
    (first, at), second = calls
    assert at == 1 and own == {"loss": 2.0} and second == ({"eval_loss": 3.0}, 1)
    phases = {f"zerokit/peak_host_rss_gib/{phase}" for phase in ("forward", "backward", "step")}
    assert first.keys() == {"loss", "zerokit/host_rss_gib", *phases}
    assert 0.005 < first["zerokit/peak_host_rss_gib/forward"] < 64  # this process, in GiB
    step(probe)
    run.log(own)
    assert calls[-1][0].keys() == first.keys()


def test_a_peak_is_that_since_it_was_last_read() -> None:
    record = PhaseRecord()
    record.add_host(3 * GIB)
    assert record.take_recent() == (0, 3 * GIB)
    record.add_host(2 * GIB)
    assert record.take_recent() == (0, 2 * GIB) and record.take_recent() == (0, 0)
    assert record.peak_host_rss_bytes == 3 * GIB  # the run's


def test_a_writer_takes_it_number_by_number_and_never_fails_the_script(probe: Probe) -> None:
    told: list[tuple[str, Any]] = []

    class SummaryWriter:
        def add_scalar(self, tag: str, scalar_value: float, global_step: Any = None) -> None:
            if tag.startswith("zerokit/peak"):
                raise OSError("no space left")
            told.append((tag, global_step))

    module = ModuleType("tensorboardX.writer")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    trackers.hooks(probe)["tensorboardX.writer"](module)
    step(probe)
    module.SummaryWriter().add_scalar("loss", 1.0, 7)
    assert told == [("loss", 7)]


def test_a_launch_can_leave_trackers_alone(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trackers.OFF_VARIABLE, "1")
    assert not trackers.hooks(probe)
