"""What a plan assumed and what is worth knowing, in the lines that its answer leaves on the first screen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from zerokit.cli.prose import bullets, heading, paragraph
from zerokit.planner import answer

SCREEN = 24
_NOT_GIVEN = re.compile(r"(--[a-z-]+|⟨[a-z_]+⟩) not given")
_VALUE = re.compile(r"\d[\d,.]*(?<![,.])(?: (?:GB/s|GiB)(?: per node)?)?|no limit")
"""What is taken for an option that was not given: the first quantity of its note."""
_TO_TYPE = re.compile(r"(?<!\w)--[a-z]|`[^`]+`")
_CUT = " …"
_END_OF_CLAUSE = re.compile(r"[;:,] | \(")
_SAY_MUCH = 5
"""Words from which on the beginning of a note says something without the rest."""
_CLOSING = "--explain adds memory and time in detail, other plans, and every file"


def filled(
    lines: Sequence[str],
    shorter: Sequence[str],
    assumptions: Sequence[str],
    advice: Sequence[str],
    following: Sequence[str],
) -> list[str]:
    """The answer, as many notes as there is room for, and what to run next.

    Args:
        lines: the answer.
        shorter: the same without details, for a screen that it would fill.
    """
    screen: list[str] = []
    for answered in (lines, shorter):
        notes, closing = _notes(assumptions, advice, SCREEN - _height([*answered, *following]))
        screen = [*answered, *notes, *following, *closing]
        if _height(screen) > SCREEN:
            screen.remove("")
        if _height(screen) <= SCREEN:
            return screen
    dense = [line.lstrip("\n") for line in shorter if line]
    if _height([*dense, *following, *closing]) > SCREEN:
        following = [line.lstrip("\n") for line in following]
    return [*dense, *following, *closing]


def listed(
    title: str, notes: Sequence[str], shown: Sequence[str], whole: Collection[str] | None = None
) -> list[str]:
    """Those of the notes that are shown, below a title that says how many are not.

    ``whole``: those that are not cut; None: all.
    """
    if not shown:
        return []
    hidden = len(notes) - sum(note in notes for note in shown)
    lines = [bullets([note]) if whole is None or note in whole else _cut(note) for note in shown]
    missing = [f"{hidden} more"] if hidden else []
    if any(_CUT in line for part in lines for line in part):
        missing += ["all in full" if hidden else "in full"]
    more = f" ({', '.join(missing)}: --explain)" if missing else ""
    return [heading(title + more), *(line for part in lines for line in part)]


def _notes(
    assumptions: Sequence[str], advice: Sequence[str], room: int
) -> tuple[Sequence[str], Sequence[str]]:
    """What was assumed and is worth knowing, and the line that closes the answer, in ``room`` lines.

    Where they are too long for the screen, what was not given is one note, then minor notes are left out and
    some cut after a clause, then advice is left to ``--explain``, and then the assumptions from the second
    on: the first has the values that were not given, and warnings stand last.
    """
    marked = answer.worth_a_look(assumptions)
    short = _without_defaults(marked)
    weighty = [note for note in short if not answer.is_minor(note)]
    first = _first_advice(advice)

    def both(notes: Sequence[str], more: Sequence[str], whole: Collection[str] | None = None) -> list[str]:
        return [*listed("Assumed", assumptions, notes, whole), *listed("Worth knowing", advice, more, whole)]

    def within(notes: Sequence[str], more: Sequence[str], most: int) -> list[str]:
        """As many in full as fit, first those that a cut shortens least; the others cut after a clause."""
        whole: list[str] = []
        for note in sorted(
            (*reversed(notes), *more), key=lambda note: len(bullets([note])) - len(_cut(note))
        ):
            if _height(both(notes, more, [*whole, note])) <= most:
                whole.append(note)
        return both(notes, more, whole)

    closing = paragraph(_CLOSING)
    closed = room - len(closing)
    choices = [
        (both(marked, first), closing),
        (both(short, first), closing),
        (within(weighty, first, closed), closing),
        (within(weighty, (), closed), closing),
        *((within([*weighty[:1], *weighty[at:]], (), room), []) for at in range(1, len(weighty) + 1)),
        ([], paragraph("--explain adds what was assumed, memory and time in detail, and other plans")),
    ]
    return next((choice for choice in choices if _height([*choice[0], *choice[1]]) <= room), choices[-1])


def _without_defaults(notes: Sequence[str]) -> tuple[str, ...]:
    """The notes, those on options that were not given as one, in front: ``defaults: --seq-len 2048, …``."""
    by_option = {match.group(1): note for note in notes if (match := _NOT_GIVEN.search(note))}
    if len(by_option) < 2:
        return tuple(notes)
    rest = tuple(note for note in notes if not _NOT_GIVEN.search(note))
    values = (
        f"{option} {value[0]}" if (value := _VALUE.search(note)) else option
        for option, note in by_option.items()
    )
    return (f"defaults: {', '.join(values)}", *rest)


def _height(lines: Iterable[str]) -> int:
    """Lines on the terminal: a heading brings an empty one."""
    return sum(line.count("\n") + 1 for line in lines)


def _first_advice(advice: Sequence[str]) -> Sequence[str]:
    """The weightiest remark. Why a stage that was not chosen would be worse belongs to the details."""
    return [line for line in advice if not line.startswith("ZeRO-3 would take")][:1]


def _cut(note: str) -> list[str]:
    """The note cut after a clause, in as few lines as that takes: with its last clause where that says what
    to type and takes no more of them, and as many others as fit."""
    said, _, remedy = note.rpartition("; ")
    endings = [(note, _CUT)]
    if said and _TO_TYPE.search(remedy):
        endings.insert(0, (said, f"{_CUT}; {remedy}"))
    shortened = [bullets([head + end]) for text, end in endings for head in reversed(_heads(text))]
    return min([*shortened, bullets([note])], key=len)


def _heads(text: str) -> list[str]:
    """What a text says up to the end of each clause but the last, where that says something by itself."""
    heads = [text[: end.start()] for end in _END_OF_CLAUSE.finditer(text)]
    return [head for head in heads if head.count("(") == head.count(")") and len(head.split()) >= _SAY_MUCH]
