"""What does not go together in trainers' files: rows of ``trainer_conflicts.json``, and when one holds."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_TERM = re.compile(r"(!?)([\w.|]+)(?:([=<>~])(.*)|(\?))?")


class Conflict(NamedTuple):
    """One conflict.

    Attributes:
        when: terms with `` & `` between, all of which hold: ``key`` is on, ``!key`` is off or not given,
            ``key?`` is given, ``key=a|b`` is one of these, ``key>1`` and ``key<1``, ``key~text`` contains it;
            ``!`` turns each round. ``a|b`` is any of these keys.
        what: what is wrong; ends "TITLE refuses it".
        fix: what to write instead.
        source: file and line.
    """

    when: str
    what: str
    fix: str
    source: str

    def holds(self, value: Mapping[str, Any]) -> str:
        """The key that it points at where it holds; empty where not."""
        terms = [_TERM.fullmatch(term) for term in self.when.split(" & ")]
        if not all(term is not None and _holds(term, value) for term in terms):
            return ""
        names = [name for term in terms if term is not None for name in term[2].split("|")]
        return next((name for name in names if _get(value, name) is not None), names[0])


def _get(value: object, name: str) -> Any:
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _holds(term: re.Match[str], value: Mapping[str, Any]) -> bool:
    turned, names, operator, operand, is_given = term.groups()
    given = [_get(value, name) for name in names.split("|")]
    return bool(turned) != any(_is(one, "?" if is_given else operator, operand) for one in given)


def _is(found: object, operator: str | None, operand: str | None) -> bool:
    if operator is None:
        return bool(found)
    if operator == "?" or operand is None:
        return found is not None
    if operator == "=":
        return str(found).lower() in operand.split("|")
    if operator == "~":
        return any(word in str(found).lower() for word in operand.split("|")) and found is not None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return False
    return found > float(operand) if operator == ">" else found < float(operand)


@functools.cache
def _table() -> Mapping[str, tuple[Conflict, ...]]:
    rows = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: tuple(Conflict(**row) for row in table) for name, table in rows.items()}


def conflicts(trainer: str, value: Mapping[str, Any]) -> Iterator[tuple[Conflict, str]]:
    """Conflicts of a trainer's file, each with the key that it points at."""
    for conflict in _table()[trainer]:
        if key := conflict.holds(value):
            yield conflict, key
