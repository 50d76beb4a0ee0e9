"""The host's speed, learnt from launches: a probe of seconds before the first one, then each run's own steps.

A prediction without it is a range over all hosts that were ever probed (``zerokit.timing.host_speed``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from zerokit.doctor.processes import run_all
from zerokit.errors import ZerokitError
from zerokit.fields import as_options
from zerokit.launcher.launch import Launch, Say
from zerokit.machine import host_speeds
from zerokit.machine.detect import list_gpus
from zerokit.machine.host_speeds import Failure, Reading
from zerokit.machine.versions import installed
from zerokit.report.schema import RunReport
from zerokit.temporary import temporary_folder
from zerokit.timing.host_speed import HostSpeed, of_step, speed_of

PROBE_SECONDS = 4.0
LIMIT_SECONDS = 120.0
"""Of the whole probe, imports from a slow disk and the GPU's context with it."""
_TRY_AGAIN = timedelta(days=1)
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_STEPS = 10
"""Fewer say little of a run's pace: the first ones choose kernels and compile."""


def probe(
    indexes: Sequence[int | None],
    environment: Mapping[str, str] | None = None,
    *,
    seconds: float = PROBE_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
) -> HostSpeed:
    """The host's speed while one process for each GPU (``indexes`` as the driver counts them; None: on the
    CPU) issues work. Raises RankFailed: a process failed; its last words are in the message. Raises RunHung:
    they did not end within ``limit_seconds``."""
    variables = {**(os.environ if environment is None else environment), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with temporary_folder("probe") as folder:
        orders = [
            {"index": index, "number": number, "count": len(indexes), "folder": str(folder),
             "seconds": seconds, "limit": max(1, round(limit_seconds))}
            for number, index in enumerate(indexes)
        ]  # fmt: skip
        run_all("zerokit.doctor.host_rank", orders, variables, folder, limit_seconds)
        rounds: dict[str, list[float]] = {}
        for number in range(len(indexes)):
            found = json.loads((folder / f"rounds-{number}.json").read_text(encoding="utf-8"))
            for name, took in found.items():
                rounds.setdefault(name, []).extend(took)
    return speed_of(rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHostSpeeds:
    """Keeps what launches on this machine tell of its host. ``probes``: there is a probe before a launch,
    where nothing is known of the host; ``probe`` takes the GPUs' indexes and the environment."""

    probes: bool = True
    probe: Callable[[Sequence[int], Mapping[str, str]], HostSpeed] = probe

    def before(self, launch: Launch, say: Say) -> None:
        """Probe the host, where it was not under this GPU and torch. What hinders it is told, not raised."""
        placement = launch.placement
        indexes = placement.devices.gpu_indexes
        if not self.probes or placement.devices.kind != "cuda" or placement.remote or not indexes:
            return
        device, torch_version = _device_name(indexes[0]), _torch_version()
        if device is None or _is_known(host_speeds.load(), device, torch_version):
            return
        say(
            "measuring how fast this host issues work, once, some 15 s (later predictions count with it; "
            f"{as_options('⟨no_host_probe⟩')} leaves it out)"
        )
        try:
            # some launchers get GPUs by these and count anew; a probe counts as the driver does
            variables = {name: value for name, value in launch.environment.items() if name not in _VISIBLE}
            speed = self.probe(indexes, variables)
            reading = _reading(device, speed, "a probe before a launch")
            host_speeds.add(reading)
            say(
                f"host speed {speed.factor:.2f} ({reading.low:.2f} to {reading.high:.2f} while it was probed)"
            )
        except (ZerokitError, OSError, ValueError, KeyError, TypeError) as error:
            say(f"the host's speed was not measured ({error}); predicted step times stay ranges")
            failure = Failure(
                device_name=device, torch_version=torch_version, why=str(error), measured_at=_now()
            )
            with contextlib.suppress(OSError):
                host_speeds.add(failure)

    def after(self, launch: Launch, report: RunReport) -> None:
        """Keep what the run's steps tell, where its prediction says how they depend on the host."""
        indexes = launch.placement.devices.gpu_indexes
        if launch.placement.remote or not indexes:
            return
        found = of_steps(launch.plan or {}, report)
        device = _device_name(indexes[0]) if found is not None else None
        if found is None or device is None:
            return
        with contextlib.suppress(OSError):  # the run's own report is what matters
            host_speeds.add(_reading(device, found, found.source))


def of_steps(plan: Mapping[str, Any], report: RunReport) -> HostSpeed | None:
    """The speed at which the plan's rehearsed step (of the run's very command: ``Launch.plan`` has no other)
    takes what the run's steps took; None: the run was another, was short or ended badly, or its steps do not
    tell."""
    compared = report.predicted_vs_measured
    rehearsed = (plan.get("chosen") or {}).get("rehearsed") or {}
    pairs = rehearsed.get("step_seconds_by_host_factor") or ()
    if report.outcome not in ("ok", "stopped") or compared is None or compared.predicted_for != "plan":
        return None
    steps = min((rank.steps for rank in report.ranks), default=0)
    measured = compared.step_seconds.measured if compared.step_seconds is not None else None
    if not pairs or not measured or steps < _STEPS:
        return None
    try:
        return of_step(pairs, float(measured), f"the steps of a run of {rehearsed.get('script', 'a script')}")
    except (TypeError, ValueError, ZeroDivisionError):  # a plan file that somebody edited
        return None


def _reading(device: str, speed: HostSpeed, source: str) -> Reading:
    return Reading(
        device_name=device, torch_version=_torch_version(), factor=speed.factor,
        low=speed.low or speed.factor, high=speed.high or speed.factor, source=source,
        measured_at=_now(),
    )  # fmt: skip


def _torch_version() -> str:
    return installed("torch") or "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _device_name(index: int) -> str | None:
    listing = list_gpus(os.environ, timeout_seconds=10.0)
    return next((gpu.name for gpu in listing.gpus if gpu.index == index), None)


def _is_known(kept: host_speeds.Kept, device: str, torch_version: str) -> bool:
    """Whether there is a reading, or a probe failed a short while ago."""
    entries = [(entry.device_name, entry.torch_version) for entry in kept.readings]
    if (device, torch_version) in entries:
        return True
    failure = kept.failure
    if failure is None or (failure.device_name, failure.torch_version) != (device, torch_version):
        return False
    with contextlib.suppress(ValueError, TypeError):
        return datetime.now(timezone.utc) - datetime.fromisoformat(failure.measured_at) < _TRY_AGAIN
    return False
