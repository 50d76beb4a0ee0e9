"""What was measured on this machine, as the time model takes it."""

from __future__ import annotations

from zerokit.core.constants import Calibration


def of_this_machine(gpu_titles: tuple[str, ...]) -> tuple[Calibration | None, str | None]:
    """The rates that ``zerokit doctor --measure`` stored here, and a note for the user.

    Args:
        gpu_titles: names by which drivers call the GPU planned for; measurements of another kind of
            device are not used.

    Returns:
        ``None`` twice when nothing was measured here.
    """
    from zerokit.catalog import measured as store

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
        source=reason,
    )
    return calibration, f"rates of this machine: {reason}"
