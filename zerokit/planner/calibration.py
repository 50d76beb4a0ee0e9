"""What was measured on this machine: read for the time model, and kept after tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy, TimeEstimate
from zerokit.machine.measured import Measured
from zerokit.search.plan import time_model
from zerokit.search.space import Request
from zerokit.timing.constants import Calibration
from zerokit.units import counted
from zerokit.values import replace

OPTION = "⟨no_calibration⟩"


def of_this_machine(
    cluster: Cluster, shape: ModelShape, job: Job
) -> tuple[Calibration | None, tuple[str, ...]]:
    """What ``doctor --measure`` and ``tune`` stored here for this GPU, and notes for the user.

    Step times of another model or another number of GPUs are used as far as they carry over
    (``zerokit.timing.calibration``).

    Returns:
        None and no note when nothing was measured here.
    """
    measured, note = (None, None) if cluster.on_cpu else rates((cluster.gpu.title, *cluster.gpu.aliases))
    tuned, notes = _tuned(measured or Calibration(), cluster, shape, job)
    return tuned or measured, (*((note,) if note else ()), *notes)


def rates(gpu_titles: tuple[str, ...]) -> tuple[Calibration | None, str | None]:
    """Rates of the very kind of GPU (by the names that drivers give it), and a note."""
    from zerokit.machine import measured as store

    stored, reason = store.load()
    note: str | None = f"rates of this machine: {reason}"
    if stored is None:
        note = reason if store.path().exists() else None
    elif stored.device != "cuda" or stored.device_name not in gpu_titles:
        note = f"rates of {stored.device_name} were measured here, and are not used for another GPU"
        stored = None
    calibration = of_measured(stored, reason) if stored is not None else None
    # the host's speed by what launches told of it since the doctor measured it, the doctor's figure among
    # them; None: there was no launch since
    from zerokit.machine import host_speeds

    since = stored.measured_at if stored is not None and stored.host_factor is not None else ""
    readings = [
        reading
        for reading in host_speeds.load().readings
        if reading.device_name in gpu_titles and reading.measured_at > since
    ]
    if readings and stored is not None and stored.host_factor is not None:
        by_doctor = host_speeds.Reading(
            device_name=stored.device_name, torch_version=stored.torch_version, factor=stored.host_factor,
            low=stored.host_factor_low or stored.host_factor,
            high=stored.host_factor_high or stored.host_factor,
            source="`zerokit doctor --measure`", measured_at=since,
        )  # fmt: skip
        readings.insert(0, by_doctor)
    speed = host_speeds.together(readings, str(host_speeds.path()))
    if speed is None:
        return calibration, note
    note = "; ".join(filter(None, (note, f"host speed {speed.factor:.2f}: {speed.source}")))
    return replace(
        calibration or Calibration(source=speed.source),
        host_factor=speed.factor, host_factor_low=speed.low, host_factor_high=speed.high,
        host_source=speed.source,
    ), note  # fmt: skip


def of_measured(stored: Measured, source: str) -> Calibration:
    """The rates that the time models count with."""
    reductions = [point for point in stored.collectives if point.operation == "all_reduce"]
    largest = max(reductions, key=lambda point: point.message_bytes, default=None)
    up, down = stored.host_to_device_bytes_per_second, stored.device_to_host_bytes_per_second
    return Calibration(
        matmul_flops=stored.matmul_flops if stored.matmul_precision in ("bf16", "fp16") else None,
        allreduce_bytes_per_second=largest.bus_bytes_per_second if largest else None,
        # measured per GPU with all copying at once; the model divides the node's rate
        host_to_device_bytes_per_second=up * stored.ranks if up else None,
        device_to_host_bytes_per_second=down * stored.ranks if down else None,
        cpu_adam_parameters_per_second=stored.cpu_adam_parameters_per_second,
        host_memory_bytes_per_second=stored.host_memory_bytes_per_second,
        host_cast_bytes_per_second=stored.host_cast_bytes_per_second,
        host_factor=stored.host_factor,
        host_factor_low=stored.host_factor_low,
        host_factor_high=stored.host_factor_high,
        host_source=source,
        source=source,
    )


def _tuned(
    rates: Calibration, cluster: Cluster, shape: ModelShape, job: Job
) -> tuple[Calibration | None, tuple[str, ...]]:
    from zerokit.machine import tuned as store

    at = store.path()
    if not at.exists():
        return None, ()
    from zerokit.timing.calibration import calibrate

    observations, warning = store.load(at)
    if warning is not None:
        return None, (warning,)
    calibration, used = calibrate(rates, observations, shape, job, cluster)
    if not used:
        return None, ()
    newest = max(observation.measured_at for observation in used)
    count = counted(len(used), "strategy", "strategies")
    if calibration.tuned is None:
        note = f"layer times corrected by {count} of other jobs of this width"
    else:
        by = "ranked by" if cluster.on_cpu else "step times from"
        note = f"{by} the measured steps of {count} of this job"
    return calibration, (f"{note}, tuned here at {newest} ({at}); {OPTION} ignores them",)


def keep(request: Request, job: Job, measured: Sequence[tuple[Strategy, float]]) -> tuple[Path, str | None]:
    """Keep measured seconds of a step for later plans; returns the file, and a note where one was damaged.
    Raises OSError: it cannot be written."""
    import time

    from zerokit.machine import tuned
    from zerokit.timing.calibration import observe

    rates = replace(request.calibration or Calibration(), tuned=None, layer_factors=())

    def estimate(strategy: Strategy, calibration: Calibration) -> TimeEstimate:
        return time_model(replace(request, calibration=calibration), job).estimate(strategy)

    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return tuned.save(observe(request.shape, job, request.cluster, measured, estimate, rates, at))
