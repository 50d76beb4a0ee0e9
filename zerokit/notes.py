"""Notes: sentences for the user that say what they are, so that nobody has to know them by their words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from zerokit.fields import Say, as_options, plain

Topic = Literal["assumed", "given", "default", "hardware", "minor", "must", "advice"]
"""What a note is about: ``given`` confirms what was given or is so whenever it can be; ``default`` stands for
an option that was not given; ``hardware`` is of this machine or its GPUs; ``minor`` is so of every plan of an
installation; ``must`` would cost the run's result if nobody read it."""


class Note(str):
    """A sentence, with the arguments that it names marked (:mod:`zerokit.fields`). It is a text wherever one
    is wanted; what is made of that text is no note.

    Attributes:
        id: the same in every release, whatever the words.
        level: ``warning``: likely to be read too late.
        short: what it comes to where there is no room for it; empty: it is left out there.
        command: what to type about it; empty: nothing, or it is not known yet (:meth:`with_command`).
    """

    __slots__ = ("command", "id", "level", "short", "template", "topic")
    id: str
    topic: Topic
    level: Literal["note", "warning"]
    short: str
    command: str
    template: str

    def __new__(
        cls, id: str, text: str, topic: Topic = "assumed", level: Literal["note", "warning"] = "note",
        short: str = "", command: str = "", template: str = "",
    ) -> Note:  # fmt: skip
        """Make one. ``template``: the text with ``{command}`` in it, where that is not known yet."""
        note = super().__new__(cls, text)
        note.id, note.topic, note.level, note.short = id, topic, level, short
        note.command, note.template = command, template
        return note

    def __getnewargs__(self) -> tuple[str, ...]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return self.id, str(self), self.topic, self.level, self.short, self.command, self.template

    def with_text(self, text: str) -> Note:
        """The same note in other words."""
        return Note(self.id, text, self.topic, self.level, self.short, self.command)

    def with_command(self, command: str) -> Note:
        """The note with the command in its text, where it has a place for one."""
        if not self.template:
            return self
        text = self.template.format(command=f"`{command}`")
        return Note(self.id, text, self.topic, self.level, self.short, command)

    def to_dict(self) -> dict[str, str]:
        """An entry of ``notes``, with the options of the command line."""
        return {"id": self.id, "level": self.level, "topic": self.topic, "text": as_options(self)}


def warning(id: str, text: str) -> Note:
    """Make a warning, which is shown where notes are not wanted, too."""
    return Note(id, text, level="warning")


def with_level(text: str) -> str:
    """A line as it is shown: the word stands before what is a warning."""
    return f"warning: {text}" if isinstance(text, Note) and text.level == "warning" else text


def plainly(say: Say) -> Say:
    """Passes each line on with the names that arguments have in Python."""
    return lambda line: say(plain(with_level(line)))


def notes_of(id: str, texts: Iterable[str], topic: Topic = "assumed") -> tuple[Note, ...]:
    """Sentences on one matter as notes with one id; those that are notes already keep theirs."""
    return tuple(text if isinstance(text, Note) else Note(id, text, topic) for text in texts)


def with_id(notes: Iterable[Note], *ids: str) -> tuple[Note, ...]:
    """Those of the notes that have one of these ids."""
    return tuple(note for note in notes if note.id in ids)


def on_topic(notes: Iterable[Note], topic: Topic) -> tuple[Note, ...]:
    """Those of the notes that are on a topic."""
    return tuple(note for note in notes if note.topic == topic)
