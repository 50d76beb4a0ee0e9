"""Trackers get a GPU's memory by phase.

There is no GPU where these tests run, so an allocator stands in below torch.cuda; the probe and the hooks
are the real ones, the trackers' functions have their libraries' signatures. The libraries themselves log
host memory in tests/corpus_scripts/test_trackers.py; benchmarks/tracker_memory.py has them beside a
real GPU.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from tests.support.allocator import MIB, installed, probe_on, train_step  # noqa: E402
from zerokit.launcher.rank import trackers  # noqa: E402


@pytest.fixture
def allocator(monkeypatch):
    return installed(monkeypatch, torch)


@pytest.fixture
def probe(tmp_path: Path, allocator):
    with probe_on(torch, tmp_path) as probe:
        yield probe


class Tracked:
    """Each tracker's function as its library has it, hooked, and what reaches it."""

    def __init__(self, probe) -> None:
        self.seen: dict[str, dict[str, float]] = {"tensorboard": {}, "wandb": {}, "trackio": {}, "mlflow": {}}
        observed = self.seen

        class SummaryWriter:
            def add_scalar(self, tag, scalar_value, global_step=None):
                observed["tensorboard"][tag] = scalar_value

        class WandbRun:
            def log(self, data, step=None):
                observed["wandb"].update(data)

        class TrackioRun:
            def log(self, metrics, step=None):
                observed["trackio"].update(metrics)

        writer, wandb, trackio = (ModuleType(name) for name in ("writer", "wandb_run", "trackio_run"))
        self.mlflow = ModuleType("fluent")
        writer.SummaryWriter, wandb.Run, trackio.Run = SummaryWriter, WandbRun, TrackioRun
        self.mlflow.log_metrics = lambda metrics, step=None: observed["mlflow"].update(metrics)
        self.mlflow.log_metric = lambda key, value, step=None: observed["mlflow"].update({key: value})
        hooks = trackers.hooks(probe)
        for name, module in (("torch.utils.tensorboard.writer", writer), ("wandb.sdk.wandb_run", wandb),
                             ("trackio.run", trackio), ("mlflow.tracking.fluent", self.mlflow)):  # fmt: skip
            hooks[name](module)
        self.writer, self.wandb, self.trackio = writer.SummaryWriter(), wandb.Run(), trackio.Run()

    def log(self, loss: float, step: int) -> None:
        """As a script does, once a step."""
        self.writer.add_scalar("loss", loss, step)
        self.wandb.log({"loss": loss}, step)
        self.trackio.log({"loss": loss}, step)
        self.mlflow.log_metric("loss", loss, step)


def test_trackers_get_the_gpus_memory_by_phase(probe, allocator):
    tracked = Tracked(probe)
    allocator.allocate(512 * MIB)
    train_step(probe, allocator, 1024, 2048, 256)
    tracked.log(2.5, 1)
    expected = {"loss": 2.5, "zerokit/peak_allocated_gib/forward": 1.5,
                "zerokit/peak_allocated_gib/backward": 2.5, "zerokit/peak_allocated_gib/step": 0.75,
                "zerokit/reserved_gib": 2.5}  # fmt: skip
    for name, observed in tracked.seen.items():
        assert {key: value for key, value in observed.items() if key in expected} == expected, name
        assert not any("host_rss_gib/" in key for key in observed), name
        assert observed["zerokit/host_rss_gib"] > 0
    train_step(probe, allocator, 256, 512, 128)  # a smaller step: the curve falls
    tracked.log(2.0, 2)
    for name, observed in tracked.seen.items():
        peaks_now = [
            observed[f"zerokit/peak_allocated_gib/{phase}"] for phase in ("forward", "backward", "step")
        ]
        assert peaks_now == [0.75, 1.0, 0.625], name
