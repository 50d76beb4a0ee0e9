"""``zerokit check``: lint DeepSpeed JSON, accelerate YAML, hostfiles, plans and recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.base import Command
from zerokit.cli.say import echo, say, write, write_json
from zerokit.messages import width_of
from zerokit.options import divided
from zerokit.planner.options import CheckOptions

if TYPE_CHECKING:
    from zerokit.linter.suppress import Settings
    from zerokit.planner.checking import CheckResult


GROUPS = dict(shared_options.groups(CheckOptions))
GROUPS["Findings"] = (*GROUPS["Findings"], "notes", "strict")


@click.command(
    "check",
    cls=Command,
    groups=GROUPS,
)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|-]…")
@shared_options.declared(CheckOptions)
@click.option("--explain", metavar="RULE", help="What a rule finds, why, an example, the fix and its source.")
@click.option(
    "--schema",
    is_flag=False,
    flag_value="deepspeed",
    type=click.Choice(["deepspeed", "accelerate"]),
    help="Print a JSON Schema for editors, of a DeepSpeed JSON unless accelerate is named.",
)
@click.option("--lsp", is_flag=True, help="Serve an editor on standard input and output; needs pygls.")
@shared_options.shared("check")
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("--notes", is_flag=True, help="Show notes as well.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "github", "sarif", "junit"]),
    metavar="text|json|github|sarif|junit",
    default="text",
    show_default=True,
    help="How findings are written.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
def command(files: tuple[str, ...], **options: Any) -> int:
    """Find what DeepSpeed, Accelerate or the launcher would ignore or reject.

    Names the line, what will happen and the fix. Exit code 0: nothing wrong; 2: errors.
    """
    from zerokit.planner.checking import check, for_versions

    if options["explain"]:
        from zerokit.linter.explain import as_text, explain

        write(as_text(explain(options["explain"]), width_of(1)))
        return 0
    if options["lsp"]:
        from zerokit.planner.language_server import serve

        serve()
        return 0
    project_settings = _settings(options)
    options["ignore"] = project_settings.ignore | frozenset(options["ignore"])
    settings, more = divided(CheckOptions, options)
    with for_versions(settings["deepspeed_version"], settings["accelerate_version"]):
        if options["schema"]:
            from zerokit.linter.schema import SCHEMAS

            write_json(SCHEMAS[options["schema"]]())
            return 0
        result = check(files, more, settings, exclude=project_settings.exclude, say=say)
        _show(result, options)
    if result.stopped is not None:
        raise result.stopped
    return result.exit_code(strict=options["strict"])


def _settings(options: dict[str, Any]) -> Settings:
    """The section of pyproject.toml; what it says goes where the command line says nothing."""
    from pathlib import Path

    from zerokit.linter.suppress import settings_beside

    settings = settings_beside(Path.cwd())
    for key, value in settings.options.items():
        name = {"for": "reader"}.get(key, key.replace("-", "_"))
        if not options.get(name):
            options[name] = value if isinstance(value, bool) else str(value)
    return settings


def _show(result: CheckResult, options: dict[str, Any]) -> None:
    from zerokit.linter import output

    style = "json" if options["as_json"] else options["style"]
    if style == "json":
        write_json(result.to_dict(), 2)
        return
    for finding in result.fixed:
        echo(f"{finding.where}: fixed: {finding.done} [{finding.rule}]")
    if style == "text":
        text = output.as_text(result.files, notes=options["notes"], width=width_of(1), skipped=result.skipped)
    else:
        text = output.FORMATS[style](result.files, notes=options["notes"])
    if text and style == "text":
        write(text)
    elif text:
        click.echo(text)  # each form escapes what is foreign
    nothing = output.nothing_written(result.files, unsafe=options["unsafe"], notes=options["notes"])
    if options["fix"] and not result.fixed and nothing:
        say(nothing)
