"""``zerokit tune``: run the planner's top candidates here for some steps, keep the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli import prose
from zerokit.cli.base import ScriptCommand, no_script
from zerokit.cli.say import is_loud, say, write, write_json
from zerokit.errors import InputError
from zerokit.options import divided
from zerokit.tuner.options import TuneOptions
from zerokit.units import GIB, counted, format_gib, format_seconds

_WIDTHS = {"predicted": 10, "rehearsed": 10, "measured": 10, "error": 8}


def text(body: Mapping[str, Any]) -> str:
    """One page."""
    count, gpus = len(body["trials"]), body["gpus"]
    location = counted(gpus, "CPU rank") if body["gpu"] == "cpu" else f"{gpus} × {body['gpu']}"
    steps = f"{counted(body['steps'], 'step')} each"
    lines = [f"{body['model']} on {location}: {counted(count, 'plan')}, {steps}"]
    assumed = list(body["assumptions"])
    if body["not_rehearsed"] is not None and body["gpu"] != "cpu":
        assumed.append(f"nothing was rehearsed: {body['not_rehearsed']}")
    lines += [prose.heading("Assumed"), *prose.bullets(assumed)]
    lines += [prose.heading("Tried" if body["folder"] else "To be tried")]
    for trial in body["trials"]:
        lines += prose.wrap(f"{trial['trial']}  {trial['description']}", "  ", "     ")
    lines += _table(body)
    if not body["folder"]:
        lines += [prose.heading("Takes"), *prose.paragraph(_duration(body))]
    if body["fastest"] is not None:
        lines.append("  * the fastest")
    if any(trial.get("memory") == "host" for trial in body["trials"]):
        lines.append("  memory: of the host, by rank, the Python process included")
    if body["files"]:
        lines += [prose.heading("Written"), *(f"  {path}" for path in body["files"].values())]
    if (calibration := body["calibration"]) is not None:
        lines += [
            prose.heading("Kept for later plans here"),
            *prose.bullets(_calibration_lines(calibration)),
        ]
    if body["folder"]:
        lines += [prose.heading("Runs"), f"  {body['folder']}"]
    if body["next"]:
        lines += [prose.heading("Next"), *prose.command_lines(body["next"])]
    elif not body["folder"]:
        again = "the same command without --dry-run runs these plans and keeps the fastest"
        lines += [prose.heading("Next"), *prose.paragraph(again)]
    return "\n".join(lines)


def _duration(body: Mapping[str, Any]) -> str:
    """How long all of it may take, as far as that is known before."""
    count, most = len(body["trials"]), body["most_seconds_per_trial"]
    each = f"each plan until it did {counted(body['steps'], 'step')}, at most {format_seconds(most)}"
    plans = counted(count, "plan")
    total = f"{each} with loading (--timeout): {format_seconds(count * most)} at most for {plans}"
    rehearsing = body["most_rehearsal_seconds"]
    if not rehearsing:
        return total
    return f"{total}; rehearsals before, {format_seconds(rehearsing)} or little more (--rehearsal-seconds)"


def _calibration_lines(calibration: Mapping[str, Any]) -> list[str]:
    if not calibration["kept"]:
        return [f"nothing: {calibration['why']}"]
    times = counted(calibration["kept"], "step time")
    return [f"{times} in {calibration['file']}", *([calibration["why"]] if calibration["why"] else [])]


def _table(body: Mapping[str, Any]) -> list[str]:
    """Predicted, where a plan was rehearsed also rehearsed, and measured; the error is that of the last
    prediction before the run. Before a run, what is predicted alone."""
    rehearsed = any(trial["rehearsed"] for trial in body["trials"])
    names = ["predicted", *(("rehearsed",) if rehearsed else ())]
    groups = ["time of a step", "peak memory"]
    if body["folder"]:
        names += ["measured", "error"]
    elif all(trial["predicted_step_seconds"] is None for trial in body["trials"]):  # CPU ranks
        groups.remove("time of a step")
    width = max(sum(_WIDTHS[name] for name in names), *(len(group) + 1 for group in groups))
    first = width - sum(_WIDTHS[name] for name in names[1:])
    widths = {**_WIDTHS, names[0]: first}
    titles = (f"{group:^{width - 1}}" for group in groups)
    lines = ["", f"{'':4} {' '.join(titles)}".rstrip()]
    lines.append("    " + "".join(f"{name:>{widths[name]}}" for _ in groups for name in names))
    for trial in body["trials"]:
        shown = _groups(trial)
        cells = "".join(f"{shown[group][name]:>{widths[name]}}" for group in groups for name in names)
        lines += _row(trial, body["fastest"], cells)
    if body["not_tried"]:
        lines += [prose.heading("Not tried"), *prose.bullets(body["not_tried"])]
    return lines


def _groups(trial: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The cells of a row by the group of columns that they stand in."""
    rehearsed = trial["rehearsed"] or {}
    return {
        "time of a step": _cells(
            _time, trial["predicted_step_seconds"], rehearsed.get("step_seconds"),
            trial.get("measured_step_seconds"),
        ),
        "peak memory": _cells(
            _size, trial["predicted_peak_bytes"], rehearsed.get("peak_allocated_bytes"),
            trial.get("measured_peak_bytes"),
        ),
    }  # fmt: skip


def _row(trial: Mapping[str, Any], fastest: int | None, cells: str) -> list[str]:
    mark = "*" if trial["trial"] == fastest else " "
    why = trial.get("problem") or "; ".join(trial.get("differences") or ())
    if why and trial.get("problem"):
        why = f"{trial['outcome']}: {why}"
    reason_lines = prose.wrap(why, "     ", "     ")
    return [f"{trial['trial']:>3}{mark}{cells}".rstrip(), *reason_lines]


def _cells(
    formatted: Callable[[Any], str], predicted: float | None, rehearsed: float | None, measured: float | None
) -> dict[str, str]:
    last = predicted if rehearsed is None else rehearsed
    return {
        "predicted": formatted(predicted),
        "rehearsed": formatted(rehearsed),
        "measured": formatted(measured),
        "error": _error(last, measured),
    }


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _size(size: int | None) -> str:
    return "–" if size is None else format_gib(size, 1 if size >= 100 * GIB else 2)


def _error(predicted: float | None, measured: float | None) -> str:
    return "–" if predicted is None or not measured else f"{predicted / measured - 1:+.1%}"


@click.command(
    "tune",
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Options after the script are the script's own. {micro_batch}, {gradient_accumulation} and "
    "{checkpointing} (true or false) in them are filled in from each plan. "
    "Example: zerokit tune --model llama-3.1-8b train.py --batch {micro_batch}",
    groups=shared_options.groups(TuneOptions),
)
@shared_options.shared("tune")
@shared_options.declared(TuneOptions)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT with each of the planner's best plans for a few steps; keep the one that is fastest.

    On GPUs the script is rehearsed with each plan first: one that cannot fit is not tried, and the table
    has the rehearsed figures too. A plan that runs out of memory, fails, hangs or takes too long is passed
    over. The step times are kept for later plans on this machine. A trial ends in the middle of the script:
    what follows the training loop is not reached.
    """
    from functools import partial

    from zerokit import tuner
    from zerokit.script.entry_points import target_of
    from zerokit.script_planner.rehearsals import rehearsing

    as_json = options.pop("as_json")
    if options["module"] is None and not arguments:
        raise no_script("--model gpt2")
    if as_json and options["show"] != "none":
        raise InputError("--json: standard output carries the result; leave --show out")
    settings, plan_options = divided(TuneOptions, options)
    resolved = target_of(settings["module"], arguments, "tune")
    if resolved.note is not None:
        say(resolved.note)
    result = tuner.tune(
        resolved.target, plan_options, settings, say=say, show_progress=is_loud(),
        rehearsing=partial(rehearsing, unconfined=settings["unconfined"], no_cache=settings["no_cache"]),
    )  # fmt: skip
    _print(result.to_dict(), as_json)
    if result.interrupted is not None:
        say(f"interrupted; what was measured is in {result.tuning.folder}")
        return result.interrupted
    if result.error is not None:
        raise result.error
    return 0


def _print(body: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(body)
        return

    write(text(body))
