"""``frozen_dataclass`` beside the standard library's, on the same declarations."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from zerokit.values import frozen_dataclass

standard = dataclass(frozen=True, slots=True, kw_only=True)


def point(decorator: Callable[[type], type]) -> Any:
    """A class with every kind of field."""

    class Point:
        """A point."""

        kinds: ClassVar[int] = 3
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)
        note: str = field(default="", repr=False, compare=False)
        double: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.x)

        @property
        def total(self) -> int:
            return self.x + self.y

    return decorator(Point)


@frozen_dataclass
class Base:
    """A class of the module, as pickle needs it."""

    a: int
    b: tuple[int, ...] = ()


@frozen_dataclass
class Derived(Base):
    """With a field more."""

    c: str = "c"


@frozen_dataclass
class One:
    """With one field, and a hash of its own."""

    a: float

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize("decorator", [standard, frozen_dataclass])
def test_what_a_dataclass_does(decorator: Callable[[type], type]) -> None:
    point_class = point(decorator)
    one, same, other = point_class(x=1, note="n"), point_class(x=1), point_class(x=1, y=3)
    assert one == same and one != other and one != (1, 2)
    assert repr(one).endswith("Point(x=1, y=2, tags=[], double=2)")
    assert one.tags is not same.tags
    assert [item.name for item in fields(one)] == ["x", "y", "tags", "note", "double"]
    assert asdict(one) == {"x": 1, "y": 2, "tags": [], "note": "n", "double": 2}
    assert replace(one, x=5).double == 10 and replace(one, x=5).note == "n"
    assert one.total == 3 and point_class.kinds == 3
    assert not hasattr(one, "__dict__")
    for broken in ({}, {"x": 1, "z": 2}, {"x": 1, "double": 4}):
        with pytest.raises(TypeError):
            point_class(**broken)
    with pytest.raises(TypeError):
        point_class(1)
    assert str(inspect.signature(point_class)) == str(inspect.signature(point(standard)))
    several = [point_class(x=number) for number in range(12)]  # its method is compiled when it is used often
    assert [item.double for item in several] == [2 * number for number in range(12)]
    with pytest.raises(FrozenInstanceError):
        one.x = 2
    with pytest.raises(FrozenInstanceError):
        del one.x
    with pytest.raises(TypeError, match="unhashable"):  # by its list
        hash(one)


def test_copies_subclasses_and_methods_of_its_own() -> None:
    derived = Derived(a=1, b=(2,))
    for again in (copy.copy(derived), copy.deepcopy(derived), pickle.loads(pickle.dumps(derived))):  # noqa: S301
        assert again == derived and hash(again) == hash(derived)
    assert Base(a=1, b=(2,)) != derived
    assert {Base(a=1), Base(a=1)} == {Base(a=1)}
    assert hash(One(a=1.0)) == 7 and One(a=1.0) == One(a=1.0) != One(a=2.0)
    assert Derived.__init__.__qualname__ == "Derived.__init__"


def test_without_slots_and_by_identity() -> None:
    @frozen_dataclass(slots=False, eq=False)
    class Cached:
        """With a value that is worked out once."""

        items: tuple[int, ...] = ()

        @cached_property
        def total(self) -> int:
            return sum(self.items)

    one = Cached(items=(1, 2))
    assert one.total == 3 and one.__dict__["total"] == 3
    assert one != Cached(items=(1, 2)) and len({one, Cached(items=(1, 2))}) == 2
    assert replace(one, items=(4,)).total == 4
    with pytest.raises(FrozenInstanceError):
        one.items = ()  # type: ignore[misc]


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match="tags: a default that can change"):

        @frozen_dataclass
        class Shared:
            """Its list would be that of all objects."""

            tags: list[int] = field(default=[])
