"""``zerokit tune``: run the planner's top candidates here for some steps, keep the fastest."""

from __future__ import annotations

from collections.abc import Mapping
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
    for trial in _rows(body):
        lines += prose.wrap(f"{trial['trial']}  {trial['description']}", "  ", "     ")
    lines += _table(body)
    if not body["folder"]:
        lines += [prose.heading("Takes"), *prose.paragraph(_duration(body))]
    if body["fastest"] is not None:
        lines.append("  * the fastest" + _of_theirs(body["against"]))
    if any(trial.get("memory") == "host" for trial in body["trials"]):
        lines.append("  memory: of the host, by rank, the Python process included")
    if body["files"]:
        lines += [prose.heading("Written"), *(f"  {path}" for path in body["files"].values())]
    if (calibration := body["calibration"]) is not None:
        kept = f"{counted(calibration['kept'], 'step time')} in {calibration['file']}"
        told = [kept, *filter(None, [calibration["why"]])]
        told = told if calibration["kept"] else [f"nothing: {calibration['why']}"]
        lines += [prose.heading("Kept for later plans here"), *prose.bullets(told)]
    if body["folder"]:
        lines += [prose.heading("Runs"), f"  {body['folder']}"]
    if body["next"]:
        lines += [prose.heading("Next"), *prose.command_lines(body["next"])]
    elif not body["folder"]:
        again = "the same command without --dry-run runs these plans and keeps the fastest"
        lines += [prose.heading("Next"), *prose.paragraph(again)]
    return "\n".join(lines)


def _rows(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the user runs today, if it was named, and the plans."""
    return [*([] if body["against"] is None else [body["against"]]), *body["trials"]]


def _of_theirs(against: Mapping[str, Any] | None) -> str:
    """``, 1.84 times as fast as ds_config.json``; empty: there is none, or it was not timed."""
    times = None if against is None else against["times_as_fast"]
    return f" plan, {times:.2f} times as fast as {against['path']}" if against is not None and times else ""


def _duration(body: Mapping[str, Any]) -> str:
    """How long all of it may take, as far as that is known before."""
    count, most = len(_rows(body)), body["most_seconds_per_trial"]
    each = f"each plan until it did {counted(body['steps'], 'step')}, at most {format_seconds(most)}"
    plans = counted(count, "plan")
    total = f"{each} with loading (--timeout): {format_seconds(count * most)} at most for {plans}"
    rehearsing = body["most_rehearsal_seconds"]
    if not rehearsing:
        return total
    return f"{total}; rehearsals before, {format_seconds(rehearsing)} or little more (--rehearsal-seconds)"


def _table(body: Mapping[str, Any]) -> list[str]:
    """Predicted, where a plan was rehearsed also rehearsed, and measured; the error is that of the last
    prediction before the run. Before a run, what is predicted alone."""
    rows = _rows(body)
    rehearsed = any(trial["rehearsed"] for trial in rows)
    names = ["predicted", *(("rehearsed",) if rehearsed else ())]
    groups = ["time of a step", "peak memory"]
    if body["folder"]:
        names += ["measured", "error"]
    elif all(trial["predicted_step_seconds"] is None for trial in rows):  # CPU ranks
        groups.remove("time of a step")
    width = max(sum(_WIDTHS[name] for name in names), *(len(group) + 1 for group in groups))
    first = width - sum(_WIDTHS[name] for name in names[1:])
    widths = {**_WIDTHS, names[0]: first}
    titles = (f"{group:^{width - 1}}" for group in groups)
    lines = ["", f"{'':4} {' '.join(titles)}".rstrip()]
    lines.append("    " + "".join(f"{name:>{widths[name]}}" for _ in groups for name in names))
    for trial in rows:
        shown = _cells(trial)
        cells = "".join(f"{shown[group, name]:>{widths[name]}}" for group in groups for name in names)
        mark = "*" if trial["trial"] == body["fastest"] else " "
        problem = f"{trial['outcome']}: {trial['problem']}" if trial.get("problem") else ""
        why = problem or "; ".join(trial.get("differences") or ())
        lines += [f"{trial['trial']:>3}{mark}{cells}".rstrip(), *prose.wrap(why, "     ", "     ")]
    if body["not_tried"]:
        lines += [prose.heading("Not tried"), *prose.bullets(body["not_tried"])]
    return lines


def _cells(trial: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """What stands in a row, by the group of columns and the column."""
    rehearsed, cells = trial["rehearsed"] or {}, {}
    for group, known, key in (
        ("time of a step", "step_seconds", "step_seconds"),
        ("peak memory", "peak_bytes", "peak_allocated_bytes"),
    ):
        values = {
            "predicted": trial[f"predicted_{known}"],
            "rehearsed": rehearsed.get(key),
            "measured": trial.get(f"measured_{known}"),
        }
        for name, value in values.items():
            written = format_seconds if known == "step_seconds" else _size
            cells[group, name] = "–" if value is None else written(value)
        last = values["predicted"] if values["rehearsed"] is None else values["rehearsed"]
        seen = values["measured"]
        cells[group, "error"] = "–" if last is None or not seen else f"{last / seen - 1:+.1%}"
    return cells


def _size(size: int) -> str:
    return format_gib(size, 1 if size >= 100 * GIB else 2)


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
    body = result.to_dict()
    write_json(body) if as_json else write(text(body))
    if result.interrupted is not None:
        say(f"interrupted; what was measured is in {result.tuning.folder}")
        return result.interrupted
    if result.error is not None:
        raise result.error
    return 0
