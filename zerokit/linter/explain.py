"""What a rule says, why, an example and its source: for ``--explain`` and for the rules' pages.

The texts are those of the finding itself, in a file that breaks the rule.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerokit.errors import InputError
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.deepspeed.tables import TABLES
from zerokit.linter.files import check_files
from zerokit.linter.finding import Finding
from zerokit.linter.output import FIXABLE
from zerokit.messages import wrapped
from zerokit.rules import READERS, Rule, all_rules
from zerokit.strictload import load_yaml
from zerokit.suggest import alike
from zerokit.temporary import temporary_folder

_EXAMPLES = pathlib.Path(__file__).with_name("examples.yaml")


_SETTINGS = ("world_size", "gpus_per_node", "key_value_heads", "model_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One rule, explained. ``files``: name and text of the files of the example; the first breaks the rule.
    ``finding``: what is found in it."""

    rule: str
    why: str
    files: Mapping[str, str]
    finding: Finding


@functools.cache
def examples() -> Mapping[str, Mapping[str, Any]]:
    """The example of every rule."""
    loaded: Mapping[str, Mapping[str, Any]] = load_yaml(_EXAMPLES).value
    return loaded


def _meant(rule: str) -> str:
    words = set(rule.split("-"))
    close = alike(rule, examples()) or [name for name in sorted(examples()) if words & {*name.split("-")}]
    if not close:
        return "`zerokit check FILE` names the rule of each finding in [ ]"
    return f"did you mean {' or '.join(close[:3])}?"


@functools.cache
def explain(rule: str) -> Explanation:
    """Everything about a rule. Raises InputError: there is no such rule."""
    example = examples().get(rule)
    if example is None:
        raise InputError(f"--explain {rule}: there is no such rule; {_meant(rule)}")
    files = {name: text for name, text in example.items() if "." in name or name == "hostfile"}
    numbers = {name: example[name] for name in _SETTINGS if name in example}
    with temporary_folder("explain") as folder, _where_it_holds(rule):
        paths = {name: folder / name for name in files}
        for name, text in files.items():
            paths[name].write_text(text, encoding="utf-8", newline="")
        checked = check_files([str(path) for path in paths.values()], Context(**numbers))
        finding = next(candidate for file in checked for candidate in file.findings if candidate.rule == rule)
    finding = replace(
        finding,
        marked=finding.marked.replace(f"{folder}/", ""),
        marked_fix=finding.marked_fix.replace(f"{folder}/", ""),
    )
    return Explanation(rule=rule, why=example.get("why") or _why(rule), files=files, finding=finding)


def _where_it_holds(rule: str) -> contextlib.AbstractContextManager[None]:
    """Check for the newest version in which a rule holds."""
    definition = _find_rule(rule)
    newest = max(TABLES.versions)
    last = min(definition.until, newest) if definition is not None else newest
    return TABLES.chosen(".".join(map(str, last)))


def _find_rule(rule: str) -> Rule | None:
    return next((candidate for candidate in all_rules() if candidate.id == rule), None)


def _why(rule: str) -> str:
    """Why it matters, for a rule without words of its own."""
    definition = _find_rule(rule)
    if definition is None:
        return ""
    if definition.silent:
        return "DeepSpeed accepts the file without a word, and the run does not do what the file says."
    if definition.severity == "error":
        return "The run stops on every rank, after the model has been loaded."
    return "DeepSpeed warns in a log that few people read, and goes on."


def readers_text(rule: str) -> str:
    """For whom a rule holds, where that is not everybody."""
    definition = _find_rule(rule)
    if definition is None or len(definition.readers) == len(READERS):
        return ""
    return " and ".join(READERS[reader] for reader in READERS if reader in definition.readers)


def versions(rule: str) -> str:
    """The versions of DeepSpeed in which a rule holds, where those are not all that there are tables for."""
    definition = _find_rule(rule)
    return definition.versions if definition is not None else ""


def as_text(explanation: Explanation, width: int | None = None) -> str:
    """For the terminal, in at most ``width`` columns but for the lines of the example's files."""
    finding = explanation.finding

    def part(title: str, text: str) -> list[str]:
        return ["", title, wrapped(f"  {text}", width)] if text else []

    parts = [f"{explanation.rule} ({finding.severity})", "", wrapped(f"  {finding.message}", width)]
    parts += part("Why", explanation.why)
    parts += part("For", readers_text(explanation.rule))
    parts += part("Versions", versions(explanation.rule))
    parts += ["", "Example"]
    for name, text in explanation.files.items():
        quoted = "\n".join(f"    {line}" for line in text.rstrip().splitlines())
        parts += [f"  {name}", quoted.replace("\ufeff", "<BOM>")]
    parts += part("Fix", finding.fix and f"{finding.fix}{FIXABLE[finding.fixable]}")
    parts += part("Source", finding.source)
    return "\n".join(parts)
