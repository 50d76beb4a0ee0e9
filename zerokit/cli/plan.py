"""``zerokit plan``: choose the fastest strategy that fits, and write its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.base import WORDS, Command, stray
from zerokit.cli.say import say, write, write_json
from zerokit.commands import DEFAULT_FOLDER
from zerokit.errors import InputError, NothingFits
from zerokit.units import parse_positive_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerokit.planner.plan_result import PlanResult
    from zerokit.script.entry_points import Target


_SCRIPT = "zerokit.script"


class PlanCommand(Command):
    """Everything after ``--`` is a script and its own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands after ``--`` for the script, and all words for the page."""
        ctx.meta[WORDS] = ("plan", *args)
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_SCRIPT] = args[:cut], tuple(args[cut + 1 :])
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # of a script that stands there without ``--``
            at = next((n for n, word in enumerate(args) if word.partition("=")[0] == error.option_name), 0)
            scripts = [word for word in args[:at] if word.endswith(".py") and not word.startswith("-")]
            if _SCRIPT in ctx.meta or not scripts:
                raise
            raise InputError(_misplaced(scripts[0], args)) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the script in the line of usage."""
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT [ARGS]...]"]


@click.command(
    "plan",
    cls=PlanCommand,
    examples=(
        (
            "LoRA on 4-bit weights, one 24 GB card",
            "zerokit plan --model llama-3.1-8b --method qlora --gpus 1 --gpu rtx-4090",
        ),
        (
            "All weights of an 8B model on 8 GPUs",
            "zerokit plan --model llama-3.1-8b --gpus 8 --gpu h100-sxm-80gb",
        ),
        ("70B on two nodes", "zerokit plan --model llama-3.1-70b --gpus 16 --nodes 2 --gpu h200"),
    ),
)
@shared_options.shared("plan")
@click.option("--recipe", metavar="NAME|FILE", help="Options from a recipe or a plan.yaml; others given win.")
@shared_options.trainer
@click.option(
    "--against",
    metavar="FILE",
    help="What you run today, to compare with: a DeepSpeed JSON, an accelerate YAML, a trainer's file.",
)
@click.option("--out", metavar="DIR", help=f"Where the files go. [default: {DEFAULT_FOLDER}]")
@click.option("--dry-run", is_flag=True, help="Only answer: write no files.")
@click.option("--top", metavar="K", default="5", show_default=True, help="How many plans to show.")
@click.option("--html", metavar="FILE", help="Write the plan as one self-contained HTML page too.")
@shared_options.explain
@click.option(
    "--rehearsal-seconds",
    type=click.FloatRange(1, 1e6),
    metavar="SECONDS",
    help="With a script: after this time it is rehearsed only until one plan is that fits. [default: 600]",
)
@shared_options.unconfined
@shared_options.no_cache
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on standard output.")
@click.argument("overrides", nargs=-1, metavar="[FILE] [KEY=VALUE]…")
def command(
    recipe: str | None,
    kind: str | None,
    against: str | None,
    out: str | None,
    dry_run: bool,
    top: str,
    html: str | None,
    explain: bool,
    rehearsal_seconds: float | None,
    unconfined: bool,
    no_cache: bool,
    as_json: bool,
    overrides: tuple[str, ...],
    **options: Any,
) -> None:
    """Choose the fastest strategy that fits, and say why.

    Searches every part of the strategy and the batch that you do not give.

    FILE is what a trainer reads (axolotl, LLaMA-Factory, ms-swift, TRL): the plan is for its job, at
    its global batch.

    KEY=VALUE changes a key of the recipe: gpus=16 nodes=2; `key=` takes it out.

    With a script after `--` (zerokit plan --gpus 8 -- train.py ARGS), the script is rehearsed on
    simulated GPUs: the plan is for what it really allocates, and the best three strategies are rehearsed
    before one is chosen. You need not name its model.
    """
    from zerokit import planner
    from zerokit.cli import plan_text
    from zerokit.planner.plan_result import still_there

    typed = click.get_current_context().meta[WORDS]
    file = None
    if kind is not None or shared_options.is_file(overrides[:1], kind):
        file, overrides = shared_options.read_file(next(iter(overrides), None), kind, typed), overrides[1:]
    if overrides and recipe is None:
        raise InputError(_misplaced(overrides[0], typed))
    if dry_run and (out or html):
        raise InputError("⟨dry_run⟩ writes no files: not with ⟨out⟩ or ⟨html⟩")
    folder = None if dry_run else out or DEFAULT_FOLDER
    count = parse_positive_int(top, "⟨top⟩", 100)
    words = click.get_current_context().meta.get(_SCRIPT)
    try:
        if words is not None and file is not None:
            raise InputError(f"{file.path}: a script after -- says the job itself; leave one of them out")
        if words is not None and against is not None:
            raise InputError("⟨against⟩: not with a script after --, whose job no file says")
        if words is not None:
            from zerokit.script_planner import DEFAULT_SECONDS, plan_script

            result = plan_script(
                _target(words), options, recipe=recipe, overrides=overrides, out=folder, top=count,
                seconds=rehearsal_seconds or DEFAULT_SECONDS, unconfined=unconfined,
                no_cache=no_cache, say=say,
            )  # fmt: skip
        elif rehearsal_seconds is not None or unconfined or no_cache:
            raise InputError(
                "⟨rehearsal_seconds⟩, ⟨unconfined⟩, ⟨no_cache⟩: only with a script: "
                "zerokit plan … -- train.py ARGS"
            )
        else:
            result = planner.plan(
                options, file=file, against=against, recipe=recipe, overrides=overrides, out=folder,
                top=count, say=say,
            )  # fmt: skip
    except (InputError, NothingFits) as error:
        if html is not None and isinstance(error, NothingFits):
            error.add(f"⟨html⟩ {html}: not written, there is no plan to show")
        # a slip in an option is typed again at once
        if folder and (words is not None or isinstance(error, NothingFits)):
            error.add(still_there(Path(folder)))
        raise
    if html is not None and folder is not None:
        _write_page(Path(html), result, folder)
        say(f"wrote {html}")
    if as_json:
        write_json(result.to_dict())
        return
    write(plan_text.plan(result, folder, explain=explain, script=words))


def _write_page(path: Path, result: PlanResult, folder: str) -> None:
    import os
    import time

    from zerokit.launcher.secrets import Secrets
    from zerokit.messages import program
    from zerokit.planner.page import PlanPage, plan_page, survey
    from zerokit.report.html import write_page

    meta = click.get_current_context().meta
    secrets = Secrets(os.environ, meta[WORDS])
    page = PlanPage(
        folder=folder, command=secrets.argv(meta[WORDS]),
        script=secrets.argv(meta.get(_SCRIPT) or result.launched_words), program=program(),
        written_at=time.time(),
    )  # fmt: skip
    write_page(path, plan_page(result, page, others=survey(result)))


def _misplaced(word: str, typed: Sequence[str]) -> str:
    """What to say of a word that is no option's and stands before any script."""
    if word.endswith(".py"):
        return f"{word}: a script stands after --: zerokit plan … -- {word} ARGS"
    if "=" in word:
        return f"{word}: only with --recipe; write options as --name VALUE"
    return stray(word, typed, ", a script after --")


def _target(words: tuple[str, ...]) -> Target:
    """What stands after ``--``. Raises InputError: nothing, or no script."""
    from zerokit.script import entry_points

    module, arguments = None, words
    if words[:1] in (("-m",), ("--module",)):
        module, arguments = (words[1] if len(words) > 1 else ""), words[2:]
    if not words or module == "":
        raise InputError("plan --: name a script, for example: zerokit plan --gpus 8 -- train.py")
    resolved = entry_points.target_of(module, arguments, "plan")
    if resolved.note is not None:
        say(resolved.note)
    return resolved.target
