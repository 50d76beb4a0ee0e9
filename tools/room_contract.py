"""import-linter's contract for the rooms of the package: what each may import, and nothing else.

A row of ``rooms`` in pyproject.toml is ``ROOM -> NAME…``: a package or module below the root package, and
what its files may import besides the standard library and each other. ``ROOM => NAME…`` holds for all that
is imported on the way, too. A name is a room, a module below the root package, or another distribution's
top-level package; a room does not stand for the rooms inside it, which have rows of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


@dataclass(frozen=True)
class Room:
    """One row of the contract."""

    name: str
    may_import: frozenset[str]
    on_the_way: bool

    @classmethod
    def read(cls, row: str) -> Room:
        """A row as it stands in pyproject.toml.

        Raises:
            ValueError: it has no arrow.
        """
        for arrow in ("->", "=>"):
            name, found, names = row.partition(arrow)
            if found:
                return cls(name.strip(), frozenset(names.split()), arrow == "=>")
        raise ValueError(f"{row}: write ROOM -> NAME…")


class RoomContract(Contract):
    """Every module is in a room, and imports only what its room may."""

    type_name = "rooms"

    root = fields.StringField()
    rooms = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect what is imported against a row, and what has no row."""
        root = str(self.root)
        rooms = {room.name: room for room in map(Room.read, self.rooms)}  # type: ignore[call-overload]
        problems = [
            f"{name}: there is no such room" for name in rooms if f"{root}.{name}" not in graph.modules
        ]
        used: dict[str, set[str]] = {}
        for module in sorted(graph.modules):
            if not module.startswith(f"{root}."):
                continue
            room = _room_of(module, root, rooms)
            if room is None:
                problems.append(f"{module} is in no room: give it a row")
                continue
            imported = (
                graph.find_upstream_modules(module)
                if room.on_the_way
                else graph.find_modules_directly_imported_by(module)
            )
            strange, known = _sorted_out(imported, room, root, rooms)
            problems += [f"{module} imports {name}" for name in strange]
            used.setdefault(room.name, set()).update(known)
        problems += [
            f"{name} imports no {idle}: take it out of the row"
            for name, room in sorted(rooms.items())
            for idle in sorted(room.may_import - used.get(name, set()))
        ]
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line for each import."""
        for problem in check.metadata["problems"]:
            output.print_error(problem)


def _room_of(module: str, root: str, rooms: dict[str, Room]) -> Room | None:
    """The innermost room that a module is in."""
    name = module.removeprefix(f"{root}.")
    while name and name not in rooms:
        name = name.rpartition(".")[0]
    return rooms.get(name)


def _sorted_out(
    imported: Iterable[str], room: Room, root: str, rooms: dict[str, Room]
) -> tuple[list[str], set[str]]:
    """What of ``imported`` a room may not import, and the names of its row that allow the rest."""
    strangers, used = [], set()
    for module in sorted(imported):
        if module.partition(".")[0] in sys.stdlib_module_names:
            continue
        home = _room_of(module, root, rooms) if module.startswith(f"{root}.") else None
        if home == room:
            continue
        name = module.removeprefix(f"{root}.")
        allowing = {
            each
            for each in room.may_import
            if (home is not None and each == home.name)
            or (each not in rooms and (name == each or name.startswith(f"{each}.")))
        }
        used |= allowing
        if not allowing:
            strangers.append(module)
    return strangers, used
