"""Refusals of what a trainer's file says, in the words of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zerokit.errors import InputError
from zerokit.fields import first

if TYPE_CHECKING:
    from zerokit.trainer_files.reading import TrainerFile


@contextmanager
def said_by_key(file: TrainerFile | None, typed: Mapping[str, Any]) -> Iterator[None]:
    """Words a refusal of a value that the file gives, and nobody typed, as the file's.

    Raises:
        InputError: as it was raised, with the file's key in place of the argument.
    """
    try:
        yield
    except InputError as error:
        name = first(error.marked) or ""
        if file is not None and name in file.keys and not typed.get(name):
            error.reword(f"{file.path}: {error.marked.replace(f'⟨{name}⟩', file.keys[name])}")
        raise
