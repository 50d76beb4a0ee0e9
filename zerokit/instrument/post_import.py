"""Runs our functions after modules were executed, however the script comes to execute them.

A finder in front of ``sys.meta_path`` has the other finders find the module, and puts a stand-in for
its loader into the spec. Looking a module up (``importlib.util.find_spec("torch")``, as datasets,
Transformers and TRL do before anything is imported) is no import: nothing is used up by it, and a spec
that was looked up and is executed later (:class:`importlib.util.LazyLoader`) is hooked like any other.
As soon as the module begins to execute, the stand-in gives way to the module's own loader.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]
Spec = importlib.machinery.ModuleSpec


class _StandIn:
    """For a loader until its module executes: looks, compares and pickles as that loader does."""

    def __init__(self, loader: Any, hook: Hook) -> None:
        self._zerokit_loader = loader
        self._zerokit_hook = hook

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_zerokit_"):  # not there yet: copy and pickle make objects without __init__
            raise AttributeError(name)
        value = getattr(self._zerokit_loader, name)
        return self._load_module if name == "load_module" else value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        loader = self._zerokit_loader
        return _StandIn if isinstance(loader, type) else type(loader)

    def __eq__(self, other: object) -> bool:
        return bool(self._zerokit_loader == getattr(other, "_zerokit_loader", other))

    def __hash__(self) -> int:
        return hash(self._zerokit_loader)

    def __repr__(self) -> str:
        return repr(self._zerokit_loader)

    def __reduce_ex__(self, protocol: Any) -> Any:
        loader = self._zerokit_loader
        return _identity, (loader,)

    def __copy__(self) -> Any:
        return type(self)(self._zerokit_loader, self._zerokit_hook)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def _load_module(self, name: str) -> ModuleType:
        module: ModuleType = self._zerokit_loader.load_module(name)
        self._zerokit_give_way(module)
        run_hook(self._zerokit_hook, sys.modules.get(name, module))
        return module

    def _zerokit_give_way(self, module: ModuleType) -> None:
        """What the module sees of itself is as without us."""
        attributes = _attributes(module)
        spec = attributes.get("__spec__")
        if spec is not None and spec.loader is self:
            spec.loader = self._zerokit_loader
        if attributes.get("__loader__") is self:
            attributes["__loader__"] = self._zerokit_loader


class _ExecutingStandIn(_StandIn):
    """For a loader with ``exec_module``; one without keeps ``load_module`` alone, and is asked for that."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, then run the hook."""
        self._zerokit_give_way(module)
        name = str(_attributes(module)["__name__"])
        imported = sys.modules.get(name) is module  # not a second copy beside the one that is imported
        self._zerokit_loader.exec_module(module)
        run_hook(self._zerokit_hook, sys.modules.get(name, module) if imported else module)


def _identity(loader: Any) -> Any:
    return loader


def _attributes(module: ModuleType) -> dict[str, Any]:
    """A module's own attributes; asking a lazily loaded module for one would load it."""
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return attributes


def merged(*tables: Mapping[str, Hook]) -> dict[str, Hook]:
    """One hook for each module: those of all tables, in their order."""
    result: dict[str, Hook] = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        result[name] = functools.partial(_run_all, [table[name] for table in tables if name in table])
    return result


def _run_all(hooks: Sequence[Hook], module: ModuleType) -> None:
    for hook in hooks:
        hook(module)


def run_hook(hook: Hook, module: ModuleType) -> None:
    """Run a hook; one that does not fit the installed version leaves the module as it is, and says so."""
    try:
        hook(module)
    except Exception as error:
        print(f"zerokit: {module.__name__} is not measured: {error}", file=sys.stderr)


def _stand_in_for(loader: Any, hook: Hook) -> Any:
    if hasattr(loader, "exec_module"):
        return _ExecutingStandIn(loader, hook)
    return _StandIn(loader, hook) if hasattr(loader, "load_module") else None


class PostImport:
    """A meta path finder that runs a function each time a module of that name was executed."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self._hooks = dict(hooks)
        self._searched = threading.local()

    def install(self) -> None:
        """Go in front of the other finders; modules that are imported already are hooked now."""
        sys.meta_path.insert(0, self)
        for name, hook in self._hooks.items():
            module = sys.modules.get(name)
            if module is None:
                continue
            spec = _attributes(module).get("__spec__")
            if spec is not None and _waits_to_execute(module, spec):
                spec.loader = _stand_in_for(spec.loader, hook)
            else:
                run_hook(hook, module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Spec | None:
        """The spec that the finders after this one give, its loader followed by the hook.

        A finder after this one may look the name up anew, through all finders (wrapt's, on which tracers
        stand, does). That search passes this one by: the hook would run once for each search.
        """
        hook = self._hooks.get(fullname)
        searched: set[str] = self._searched.__dict__.setdefault("names", set())
        if hook is None or fullname in searched:
            return None
        searched.add(fullname)
        try:
            spec = self._find_behind(fullname, path, target)
        finally:
            searched.discard(fullname)
        if spec is None or spec.loader is None:  # missing, or a namespace
            return None
        stand_in = _stand_in_for(spec.loader, hook)
        if stand_in is None:
            return None
        spec.loader = stand_in
        return spec

    def _find_behind(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> Spec | None:
        passed = False
        for finder in list(sys.meta_path):
            if not passed:
                passed = finder is self
                continue
            find = getattr(finder, "find_spec", None)
            if find is None:  # Python 3.10 and 3.11 ask it for find_module: the module may be its own
                return None
            spec: Spec | None = find(fullname, path, target)
            if spec is not None:
                return spec
        return None


def _waits_to_execute(module: ModuleType, spec: Any) -> bool:
    """Whether a module in ``sys.modules`` is one of :class:`importlib.util.LazyLoader`, not loaded yet."""
    lazy = type(module).__name__ == "_LazyModule" and type(module).__module__ == "importlib.util"
    return lazy and hasattr(spec.loader, "exec_module")
