"""What was measured on this machine: read for the time model, and kept after tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy, TimeEstimate
from zerokit.search.plan import time_model
from zerokit.search.request import Request
from zerokit.timing.constants import Calibration

OPTION = "⟨no_calibration⟩"


def of_this_machine(
    cluster: Cluster, shape: ModelShape, job: Job, *, on_cpu: bool
) -> tuple[Calibration | None, tuple[str, ...]]:
    """What ``doctor --measure`` and ``tune`` stored here for this GPU, and notes for the user.

    Step times of another model or another number of GPUs are used as far as they carry over
    (``zerokit.timing.calibration``).

    Returns:
        None and no note when nothing was measured here.
    """
    measured, note = (None, None) if on_cpu else rates((cluster.gpu.title, *cluster.gpu.aliases))
    tuned, notes = _tuned(measured or Calibration(), cluster, shape, job, on_cpu=on_cpu)
    return tuned or measured, (*((note,) if note else ()), *notes)


def rates(gpu_titles: tuple[str, ...]) -> tuple[Calibration | None, str | None]:
    """Rates of the very kind of GPU (by the names that drivers give it), and a note."""
    from zerokit.machine import measured as store

    found, reason = store.load()
    if found is None:
        return None, reason if "measure again" in reason else None
    if found.device != "cuda" or found.device_name not in gpu_titles:
        return None, f"rates of {found.device_name} were measured here, and are not used for another GPU"
    reductions = [point for point in found.collectives if point.operation == "all_reduce"]
    largest = max(reductions, key=lambda point: point.message_bytes, default=None)
    up, down = found.host_to_device_bytes_per_second, found.device_to_host_bytes_per_second
    calibration = Calibration(
        matmul_flops=found.matmul_flops if found.matmul_precision in ("bf16", "fp16") else None,
        allreduce_bytes_per_second=largest.bus_bytes_per_second if largest else None,
        # measured per GPU with all copying at once; the model divides the node's rate
        host_to_device_bytes_per_second=up * found.ranks if up else None,
        device_to_host_bytes_per_second=down * found.ranks if down else None,
        cpu_adam_parameters_per_second=found.cpu_adam_parameters_per_second,
        host_memory_bytes_per_second=found.host_memory_bytes_per_second,
        host_factor=found.host_factor,
        host_factor_low=found.host_factor_low,
        host_factor_high=found.host_factor_high,
        source=reason,
    )
    return calibration, f"rates of this machine: {reason}"


def _tuned(
    rates: Calibration, cluster: Cluster, shape: ModelShape, job: Job, *, on_cpu: bool
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
    newest = max(each.measured_at for each in used)
    count = f"{len(used)} strateg{'y' if len(used) == 1 else 'ies'}"
    if calibration.tuned is None:
        what = f"layer times corrected by {count} of other jobs of this width"
    else:
        what = f"{'ranked by' if on_cpu else 'step times from'} the measured steps of {count} of this job"
    return calibration, (f"{what}, tuned here at {newest} ({at}); {OPTION} ignores them",)


def keep(request: Request, job: Job, ran: Sequence[tuple[Strategy, float]]) -> tuple[Path, str | None]:
    """Keep measured seconds of a step for later plans; returns the file, and a note where one was damaged.

    Raises:
        OSError: it cannot be written.
    """
    import time

    from zerokit.machine import tuned
    from zerokit.timing.calibration import observe

    rates = replace(request.calibration or Calibration(), tuned=None, layer_factors=())

    def estimate(strategy: Strategy, calibration: Calibration) -> TimeEstimate:
        return time_model(replace(request, calibration=calibration), job).estimate(strategy)

    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return tuned.save(observe(request.shape, job, request.cluster, ran, estimate, rates, at))
