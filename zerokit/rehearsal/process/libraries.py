"""Libraries that are imported once for many scripts' processes, and what they read of the environment then.

What a script imports first is imported as in a process of its own. What it imports later may depend on
variables that it has set by then: so it is noted what is read (:class:`VariablesRead`), and what the script
has set when it begins to train (:class:`Watch`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from zerokit.rehearsal.process.guesses import is_library

_ENVIRONMENT: Any = type(os.environ)


class _Name(str):
    """A variable's name, handed out where all are gone through: of most of them only that is looked at."""

    __slots__ = ("_prefixes",)
    _prefixes: set[str]

    def startswith(self, prefix: Any, *where: Any) -> bool:
        self._prefixes.update((prefix,) if isinstance(prefix, str) else prefix)
        return super().startswith(prefix, *where)


class VariablesRead:
    """What was read of ``os.environ``.

    Attributes:
        values: of each variable that was asked for, None where there was none.
        prefixes: of variables that were looked for among all.
        made: variables that libraries have set.
    """

    def __init__(self) -> None:
        self.values: dict[str, set[str | None]] = {}
        self.prefixes: set[str] = set()
        self.made: set[str] = set()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """In this block it is noted."""
        get, go_through, set_ = (
            _ENVIRONMENT.__getitem__, _ENVIRONMENT.__iter__, _ENVIRONMENT.__setitem__
        )  # fmt: skip

        def noting(environment: Any, name: str) -> str:
            value = None
            try:
                value = get(environment, name)
            finally:
                if type(name) is not _Name:
                    self.values.setdefault(name, set()).add(value)
            return str(value)

        def names(environment: Any) -> Iterator[str]:
            for name in go_through(environment):
                handed_out = _Name(name)
                handed_out._prefixes = self.prefixes
                yield handed_out

        def making(environment: Any, name: str, value: str) -> None:
            self.made.add(name)
            set_(environment, name, value)

        _ENVIRONMENT.__getitem__, _ENVIRONMENT.__iter__, _ENVIRONMENT.__setitem__ = noting, names, making
        try:
            yield
        finally:
            _ENVIRONMENT.__getitem__, _ENVIRONMENT.__iter__, _ENVIRONMENT.__setitem__ = get, go_through, set_

    def differs(self, name: str, value: str | None, before: str | None) -> bool:
        """Whether who read would have read something else with this value of a variable."""
        if name in self.values:
            return self.values[name] != {value}
        return value != before and name.startswith(tuple(self.prefixes))


def import_all(names: Sequence[str]) -> None:
    """Import modules (``module``) and take names from them (``module:name``); what fails will fail for the
    script, too."""
    for name in names:
        module, _, attribute = name.partition(":")
        with contextlib.suppress(Exception, SystemExit):
            imported = importlib.import_module(module)
            if attribute:
                getattr(imported, attribute)


def _is_in_import_of_library() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_library(frame.f_code.co_filename):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Watch:
    """Over the beginning of a script, until it trains: which libraries it imports, and what it sets.

    Args:
        reads: what was read when those were imported that may come after what it sets.
        assumed: the variables that were set for that.
        learns: whether nobody has told yet what the script imports.
    """

    def __init__(self, reads: VariablesRead, assumed: dict[str, str], *, learns: bool) -> None:
        self._reads, self._assumed = reads, assumed
        self._before = dict(os.environ)
        self._values: dict[str, set[str]] = {}
        self._set = _ENVIRONMENT.__setitem__
        self._learns = learns  # looking through all modules, this process gets their pages for itself
        before = _installed() if learns else ()
        self._functions = {name: _functions(attributes) for name, attributes in before}

        def set_(environment: Any, name: str, value: str) -> None:
            if not _is_in_import_of_library():  # which sets it again wherever it is imported
                self._values.setdefault(name, set()).add(value)
            self._set(environment, name, value)

        _ENVIRONMENT.__setitem__ = set_

    def end(self) -> dict[str, Any]:
        """What a process needs to import the same for the next one: ``imports``, in their order, and the
        variables that were ``set``; or why this one has imported something else: ``stale``.

        There are no imports where functions of some modules were replaced, which others have imported since.
        """
        _ENVIRONMENT.__setitem__ = self._set
        for name in {*self._values, *self._assumed}:
            before = self._before.get(name)
            values = self._values.get(name, {os.environ.get(name)})
            if any(self._reads.differs(name, value, before) for value in values):
                return {"stale": f"{name} was read when libraries were imported"}
        kept = {name: values for name, values in self._values.items() if values == {os.environ.get(name)}}
        made = {name: min(values) for name, values in kept.items() if values != {self._before.get(name)}}
        return {"imports": self._imports() if self._learns else [], "set": made}

    def _imports(self) -> list[str]:
        replaced: dict[str, Any] = {}
        for name, before in self._functions.items():
            now = _attributes(sys.modules.get(name))
            replaced |= {key: now[key] for key, value in before.items() if now.get(key, value) is not value}
        installed = dict(_installed())
        if any(getattr(value, "__module__", None) not in installed for value in replaced.values()):
            return []  # the script's own functions
        for name in installed.keys() - self._functions.keys():
            if any(installed[name].get(key, None) is value for key, value in replaced.items()):
                return []
        return list(installed)


def _installed() -> Iterator[tuple[str, dict[str, Any]]]:
    """Modules that were imported of libraries, and what they hold."""
    for name, module in list(sys.modules.items()):
        attributes = _attributes(module)
        path = getattr(attributes.get("__spec__"), "origin", None)
        if name != "__main__" and path is not None and is_library(path):
            yield name, attributes


def _attributes(module: Any) -> dict[str, Any]:
    """Without executing one that waits for its first use."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return attributes


def _functions(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if isinstance(value, FunctionType | type)}
