"""An option: a field of a class, with what it means. From the field come the option of the command line, the
argument in Python's signature, what ``help()`` says of it, and its row in the documentation.

A class that declares options annotates its fields, and says below each what it means::

    nodes: Annotated[int | None, Option("Ranks", "N", between=(1, 65536))] = None
    \"""Use the first N hosts of the hostfile.\"""

Its file evaluates annotations (no ``from __future__ import annotations``). A dataclass is a frozen request; a
``TypedDict`` holds the keywords of functions that take those of a plan as well.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_origin

from zerokit.errors import InputError
from zerokit.fields import plain
from zerokit.values import replace

Check = Callable[[object, str], object]
"""Raises :class:`InputError`, which names the value as it is told to, for a value that cannot be."""
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
_WIDTH = 110
_FIELD = re.compile(
    r'^    (?P<name>[a-z_]+): .*\n(?:(?: {8}|    [\])]).*\n)*    """(?P<text>(?:[^"]|"(?!""))+)"""$',
    re.MULTILINE,
)
"""A field of a class, on one line or several, and the text below it."""
_NEXT = re.compile(r"^\S(?!lass )|\Z", re.MULTILINE)
"""What follows the body of a class."""
_ENTRY = re.compile(r"^(?P<indent> +)\*\*options:[^\n]*\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What one argument is on the command line, and what it means.

    Attributes:
        group: its title in the help; empty: that of the output.
        metavar: what stands for its value in the help; empty: the choices of its type.
        valid: raises for a value that cannot be.
        spellings: on the command line, where they are not just its name.
        between: the least and the greatest number; None: no bound.
        multiple: given again, it holds another value.
        name: as in Python and in a recipe (``seq_len``); the command line says ``--seq-len``.
        kind: of its value, as the command line reads it.
        default: None: what is not given is decided elsewhere.
    """

    group: str = ""
    metavar: str = ""
    valid: Check | None = None
    spellings: tuple[str, ...] = ()
    between: tuple[float, float | None] | None = None
    multiple: bool = False
    default: Any = None
    name: str = ""
    kind: type = str
    annotation: Any = None
    help: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether it is a switch, on where it is given."""
        return self.kind is bool

    @property
    def option(self) -> str:
        """Option as the command line spells it."""
        return "--" + self.name.replace("_", "-")

    def checked(self, value: Any, name: str) -> Any:
        """The value, or what it stands for. Raises InputError: it cannot be; says ``name``."""
        return value if self.valid is None else self.valid(value, name)


def one_of(*choices: str) -> Check:
    """A check for one of these words."""

    def check(value: object, name: str) -> object:
        if value not in choices:
            raise InputError(f"{name}: {value!r}; use one of {', '.join(choices)}")
        return value

    return check


def flag(value: object, name: str) -> object:
    """A check for a switch. Raises InputError: it is neither true nor false."""
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected true or false, got {value!r}")
    return value


def seconds(value: Any, name: str) -> Any:
    """A check for a time that somebody may wait. Raises InputError: it is below zero, or above some eleven
    days."""
    if not 0 <= value <= 1e6:
        raise InputError(f"{name}: {value:g} must be between 0 and 1000000 seconds")
    return value


@functools.lru_cache
def options_of(declared: type) -> tuple[Option, ...]:
    """What the fields in the body of a class declare: with their names, kinds, defaults and texts."""
    found = []
    for name, text in _texts(declared).items():
        annotation = declared.__annotations__[name]
        option = next(
            (one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Option)), None
        )
        if option is not None:
            default = getattr(declared, "__dataclass_fields__", {}).get(name)
            found.append(_of_field(option, name, annotation.__origin__, text, default))
    return tuple(found)


def _texts(declared: type) -> Mapping[str, str]:
    """What stands below each field, by its name: Python itself keeps only the class's own docstring."""
    loader = sys.modules[declared.__module__].__loader__
    source = loader.get_source(declared.__module__)  # type: ignore[union-attr]
    if source is None:  # installed as bytecode alone: options without their texts
        return dict.fromkeys(declared.__annotations__, "")
    begin = source.index(f"\nclass {declared.__name__}")
    body = source[begin : _NEXT.search(source, begin + 1).start()]  # type: ignore[union-attr]
    return {match["name"]: " ".join(match["text"].split()) for match in _FIELD.finditer(body)}


def _of_field(option: Option, name: str, annotation: Any, text: str, field: Any) -> Option:
    members = get_args(annotation) if get_origin(annotation) is not Literal else ()
    kinds = [kind for kind in members or (annotation,) if kind is not type(None)]
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    kind = kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float) else str
    valid = one_of(*choices) if choices else flag if kind is bool else None
    default = option.default if field is None else field.default
    return replace(
        option, name=name, kind=kind, annotation=annotation, help=text,
        default=False if kind is bool and default is None else default,
        metavar=option.metavar or "|".join(choices), valid=option.valid or valid,
    )  # fmt: skip


def divided(declared: type[Options], options: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The values of the options that a ``TypedDict`` declares, each checked or its default; and all others.
    Raises InputError: a value that cannot be."""
    own = {}
    for option in options_of(cast(type, declared)):
        value = options.get(option.name)
        value = option.default if value is None else value
        own[option.name] = value if value is None else option.checked(value, f"⟨{option.name}⟩")
    return cast(Options, own), {name: value for name, value in options.items() if name not in own}


def check_options(options: Any, declared: type) -> None:
    """Refuse values of a request that cannot be, of those that this class declares. Raises InputError: names
    the field."""
    for option in options_of(declared):
        value = getattr(options, option.name)
        if value is not None:
            option.checked(value, f"⟨{option.name}⟩")


def takes(
    declared: Callable[P, Options],
) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Give a function the arguments that a dataclass declares: it gets them as one value of that class. Its
    docstring says what they mean where its Args have ``**options``."""

    def decorate(function: Callable[[Options], Result]) -> Callable[P, Result]:
        import inspect

        @functools.wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> Result:
            return function(declared(*args, **named))

        own_result = inspect.signature(function).return_annotation
        signature = inspect.signature(declared)
        parameters = [
            one.replace(annotation=getattr(one.annotation, "__origin__", one.annotation))
            for one in signature.parameters.values()
        ]
        called.__signature__ = signature.replace(parameters=parameters, return_annotation=own_result)  # type: ignore[attr-defined]
        del called.__wrapped__
        called.__doc__ = with_meanings(function.__doc__ or "", options_of(declared))
        return called

    return decorate


def with_meanings(
    doc: str, options: Sequence[Option], elsewhere: Mapping[str, str | None] | None = None
) -> str:
    """A docstring with a line for each option in place of its ``**options``; ``elsewhere``: what this
    function says of an option; None: it does not take it."""
    return _ENTRY.sub(
        lambda entry: "\n".join((*_meanings(options, elsewhere or {}, entry["indent"]), "")), doc
    )


def _meanings(options: Sequence[Option], elsewhere: Mapping[str, str | None], indent: str) -> Iterator[str]:
    import textwrap

    for option in options:
        text = elsewhere.get(option.name, option.help)
        if text is not None:
            yield textwrap.fill(
                f"{option.name}: {plain(text)}", _WIDTH, initial_indent=indent,
                subsequent_indent=indent + " " * 4, break_on_hyphens=False,
            )  # fmt: skip
