"""Values: classes whose objects never change.

``@frozen_dataclass`` is ``@dataclass(frozen=True, slots=True, kw_only=True)`` made in a third of the time.
Python before 3.13 compiles six methods apart for each such class; a command that lives for a quarter of a
second would spend a sixth of it on that. Here ``__init__`` is compiled, and the other methods are shared.
``dataclasses.fields``, ``replace`` and ``asdict`` work as with any dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """For type checkers alone; typing has it from Python 3.11 on."""
        return lambda decorator: decorator


T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, Field))
def frozen_dataclass(cls: type[T]) -> type[T]:
    """A frozen, slotted, keyword-only dataclass.

    Methods that the class defines itself stay. Pseudo-fields (``InitVar``) are not supported.
    """
    own_names = set(vars(cls))
    value_class: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    attributes = fields(value_class)
    methods: dict[str, Any] = {
        "__init__": _initialiser(value_class, attributes),
        "__repr__": _represent,
        "__getstate__": _state,
        "__setstate__": _restore,
        **_comparing([one.name for one in attributes if one.compare]),
    }
    for name, method in methods.items():
        if name not in own_names:
            setattr(value_class, name, method)
    value_class.__setattr__ = _refuse_to_set
    value_class.__delattr__ = _refuse_to_delete
    return value_class  # type: ignore[no-any-return]


def _initialiser(cls: type, attributes: Iterable[Field[Any]]) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    arguments: list[str] = []
    lines: list[str] = []
    for one in attributes:
        name, value = one.name, one.name
        if one.default_factory is not MISSING:
            names[f"_make_{name}"] = one.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}" if one.init else f"_make_{name}()"
        elif one.default is not MISSING:
            names[f"_default_{name}"] = one.default
            value = name if one.init else f"_default_{name}"
        elif not one.init:
            continue
        if one.init and one.default_factory is not MISSING:
            arguments.append(f"{name}=_missing")
        elif one.init:
            arguments.append(name if one.default is MISSING else f"{name}=_default_{name}")
        lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    head = ", ".join(("self", "*", *arguments) if arguments else ("self",))
    exec(f"def __init__({head}):\n " + "\n ".join(lines or ("pass",)), names)  # noqa: S102  as dataclasses does
    initialiser: Callable[..., None] = names["__init__"]
    initialiser.__qualname__ = f"{cls.__qualname__}.__init__"
    initialiser.__module__ = cls.__module__
    return initialiser


def _comparing(names: list[str]) -> dict[str, Any]:
    """``__eq__`` and ``__hash__`` by these attributes."""
    if len(names) > 1:
        key: Callable[[Any], Any] = attrgetter(*names)
    else:

        def key(self: Any) -> Any:
            return tuple(getattr(self, name) for name in names)

    def equal(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(key(self))

    return {"__eq__": equal, "__hash__": hash_of}


def _represent(self: Any) -> str:
    shown_fields = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown_fields)})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: Iterable[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
