"""A run's figures as OpenMetrics text, for a collector that reads files (node_exporter's textfile).

The format: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerokit.report.schema import RankReport, RunReport

_BYTES = (
    ("peak_allocated", "peak_allocated_bytes", "Highest GPU memory that PyTorch had allocated"),
    ("peak_reserved", "peak_reserved_bytes", "Highest GPU memory that PyTorch's allocator held"),
    ("peak_device_used", "peak_device_used_bytes", "Highest memory in use on the device"),
    ("device_total", "device_total_bytes", "The device's memory"),
    ("peak_host_rss", "peak_host_rss_bytes", "Highest resident host memory"),
)


def openmetrics(run: RunReport, alarms: int) -> str:
    """The whole exposition, its end mark included. What is not measured has no sample.

    Args:
        alarms: how many there are.
    """
    lines: list[str] = []
    for name, field, text in _BYTES:
        samples = [(rank, value) for rank in run.ranks if (value := getattr(rank, field)) is not None]
        lines += _family(f"zerokit_{name}_bytes", "gauge", "bytes", text, samples)
    lines += [
        "# TYPE zerokit_phase_peak_bytes gauge",
        "# UNIT zerokit_phase_peak_bytes bytes",
        "# HELP zerokit_phase_peak_bytes Highest memory in a phase, of the GPU where there is one",
        *(f"zerokit_phase_peak_bytes{{{_labels(rank)},phase=\"{_escaped(phase)}\"}} {value}"
          for rank in run.ranks for phase, value in rank.phases.items()),
    ]  # fmt: skip
    steps = [(rank, rank.steps) for rank in run.ranks]
    lines += _family("zerokit_optimizer_steps", "counter", "", "Optimizer steps done", steps, suffix="_total")
    times = [(rank, rank.median_step_seconds) for rank in run.ranks if rank.median_step_seconds]
    lines += _family("zerokit_step_seconds", "gauge", "seconds", "Median time of an optimizer step", times)
    lines += ["# TYPE zerokit_alarms gauge", "# HELP zerokit_alarms Things that somebody should look at",
              f"zerokit_alarms {alarms}", "# EOF"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _family(
    name: str,
    kind: str,
    unit: str,
    text: str,
    samples: Sequence[tuple[RankReport, float]],
    suffix: str = "",
) -> Iterator[str]:
    if not samples:
        return
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}"
    for rank, value in samples:
        yield f"{name}{suffix}{{{_labels(rank)}}} {value}"


def _labels(rank: RankReport) -> str:
    return f'rank="{rank.rank}",host="{_escaped(rank.host)}",state="{rank.state}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
