"""Values: classes whose objects never change.

``@frozen_dataclass`` is ``@dataclass(frozen=True, slots=True, kw_only=True)`` made in a tenth of the time.
The standard library compiles six methods for each such class and looks at each annotation; a command that
lives for a quarter of a second and imports a hundred of them would spend a fifth of it on that. Here
``__init__`` is compiled once the class is used often, the other methods are shared, and what
``dataclasses.fields``, ``replace`` and ``asdict`` read is put together when they ask for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """For type checkers alone; typing has it from Python 3.11 on."""
        return lambda decorator: decorator


T = TypeVar("T")
_FEW_USES = 8
"""Compiling an ``__init__`` takes as long as to fill so many objects without."""


class _Factory:
    """Stands for what a factory will make, in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@overload
def frozen_dataclass(cls: type[T]) -> type[T]: ...


@overload
def frozen_dataclass(*, slots: bool = True, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, Field))
def frozen_dataclass(cls: type[T] | None = None, *, slots: bool = True, eq: bool = True) -> Any:
    """A frozen, keyword-only dataclass.

    Methods that the class defines itself stay. Pseudo-fields (``InitVar``) are not supported.

    Args:
        slots: False for a class with cached properties.
        eq: False for objects that are compared by identity.
    """

    def decorate(of: type[T]) -> type[T]:
        own_names = set(vars(of))
        attributes = _attributes(of)
        value_class: Any = _with_slots(of, attributes) if slots else of
        for name in () if slots else own_names & attributes.keys():
            delattr(of, name)
        methods: dict[str, Any] = {"__init__": _LateInit(value_class, attributes), "__repr__": _represent}
        if eq:
            methods |= _comparing([name for name, one in attributes.items() if one.compare])
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
        for name, method in methods.items():
            if name not in own_names:
                setattr(value_class, name, method)
        setattr(value_class, "__match_args__", ())  # noqa: B010  a type checker refuses it
        value_class.__frozen_attributes__ = attributes
        value_class.__dataclass_fields__ = _LateFields(value_class, attributes)
        value_class.__setattr__ = _refuse_to_set
        value_class.__delattr__ = _refuse_to_delete
        return value_class  # type: ignore[no-any-return]

    return decorate if cls is None else decorate(cls)


def replace(value: T, /, **changes: Any) -> T:
    """``dataclasses.replace``, in half the time for a frozen dataclass. Raises TypeError: a field that there
    is not, or that is not an argument."""
    attributes = getattr(value, "__frozen_attributes__", None)
    if attributes is None:
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    for name, one in attributes.items():
        if one.init and name not in changes:
            changes[name] = getattr(value, name)
    return value.__class__(**changes)


def _attributes(cls: type) -> dict[str, Field[Any]]:
    """Name -> field, those of its bases first. Raises ValueError: a default that can change, and would be
    shared."""
    attributes: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        attributes |= vars(base).get("__frozen_attributes__", {})
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if annotation.startswith("ClassVar"):
            continue
        default = vars(cls).get(name, MISSING)
        one: Field[Any] = default if isinstance(default, Field) else field(default=default)
        if one.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__qualname__}.{name}: a default that can change; use default_factory")
        one.type = annotation
        attributes[name] = one
    return attributes


def _with_slots(cls: type, attributes: Mapping[str, Field[Any]]) -> type:
    """The class again, with a slot for each field that its bases have none for."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__frozen_attributes__", ())}
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in attributes and name not in ("__dict__", "__weakref__")
    }
    namespace["__slots__"] = tuple(name for name in attributes if name not in inherited)
    slotted = type(cls)(cls.__name__, cls.__bases__, namespace)
    slotted.__qualname__ = cls.__qualname__
    return slotted


class _LateInit:
    """``__init__``, compiled when it is worth it: many classes are used a few times in a short command."""

    def __init__(self, cls: type, attributes: Mapping[str, Field[Any]]) -> None:
        self._cls = cls
        self._attributes = attributes
        self._uses = 0

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        self._uses += 1
        if instance is None or self._uses > _FEW_USES:
            return self._compiled(instance, owner)
        return partial(self._fill, instance)

    def _compiled(self, instance: object, owner: type) -> Callable[..., None]:
        initialiser: Any = _initialiser(self._cls, self._attributes)
        self._cls.__init__ = initialiser  # type: ignore[misc]
        bound: Callable[..., None] = initialiser.__get__(instance, owner)
        return bound

    def _fill(self, instance: Any, /, *args: Any, **given: Any) -> None:
        """What the compiled method does; that one says what is wrong with the arguments."""
        values = dict(given)
        for name, one in self._attributes.items():
            if name in values and one.init:
                continue
            if one.default_factory is not MISSING:
                values[name] = one.default_factory()
            elif one.default is not MISSING:
                values[name] = one.default
            elif one.init:
                break
        else:
            if not args and values.keys() <= self._attributes.keys():
                for name, value in values.items():
                    object.__setattr__(instance, name, value)
                if hasattr(instance, "__post_init__"):
                    instance.__post_init__()
                return
        self._compiled(instance, type(instance))(*args, **given)


class _LateFields:
    """``__dataclass_fields__``, as the standard library makes them from the same declarations."""

    def __init__(self, cls: type, attributes: Mapping[str, Field[Any]]) -> None:
        self._cls: Any = cls
        self._attributes = attributes

    def __get__(self, instance: object, owner: type) -> dict[str, Field[Any]]:
        annotations = {name: one.type for name, one in self._attributes.items()}
        declared = {"__annotations__": annotations, "__doc__": "-", "__module__": self._cls.__module__}
        like: Any = dataclass(init=False, repr=False, eq=False, kw_only=True)(
            type("_", (), {**declared, **self._attributes})
        )
        found: dict[str, Field[Any]] = like.__dataclass_fields__
        self._cls.__dataclass_fields__ = found
        return found


def _initialiser(cls: type, attributes: Mapping[str, Field[Any]]) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": _FACTORY}
    arguments: list[str] = []
    lines: list[str] = []
    for name, one in attributes.items():
        value = name
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
    initialiser.__annotations__ = {name: one.type for name, one in attributes.items() if one.init}
    initialiser.__annotations__["return"] = None
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
    return [getattr(self, name) for name in self.__frozen_attributes__]


def _restore(self: Any, state: Iterable[Any]) -> None:
    for name, value in zip(self.__frozen_attributes__, state, strict=True):
        object.__setattr__(self, name, value)


def restored(kind: Any, value: Any) -> Any:
    """A value of a type with dataclasses in it, from what ``asdict`` and JSON made of it. A field that is
    newer than what was written has its default. Raises TypeError, AttributeError, ValueError: it is none of
    that type."""
    from types import NoneType, UnionType
    from typing import Union, get_args, get_origin, get_type_hints

    origin, of = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        restored_fields = {
            one.name: restored(hints[one.name], value[one.name]) for one in fields(kind) if one.name in value
        }
        return kind(**restored_fields)  # type: ignore[operator]
    if origin in (Union, UnionType):
        others = [one for one in of if one is not NoneType]
        return restored(others[0], value) if value is not None and len(others) == 1 else value
    if origin is tuple:
        kinds = of[:1] * len(value) if of[-1] is Ellipsis else of
        return tuple(restored(one, item) for one, item in zip(kinds, value, strict=True))
    if origin in (dict, Mapping):
        return {key: restored(of[1], item) for key, item in value.items()}
    return value
