"""``zerokit tune``: run the planner's top candidates here for some steps, keep the fastest."""

from __future__ import annotations

from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.say import is_loud, say, write, write_json
from zerokit.cli.script_command import ScriptCommand, no_script
from zerokit.errors import InputError
from zerokit.options import divided
from zerokit.tuner.options import TuneOptions


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
    from zerokit.script_planner.rehearsals import rehearse_strategy

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
        rehearse=partial(rehearse_strategy, unconfined=settings["unconfined"]),
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
    from zerokit.cli.tune_table import text

    write(text(body))
