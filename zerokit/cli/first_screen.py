"""What a plan assumed and what is worth knowing, in the lines that its answer leaves on the first screen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from zerokit.cli.prose import bullets, heading, paragraph
from zerokit.notes import Note
from zerokit.planner import answer

SCREEN = 24
_TO_TYPE = re.compile(r"⟨|`")
"""Marks an option or a command."""
_CUT = " …"
_END_OF_CLAUSE = re.compile(r"[;:,] | \(")
_SAY_MUCH = 5
"""Words from which on the beginning of a note says something without the rest."""
_CLOSING = "--explain adds memory and time in detail, other plans, and every file"


def filled(
    lines: Sequence[str],
    shorter: Sequence[str],
    assumptions: Sequence[Note],
    advice: Sequence[Note],
    following: Sequence[str],
) -> list[str]:
    """The answer (``lines``, or ``shorter`` without details, where those would fill the screen), as many
    notes as there is room for, and what to run next."""
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
    assumptions: Sequence[Note], advice: Sequence[Note], room: int
) -> tuple[Sequence[str], Sequence[str]]:
    """What was assumed and is worth knowing, and the line that closes the answer, in ``room`` lines.

    Where they are too long for the screen, minor notes are left out and some cut after a clause, then advice
    is left to ``--explain``, and then the assumptions, from the first on: warnings stand last.
    """
    worthy = answer.worth_a_look(assumptions)
    weighty = [note for note in worthy if note.topic != "minor"]
    # why a stage that was not chosen would be worse belongs to the details
    first = [note for note in advice if note.id != "stage-3-takes-more"][:1]

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
        (both(worthy, first), closing),
        (within(weighty, first, closed), closing),
        (within(weighty, (), closed), closing),
        *((within(weighty[at:], (), room), []) for at in range(len(weighty))),
        ([], paragraph("--explain adds what was assumed, memory and time in detail, and other plans")),
    ]
    return next((choice for choice in choices if _height([*choice[0], *choice[1]]) <= room), choices[-1])


def _height(lines: Iterable[str]) -> int:
    """Lines on the terminal: a heading brings an empty one."""
    return sum(line.count("\n") + 1 for line in lines)


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
