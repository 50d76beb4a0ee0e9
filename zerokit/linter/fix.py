"""``check --fix``: write the changes that cannot change what runs, touching nothing else in the text."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from zerokit.errors import FileInputError, InputError
from zerokit.files import write_whole
from zerokit.linter.files import CheckedFile
from zerokit.linter.finding import Finding
from zerokit.rules.types import Edit
from zerokit.strictload import Document, Location, Path, parse_json, parse_yaml

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_YAML_SCALAR = re.compile(r"""\"[^"\n\\]*\"|'[^'\n]*'|[^\s#,\[\]{}"'&*!|>]+""")
_YAML_KEY = re.compile(r"""[^\s:#]+|"[^"]*"|'[^']*'""")


def fix_file(file: CheckedFile, *, unsafe: bool = False) -> list[Finding]:
    """Change the file where that is safe, and write it; returns the findings that were fixed.

    Args:
        unsafe: make the changes, too, that let an ignored setting take effect or turn one off.

    Raises:
        InputError: the file cannot be written.
    """
    if file.document is None or file.kind not in ("deepspeed", "accelerate"):
        return []
    if any(problem.rule == "duplicate-key" for problem in file.document.problems):
        return []  # a key names two locations
    as_json = bool(file.document.spans) and file.document.text.lstrip().startswith(("{", "/", "#"))
    as_json = as_json and (file.kind == "deepspeed" or file.path.endswith(".json"))
    document, fixed = file.document, []
    for finding in file.findings:
        is_applicable = finding.fixable == "safe" or (unsafe and finding.fixable == "unsafe")
        if not is_applicable or finding.rule == "json-trailing-comma":
            continue  # commas below, from the end, so that locations stay true
        before = document
        for edit in finding.edits:
            document = _changed(document, edit, as_json=as_json) or document
        if document is not before:
            fixed.append(finding)
    text, commas = _without_trailing_commas(document) if as_json else (document.text, 0)
    fixed += [finding for finding in file.findings if finding.rule == "json-trailing-comma"][:commas]
    # the text was read without it
    fixed += [finding for finding in file.findings if finding.rule == "json-byte-order-mark"]
    if fixed:
        _write(file.path, text)
    return fixed


def _changed(document: Document, edit: Edit, *, as_json: bool) -> Document | None:
    """The document after one edit; ``None`` where it does not apply."""
    text = _apply_json(document, edit) if as_json else _apply_yaml(document, edit)
    if text is None:
        return None
    try:
        return parse_json(text, document.path, strict=False) if as_json else parse_yaml(text, document.path)
    except FileInputError:
        return None  # its location is written in a way that this cannot change


def _write(path: str, text: str) -> None:
    target = pathlib.Path(path).resolve()
    try:
        mode = target.stat().st_mode & 0o777
        write_whole(target, text, through_links=True)
        target.chmod(mode)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _offset(text: str, location: Location) -> int:
    start = 0
    for _ in range(location.line - 1):
        start = text.index("\n", start) + 1
    return start + location.column - 1


def _apply_json(document: Document, edit: Edit) -> str | None:
    """The text after one edit; ``None`` when its key is no longer there."""
    path: Path = tuple(edit.key.split("."))
    if path not in document.keys or path not in document.spans:
        return None
    text = document.text
    start = _offset(text, document.keys[path])
    if edit.kind == "rename":
        name = _STRING.match(text, start)
        if name is None or (*path[:-1], str(edit.value)) in document.keys:
            return None
        return text[:start] + json.dumps(edit.value) + text[name.end() :]
    value_start, value_end = document.spans[path]
    if edit.kind == "set":
        return text[:value_start] + json.dumps(edit.value) + text[value_end:]
    return _without_member(text, start, value_end)


def _without_member(text: str, start: int, end: int) -> str:
    """JSON text without the member at ``start:end``, its comma, and its line when it stood alone there."""
    after = re.compile(r"\s*,").match(text, end)
    if after:
        end = after.end()
    else:
        before = text[:start].rstrip()
        if before.endswith(","):
            start = len(before) - 1
            return text[:start] + text[end:]
    line_start = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t]*\n").match(text, end)
    if not text[line_start:start].strip() and rest:
        return text[:line_start] + text[rest.end() :]
    blank = re.compile(r"[ \t]*").match(text, end)
    return text[:start] + text[blank.end() if blank else end :]


def _without_trailing_commas(document: Document) -> tuple[str, int]:
    text = document.text
    locations = [problem.location for problem in document.problems if problem.rule == "json-trailing-comma"]
    for location in sorted(locations, reverse=True):
        at = _offset(text, location)
        text = text[:at] + text[at + 1 :]
    return text, len(locations)


def _apply_yaml(document: Document, edit: Edit) -> str | None:
    path: Path = tuple(edit.key.split("."))
    if path not in document.keys or path not in document.spans:
        return None
    text = document.text
    if edit.kind == "rename":
        start = _offset(text, document.keys[path])
        name = _YAML_KEY.match(text, start)
        if name is None or (*path[:-1], str(edit.value)) in document.keys:
            return None
        return text[:start] + str(edit.value) + text[name.end() :]
    if edit.kind == "set":
        start = _offset(text, document.values[path])
        old = _YAML_SCALAR.match(text, start)
        if old is None:
            return None
        return text[:start] + _yaml_scalar(edit.value) + text[old.end() :]
    return None  # a YAML block is not taken out: its extent is a matter of indentation


def _yaml_scalar(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
