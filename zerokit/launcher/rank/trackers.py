"""GPU memory by phase beside the script's own loss curves: in the tracker that it logs to, at its own steps.

Nothing is started, imported or logged on the script's behalf: when it logs numbers of its own, the rank's
memory goes along, once an optimizer step. Supported: TensorBoard (also tensorboardX), Weights & Biases,
MLflow and Trackio, each through the function that the script, Transformers, Accelerate or DeepSpeed's monitor
calls: 2.21 ``SummaryWriter.add_scalar``, 0.31 ``Run.log``, 3.17 ``log_metric`` and ``log_metrics``, 0.43
``Run.log``.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from zerokit.domain.phases import BEFORE_TRAINING
from zerokit.instrument.phases import in_place_of
from zerokit.instrument.post_import import Hook
from zerokit.launcher.rank.probe import Probe

OFF_VARIABLE = "ZEROKIT_NO_TRACKERS"
PREFIX = "zerokit"
_GIB = 1 << 30
_NOT_PHASES = (*BEFORE_TRAINING, "other")  # before the first logged step, or nobody's
_NOW = {"reserved_bytes": "reserved_gib", "device_used_bytes": "device_used_gib",
        "host_rss_bytes": "host_rss_gib"}  # fmt: skip


class TrackerMetrics:
    """The rank's memory as metrics of a tracker."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._step = -1  # the optimizer steps done when the metrics were last read
        self._metrics: dict[str, float] = {}
        self._told: dict[str, int] = {}  # tracker → the step whose metrics it has

    def news(self, tracker: str) -> dict[str, float]:
        """What ``tracker`` has not been told of this optimizer step; empty before the first one. Peaks are
        those since the metrics of an earlier step were read, so that a curve can fall again. GiB."""
        probe = self._probe
        if not probe.is_rank or not probe.steps or self._told.get(tracker) == probe.steps:
            return {}
        if self._step != probe.steps:
            self._step, self._metrics = probe.steps, self._read()
        self._told[tracker] = probe.steps
        return self._metrics

    def _read(self) -> dict[str, float]:
        account = self._probe.account("note")
        on_gpu = account.get("allocated_bytes") is not None
        metric = "peak_allocated_gib" if on_gpu else "peak_host_rss_gib"
        metrics = {
            f"{PREFIX}/{metric}/{phase}": bytes_ / _GIB
            for phase, (allocated, host) in self._probe.take_recent_peaks().items()
            if phase not in _NOT_PHASES and (bytes_ := allocated if on_gpu else host)
        }
        now = {f"{PREFIX}/{name}": account[key] / _GIB for key, name in _NOW.items() if account.get(key)}
        return {**metrics, **now}


def hooks(probe: Probe) -> dict[str, Hook]:
    """A hook for each tracker's module, none where the launch was told so."""
    if os.environ.get(OFF_VARIABLE):
        return {}
    metrics = TrackerMetrics(probe)
    return {
        "torch.utils.tensorboard.writer": functools.partial(_hook_writer, metrics),
        "tensorboardX.writer": functools.partial(_hook_writer, metrics),
        "wandb.sdk.wandb_run": functools.partial(_hook_run, metrics),
        "trackio.run": functools.partial(_hook_run, metrics),
        "mlflow.tracking.fluent": functools.partial(_hook_mlflow, metrics),
    }


def _hook_writer(metrics: TrackerMetrics, module: ModuleType) -> None:
    """A TensorBoard writer takes one number at a time: ours follow the first one of a step."""
    original = module.SummaryWriter.add_scalar

    @in_place_of(module.SummaryWriter, "add_scalar")
    def add_scalar(
        self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(self, tag, scalar_value, global_step, *args, **kwargs)
        with contextlib.suppress(Exception):
            for name, value in metrics.news(f"tensorboard {id(self)}").items():
                original(self, name, value, global_step)
        return result


def _hook_run(metrics: TrackerMetrics, module: ModuleType) -> None:
    """W&B and Trackio count each call as a step: ours go along with the script's own."""
    original = module.Run.log

    @in_place_of(module.Run, "log")
    def log(self: Any, values: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = next((name for name in ("data", "metrics") if name in kwargs), None)
        logged = values if name is None else kwargs[name]
        news: dict[str, float] = {}
        with contextlib.suppress(Exception):
            if isinstance(logged, Mapping) and logged:
                news = metrics.news(f"{module.__name__} {id(self)}")
        if news:
            logged = {**news, **logged}
        if name is None:
            return original(self, logged, *args, **kwargs)
        return original(self, *args, **{**kwargs, name: logged})


def _hook_mlflow(metrics: TrackerMetrics, module: ModuleType) -> None:
    log_metrics = module.log_metrics

    def followed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def log(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with contextlib.suppress(Exception):
                position = 2 if original is not log_metrics else 1
                step = args[position] if len(args) > position else kwargs.get("step")
                options = {name: kwargs[name] for name in ("synchronous", "run_id") if name in kwargs}
                if news := metrics.news(f"mlflow {options.get('run_id')}"):
                    log_metrics(news, step=step, **options)
            return result

        return log

    for name in ("log_metric", "log_metrics"):
        setattr(module, name, followed(getattr(module, name)))
