"""What people have decided to live with: comments in a file, ``[tool.zerokit.check]`` in pyproject.toml."""

from __future__ import annotations

import importlib
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerokit.errors import FileInputError, InputError
from zerokit.linter.discover import Ignored
from zerokit.linter.finding import Finding
from zerokit.strictload import read_text

_COMMENT = re.compile(r"(?:#|//)\s*zerokit:\s*ignore(?P<file>-file)?\s*(?:\[(?P<rules>[^\]]*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``[tool.zerokit.check]``.

    Attributes:
        ignore: rules that are never shown.
        exclude: patterns, as in .gitignore, of files that a folder is searched without.
        options: what the command line takes when it does not say otherwise: ``for``, ``world-size``,
            ``strict``, ``deepspeed-version``.
        folder: that of the pyproject.toml; None: there is none.
    """

    ignore: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: pathlib.Path | None = None

    def leaves_out(self, path: pathlib.Path) -> bool:
        """Whether ``exclude`` names a file or a folder that it lies in."""
        if self.folder is None or not self.exclude:
            return False
        parts, excluded = path.relative_to(self.folder).parts, Ignored(self.exclude)
        ends = range(1, len(parts) + 1)
        return any(excluded.says(parts[:end], is_folder=end < len(parts)) for end in ends)


_OPTIONS: Mapping[str, type] = {"for": str, "world-size": int, "strict": bool, "deepspeed-version": str}


def settings_beside(path: pathlib.Path) -> Settings:
    """The section of the nearest pyproject.toml, from ``path`` upwards. Raises FileInputError: it cannot be
    read, or says what is not known."""
    for folder in (path, *path.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _settings(file)
    return Settings()


def _settings(file: pathlib.Path) -> Settings:
    try:
        tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        loaded: dict[str, Any] = tomllib.loads(read_text(file))
    except ValueError as error:
        raise FileInputError(file, f"cannot be read: {error}") from None
    except ImportError:
        raise InputError(f"{file}: install tomli to read it on Python 3.10") from None
    section = loaded.get("tool", {}).get("zerokit", {}).get("check", {})
    if not isinstance(section, dict):
        raise FileInputError(file, "tool.zerokit.check must be a table")
    for key, value in section.items():
        lists = (
            key in ("ignore", "exclude")
            and isinstance(value, list)
            and all(isinstance(v, str) for v in value)
        )
        if not lists and not (key in _OPTIONS and type(value) is _OPTIONS[key]):
            known_keys = ", ".join(("ignore", "exclude", *_OPTIONS))
            raise FileInputError(
                file, f"tool.zerokit.check.{key} is not known, or of another type; known: {known_keys}"
            )
    return Settings(
        ignore=frozenset(section.get("ignore", ())),
        exclude=tuple(section.get("exclude", ())),
        options={key: section[key] for key in _OPTIONS if key in section},
        folder=file.parent,
    )


def without_ignored(findings: Sequence[Finding], text: str, ignore: frozenset[str]) -> list[Finding]:
    """Findings that neither ``ignore`` nor a comment takes out.

    ``# zerokit: ignore[rule, rule]`` (``//`` in JSON) speaks of its line, or of the next when it stands
    alone; ``ignore-file`` of the whole file; without brackets every rule is meant.
    """
    lines: dict[int, list[str] | None] = {}
    ignored_files: set[str] = set()
    everything = False
    for number, line in enumerate(text.split("\n"), start=1):
        comment = _COMMENT.search(line)
        if comment is None:
            continue
        rules = [rule.strip() for rule in comment["rules"].split(",")] if comment["rules"] else None
        if comment["file"]:
            ignored_files |= set(rules or ())
            everything = everything or rules is None
        else:
            is_alone = not line[: comment.start()].strip()
            lines[number + 1 if is_alone else number] = rules
            lines[number] = rules
    if everything:
        return []

    def is_ignored(finding: Finding) -> bool:
        if finding.rule in ignore or finding.rule in ignored_files:
            return True
        if finding.location.line not in lines:
            return False
        rules = lines[finding.location.line]
        # the comment itself is what makes the file unreadable for json.load: it is not silenced by being one
        return finding.rule in rules if rules is not None else not finding.rule.startswith("json-")

    return [finding for finding in findings if not is_ignored(finding)]
