"""Messages for people: as wide as the terminal, whole lines in a pipe, commands as they are typed here."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence

PREFIX = "zerokit: "
COMMANDS = ("plan", "estimate", "check", "size", "emit", "convert", "launch", "weights", "rehearse", "tune",
            "report", "watch", "gpus", "models", "recipes", "doctor", "help", "explain")  # fmt: skip
"""In the order of the help."""
_NARROWEST = 40
_DEFAULT = 80  # a terminal that does not tell its width
_ITEM = re.compile(r"(?P<indent>\s*)(?P<mark>(?:- )?)")
_QUOTED = re.compile(r"`[^`\n]+`")
_WHOLE = re.compile(r"`[^`\n]+`|\bpip install(?:(?: '[^']*')+|[^`,;)\n]*)")
_JOINED = "\x00"  # a space that no line ends at
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")  # of a shell
_PLAIN = re.compile(r"[\w./~-]{1,120}")
_NAMES = "|".join(COMMANDS)
_AT_THE_END = re.compile(
    rf".*: (?=(?:zerokit (?:{_NAMES})|pip install|rm) )|  (?=--[a-z])"  # greedy: the last one
)
_TO_TYPE = re.compile(rf"(?<![\w./-])zerokit(?= (?:{_NAMES}|--[a-z]+)\b)")


OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What a terminal obeys, what turns the direction of text or is not seen, and what is no character."""
_COMMAND_OF_CI = re.compile(r"^([ \t]*):(?=:)|##(?=\[)", re.MULTILINE)  # GitHub Actions, Azure Pipelines
_LONGEST_SHOWN = 2000


def shown(text: str) -> str:
    """Foreign text (a file's name, a value out of a file) for one line: nothing in it is obeyed by a
    terminal, a CI system or an XML reader, and it is not endless.

    >>> print(shown("a\\x1b[2J\\n::error::b"))
    a\\x1b[2J\\n::error::b
    """
    text = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return OBEYED.sub(_escape, text).replace("##[", r"#\x23[")


def visible(text: str) -> str:
    """Show as :func:`shown` does, of several lines with their ends and tabs, whole."""
    return OBEYED.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text)


def printable(text: str, *, styles: bool = False) -> str:
    """Several lines for a terminal, where parts may be foreign: as :func:`visible`; no line of it is a
    command of a CI system, and what was typed with a line end in it is on one line. ``styles``: bold and
    colours remain, which move and hide nothing."""
    for word in _typed_escapes:
        text = text.replace(word, shown(word))
    kept = _STYLE.split(text) if styles else [text]  # what is between styles, and every second one a style
    kept[::2] = map(visible, kept[::2])
    text = "".join(kept)
    return _COMMAND_OF_CI.sub(lambda match: rf"{match[1]}\x3a" if match[1] is not None else r"#\x23", text)


_STYLE = re.compile("(\x1b\\[(?:[0-2]|3[0-7])m)")
"""Bold, dim, a colour and none of them, as click writes them."""
_typed_escapes: list[str] = []


def remember_typed(words: Iterable[str]) -> None:
    """Keep the parts of words that were typed (paths, values) which a terminal would obey: they come back in
    messages, and :func:`printable` cannot tell their line ends from those of a message."""
    parts = {part for word in words for part in re.split("[/=]", word) if "\n" in part}
    _typed_escapes[:] = sorted(parts, key=len, reverse=True)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte of a file's name that is not UTF-8
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(match[0])
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def quoted(word: str) -> str:
    """A word as a shell reads it; as bash does where it holds what a terminal would obey: ``$'\\x1b'``."""
    if OBEYED.search(word) is None:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{OBEYED.sub(_escape, escaped)}'"


def program() -> str:
    """``zerokit``, or what ZEROKIT_COMMAND says it is called: ``./launch.sh`` where that was typed."""
    command = os.environ.get("ZEROKIT_COMMAND", "")
    return command if _PLAIN.fullmatch(command) else "zerokit"


def typed(text: str) -> str:
    """``text`` with the commands in it as the user types them: ``./launch.sh plan`` in a checkout. Everything
    else writes ``zerokit plan``: files, JSON and pages are read on other machines too."""
    return _TO_TYPE.sub(lambda _: program(), text)


def width_of(descriptor: int = 2) -> int | None:
    """Columns to write messages in: COLUMNS, or those of the terminal; None where it is none. ``descriptor``:
    the stream's file descriptor; 2 is standard error."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(_NARROWEST, int(columns))
    try:
        if not os.isatty(descriptor):
            return None
        return max(_NARROWEST, os.get_terminal_size(descriptor).columns or _DEFAULT)
    except OSError:
        return None


def wrapped(text: str, width: int | None) -> str:
    """``text`` with commands as typed here, in lines of at most ``width`` columns; None leaves them whole.

    Lines go on indented below what they continue. Words are not broken (paths, addresses). A command in
    backquotes, or after the last colon, can be pasted: it is unbroken, or continued with backslashes, as are
    options that stand alone.

    >>> print(wrapped("there is no plan; make one with `zerokit plan`", 40))
    there is no plan; make one with
      `zerokit plan`
    """
    if width is None:
        return typed(text)
    return "\n".join(line for paragraph in text.split("\n") for line in _lines(paragraph, width))


def listed(before: str, items: Sequence[str], after: str) -> str:
    """One item in a sentence, several each on a line of its own.

    >>> print(listed("they differ", ["a 1, not 2", "b 3, not 4"], "change them"))
    they differ:
    - a 1, not 2
    - b 3, not 4
    change them
    """
    if len(items) == 1:
        return f"{before}: {items[0]}; {after}"
    return "\n".join((f"{before}:", *(f"- {item}" for item in items), after))


def message(text: str, width: int | None) -> str:
    """What zerokit says, behind its name."""
    return wrapped(PREFIX + text, width)


def _lines(paragraph: str, width: int) -> list[str]:
    if len(typed(paragraph)) <= width:
        return [typed(paragraph)]
    start = _ITEM.match(paragraph)
    first = start["indent"] if start is not None else ""
    # what stands before the command that ends a paragraph, and the command; empty where none does
    found = _AT_THE_END.match(paragraph)
    command = paragraph[found.end() :] if found is not None else ""
    words = _WORD.findall(command)
    is_whole = bool(words) and " ".join(words) == command and not any(word[-1] in ",;.)" for word in words)
    before, command = (paragraph[: -len(command)].rstrip(), command) if is_whole else (paragraph, "")
    if not before:
        return command_lines(command, width)
    lines = [] if before == first else _of_prose(before, width, first)
    return [*lines, *(first + line for line in command_lines(command, width - len(first)))]


def _of_prose(paragraph: str, width: int, first: str) -> list[str]:
    """Lines in which a command in backquotes that is longer than a line is continued with backslashes."""
    later, lines, end = first + "  ", [first], len(first)
    for quoted in _QUOTED.finditer(paragraph, end):
        if len(later + typed(quoted[0])) <= width:
            continue
        lines = _continued(lines, paragraph[end : quoted.start()].rstrip(), width, later)
        command = command_lines(quoted[0], width - len(first))
        lines += [first + line for line in command]
        end = quoted.end()
    return _continued(lines, paragraph[end:], width, later)


def _continued(lines: list[str], text: str, width: int, later: str) -> list[str]:
    """The lines, with more text from the end of the last one on."""
    joined = _WHOLE.sub(lambda match: match[0].replace(" ", _JOINED), typed(text))
    more = textwrap.wrap(
        joined, width, initial_indent=lines[-1], subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False, expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
    return [*lines[:-1], *(line.replace(_JOINED, " ") for line in more)] if more else lines


def command_lines(command: str, width: int) -> list[str]:
    """A command as it is typed here, indented, in lines that a shell reads as one, cut before its options.

    >>> print(*command_lines("zerokit plan --params 8b --gpus 8 --seq-len 4096", 40), sep="\\n")
      zerokit plan --params 8b --gpus 8 \\
        --seq-len 4096
    """
    lines: list[str] = []
    # options with their values, as they are quoted
    command = typed(command)
    parts: list[str] = []
    for word in _WORD.findall(command):
        if word.startswith("--") or not parts:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    for part in parts:
        if not lines:
            lines.append(f"  {part}")
        elif len(f"{lines[-1]} {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {part}")
    return lines


def github_annotation(level: str, text: str, **properties: object) -> str:
    """A workflow command that GitHub shows as an annotation (other CI systems read the same lines).
    ``level``: error, warning or notice. ``**properties``: file, line, col, title; None: not known."""

    def escaped(part: str) -> str:
        return part.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    pairs = ",".join(
        f"{name}={escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
        if value is not None
    )
    return f"::{level} {pairs}::{escaped(text)}"
