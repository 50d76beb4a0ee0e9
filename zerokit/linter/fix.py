"""``check --fix``: write the changes that cannot change what runs, touching nothing else in the text."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Sequence

from zerokit.errors import FileInputError, InputError
from zerokit.files import write_whole
from zerokit.linter.files import JSON_ENDINGS, CheckedFile
from zerokit.linter.finding import Finding
from zerokit.rules.types import Edit
from zerokit.strictload import Document, Lines, Path, parse_json, parse_yaml

_MOST_ROUNDS = 3
_COMMA = "json-trailing-comma"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_YAML_SCALAR = re.compile(r"""\"[^"\n\\]*\"|'[^'\n]*'|[^\s#,\[\]{}"'&*!|>]+""")
_YAML_KEY = re.compile(r"""[^\s:#]+|"[^"]*"|'[^']*'""")


def fix_file(file: CheckedFile, *, unsafe: bool = False) -> list[Finding]:
    """Change the file where that is safe, and write it; returns the findings that were fixed. ``unsafe``:
    make the changes, too, that let an ignored setting take effect or turn one off. Raises InputError: the
    file cannot be written."""
    wanted = ("safe", "unsafe") if unsafe else ("safe",)
    text, fixed = fixed_text(file, [finding for finding in file.findings if finding.fixable in wanted])
    if fixed:
        target = pathlib.Path(file.path).resolve()
        try:
            mode = target.stat().st_mode & 0o777
            write_whole(target, text, through_links=True)
            target.chmod(mode)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be written: {error.strerror}") from None
    return fixed


def fixed_text(file: CheckedFile, wanted: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """The text with the fixes of these findings, and the findings that are fixed so; nothing is written."""
    if file.document is None or file.kind not in ("deepspeed", "accelerate", "arguments"):
        return file.text, []
    if any(problem.rule == "duplicate-key" for problem in file.document.problems):
        return file.text, []  # a key names two locations
    as_json = bool(file.document.spans) and file.document.text.lstrip().startswith(("{", "/", "#"))
    is_yaml = file.path.endswith((".yaml", ".yml"))
    as_json = as_json and ((file.kind == "deepspeed" and not is_yaml) or file.path.endswith(JSON_ENDINGS))
    found = [finding for finding in wanted if finding.rule != _COMMA]  # those when all else is in place
    edits = [edit for finding in found for edit in finding.edits]
    document, done = file.document, set[tuple[str, str]]()
    for _ in range(_MOST_ROUNDS):  # an edit may be about what another one renamed
        left = [edit for edit in edits if (edit.kind, edit.key) not in done]
        document, written = _changed(document, left, as_json=as_json)
        done |= {(edit.kind, edit.key) for edit in written}
    fixed = [one for one in found if any((edit.kind, edit.key) in done for edit in one.edits)]
    text, commas = _without_trailing_commas(document) if as_json else (document.text, 0)
    fixed += [finding for finding in file.findings if finding.rule == _COMMA][:commas]
    # the text was read without it
    fixed += [finding for finding in file.findings if finding.rule == "json-byte-order-mark"]
    return text, fixed


def _changed(document: Document, edits: Sequence[Edit], *, as_json: bool) -> tuple[Document, list[Edit]]:
    """The document after those edits that apply, and these: from the last to the first, so that locations
    stay true. One inside another is left to the next pass; what leaves no document is not made."""
    paths: dict[Path, Edit] = {tuple(edit.key.split(".")): edit for edit in edits}
    order = sorted((path for path in paths if path in document.keys), key=document.keys.__getitem__)
    lines, text, before = Lines(document.text), document.text, len(document.text)
    names: set[Path] = set()
    written: list[Edit] = []
    for path in reversed(order):
        edit, name = paths[path], (*path[:-1], str(paths[path].value))
        if path not in document.spans or document.spans[path][1] > before or name in names:
            continue
        changed = _apply(document, edit, text, lines, as_json=as_json)
        if changed is not None:
            text, before = changed, lines.offset(document.keys[path])
            written.append(edit)
            names |= {name} if edit.kind == "rename" else set()
    try:
        parse = functools.partial(parse_json, strict=False) if as_json else parse_yaml
        return (parse(text, document.path) if written else document), written
    except FileInputError:
        if len(written) < 2:
            return document, []  # its location is written in a way that this cannot change
    half = len(written) // 2
    document, first = _changed(document, written[:half], as_json=as_json)
    document, second = _changed(document, written[half:], as_json=as_json)
    return document, first + second


def _apply(document: Document, edit: Edit, text: str, lines: Lines, *, as_json: bool) -> str | None:
    """The text after one edit; ``None`` where it cannot be made. ``text``: the document's, in which only what
    comes later was changed."""
    path: Path = tuple(edit.key.split("."))
    start = lines.offset(document.keys[path])
    if edit.kind == "rename":
        name = (_STRING if as_json else _YAML_KEY).match(text, start)
        if name is None or (*path[:-1], str(edit.value)) in document.keys:
            return None
        return text[:start] + (json.dumps(edit.value) if as_json else str(edit.value)) + text[name.end() :]
    value_start, value_end = document.spans[path]
    if as_json:
        if edit.kind == "set":
            return text[:value_start] + json.dumps(edit.value) + text[value_end:]
        # JSON text without the member at `start:end`, its comma, and its line when it stood alone there
        end = value_end
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
    start = lines.offset(document.values[path])
    old = _YAML_SCALAR.match(text, start)
    if edit.kind != "set" or old is None:
        return None  # a YAML block is not taken out: its extent is a matter of indentation
    scalar = f"'{edit.value}'" if isinstance(edit.value, str) else json.dumps(edit.value)
    return text[:start] + scalar + text[old.end() :]


def _without_trailing_commas(document: Document) -> tuple[str, int]:
    lines, text = Lines(document.text), document.text
    commas = sorted(lines.offset(problem.location) for problem in document.problems if problem.rule == _COMMA)
    parts = zip([0, *(at + 1 for at in commas)], [*commas, len(text)], strict=True)
    return "".join(text[start:end] for start, end in parts), len(commas)
