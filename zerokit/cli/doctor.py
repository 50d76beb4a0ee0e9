"""``zerokit doctor``: show what this machine has, and what would break a DeepSpeed run here."""

from __future__ import annotations

import json

import click

from zerokit.cli.base import Command
from zerokit.cli.prose import wrapped
from zerokit.cli.say import say, write
from zerokit.doctor import Examination, examine, rates
from zerokit.errors import NodeUnusable
from zerokit.machine import tuned
from zerokit.machine.measured import Measured
from zerokit.units import MIB, counted

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "blocker": "✗"}
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "blocker": "red"}


@click.command("doctor", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
@click.option(
    "--strict", is_flag=True, help="End with exit code 13 when something makes every run impossible."
)
@click.option(
    "--measure",
    "measure_too",
    is_flag=True,
    help="Measure matrix, copy, CPU Adam and collective rates, and keep them for later plans.",
)
def command(as_json: bool, strict: bool, measure_too: bool) -> None:
    """Look at GPUs, driver, packages, compilers, limits, disks, variables and files; change nothing.

    ✓ fine, · worth knowing, ! slows or breaks some runs, ✗ no run can work.
    """
    examination = examine()
    measured_rates = rates.measure(examination, say) if measure_too else rates.load()
    if as_json:
        write(json.dumps({**examination.as_dict(), **measured_rates.to_dict()}, indent=1, allow_nan=False))
    else:
        for finding in examination.findings:
            mark = click.style(_MARKS[finding.state], fg=_COLOURS[finding.state])
            # the mark is put in last: its colour's escape sequence takes no room
            first, *more = wrapped(finding.what, "  ", "  ")
            write("\n".join([f"{mark} {first[2:]}", *more]))
            if finding.fix:
                write("\n".join(wrapped(finding.fix, "    → ", "      ")))
        known = _rates(measured_rates.measured, measured_rates.source)
        write()
        for line in (*known, *_kept(measured_rates)):
            write("\n".join(wrapped(line, later="  " if line.startswith(" ") else "")))
        write(_verdict(examination))
    if strict and examination.blockers:
        names = ", ".join(finding.check for finding in examination.blockers)
        raise NodeUnusable(f"no run can work here: {names}; `zerokit doctor` says how to fix it")


def _rates(measured: Measured | None, reason: str) -> list[str]:
    if measured is None:
        return [f"Rates: {reason}"]
    lines = [f"Rates of {measured.ranks} × {measured.device_name}, all at once ({reason})"]
    if (flops := measured.matmul_flops) is not None:
        lines.append(f"  matrix product, {measured.matmul_precision}: {flops / 1e12:,.4g} TFLOP/s each")
    if (copied := measured.memory_copy_bytes_per_second) is not None:
        lines.append(f"  memory, read and written: {copied / 1e9:,.4g} GB/s each")
    to_device, to_host = measured.host_to_device_bytes_per_second, measured.device_to_host_bytes_per_second
    if to_device is not None and to_host is not None:
        lines.append(
            f"  pinned copies: {to_device / 1e9:.3g} GB/s to, {to_host / 1e9:.3g} GB/s from each GPU"
        )
    if (adam := measured.cpu_adam_parameters_per_second) is not None:
        lines.append(f"  CPU Adam ({measured.cpu_adam_kind}): {1e9 / adam:.3g} s per 1e9 parameters and step")
    if (read := measured.host_memory_bytes_per_second) is not None:
        lines.append(f"  host memory: {read / 1e9:.3g} GB/s, all ranks together")
    if (cast := measured.host_cast_bytes_per_second) is not None:
        lines.append(f"  casts in host memory: {cast / 1e9:.3g} GB/s, as well")
    if (factor := measured.host_factor) is not None:
        low, high = measured.host_factor_low, measured.host_factor_high
        spread = f" ({low:.2f} to {high:.2f} in nine tenths of the rounds)" if low and high else ""
        lines.append(f"  host: {factor:.2f} times the reference host's seconds to issue operators{spread}")
        if len(measured.host_factor_by_rank) > 1:
            lines.append("  host, by rank: " + ", ".join(f"{of:.2f}" for of in measured.host_factor_by_rank))
    for operation in dict.fromkeys(point.operation for point in measured.collectives):
        curve = ", ".join(
            f"{point.message_bytes / MIB:.0f} MiB {point.bus_bytes_per_second / 1e9:.3g}"
            for point in measured.collectives
            if point.operation == operation
        )
        lines.append(f"  {operation}, bus GB/s: {curve}")
    lines += [f"  not measured: {part}: {why}" for part, why in measured.not_measured.items()]
    return lines


def _kept(measured: rates.Rates) -> tuple[str, str]:
    """What is kept for later plans: step times by `tune`, and the host's speed by launches."""
    steps = "none; `zerokit tune` keeps them"
    if measured.tuned_warning is not None:
        steps = measured.tuned_warning
    elif measured.tuned:
        steps = f"{len(measured.tuned)}, of {counted(measured.tuned_jobs, 'job')} ({tuned.path()})"
    host = "none kept; the first launch on GPUs measures it"
    if (speed := measured.host_speed) is not None:
        spread = f" ({speed.low:.2f} to {speed.high:.2f})" if speed.low and speed.high else ""
        host = f"{speed.factor:.2f}{spread}, {speed.source}"
    return f"Tuned step times: {steps}", f"Host speed by launches: {host}"


def _verdict(examination: Examination) -> str:
    counts = examination.as_dict()["counts"]
    totals = ", ".join(counted(counts[state], state) for state in ("warning", "note"))
    if examination.blockers:
        count = len(examination.blockers)
        things = "1 thing makes" if count == 1 else f"{count} things make"
        return f"\n{things} every run here impossible; {totals}."
    return f"\nRuns can work here; {totals}."
