"""Pages of the site that are made from the program itself: every command, every rule of ``check``.

MkDocs calls the hooks (``mkdocs.yml``); ``mkdocs build`` needs nothing but them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from zerokit.cli import cli, commands
from zerokit.linter.explain import Explanation, examples, explain, readers_text, versions
from zerokit.linter.output import FIXABLE

_COLUMNS = 78
"""That click fills of a terminal of 80."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for path, text in rule_pages():
        files.append(File.generated(config, path, content=text))
    return files


def commands_page() -> str:
    """Every command with its help, as ``--help`` prints it."""
    lines = ["# Commands", "", "What `zerokit COMMAND --help` prints.", ""]
    above = _context(cli, "zerokit")
    lines += ["```text", cli.get_help(above), "```", ""]
    for name in commands():
        command = cli.get_command(above, name)
        if command is not None:
            lines += [f"## zerokit {name}", "", "```text", _help(command, name, above), "```", ""]
            lines += _below(command, name, above)
    return "\n".join(lines)


def _below(command: click.Command, name: str, above: click.Context) -> list[str]:
    lines: list[str] = []
    if isinstance(command, click.Group):
        context = _context(command, name, above)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                lines += [
                    f"### zerokit {name} {inner}",
                    "",
                    "```text",
                    _help(found, inner, context),
                    "```",
                    "",
                ]
    return lines


def _help(command: click.Command, name: str, above: click.Context) -> str:
    return command.get_help(_context(command, name, above))


def _context(command: click.Command, name: str, above: click.Context | None = None) -> click.Context:
    """As for a command that is run: with the settings of its own, and of the program."""
    return command.make_context(name, [], parent=above, resilient_parsing=True, terminal_width=_COLUMNS)


def rule_pages() -> Iterator[tuple[str, str]]:
    """Path and text of the list of rules, and of each rule's page."""
    intro = "Each has an example that breaks it, and its fix. `zerokit check --explain RULE` prints the same."
    rows = ["# Rules of check", "", intro, "", "| rule | severity | finds |", "| --- | --- | --- |"]
    for rule in sorted(examples()):
        one = explain(rule)
        message = one.finding.message.replace("|", "\\|")
        rows.append(f"| [`{rule}`]({rule}.md) | {one.finding.severity} | {message} |")
        yield f"rules/{rule}.md", "\n".join(["---", f"title: {rule}", "search: {boost: 0.5}", "---", "",
                                             *rule_page(one)]) + "\n"  # fmt: skip
    yield "rules/index.md", "\n".join(rows) + "\n"


def rule_page(one: Explanation) -> list[str]:
    """The lines of a rule's page: what it finds, why, the example that breaks it, and the fix."""
    message = one.finding.message
    lines = [f"# {one.rule}", "", f"{message[:1].upper()}{message[1:]} ({one.finding.severity})"]
    if one.why:
        lines += ["", one.why]
    if readers_text(one.rule):
        lines += ["", f"Holds for {readers_text(one.rule)}."]
    if versions(one.rule):
        lines += ["", f"Versions: {versions(one.rule)}."]
    for name, text in one.files.items():
        kind = PurePath(name).suffix.removeprefix(".") or "text"
        lines += ["", f"`{name}`:", "", f"```{kind}", text.rstrip().replace("\ufeff", ""), "```"]
    if one.finding.fix:
        lines += ["", f"Fix: {one.finding.fix}{FIXABLE[one.finding.fixable]}"]
    if one.finding.source:
        lines += ["", f"Source: {one.finding.source}"]
    return lines
