"""A module is hooked whenever it is executed, and looking it up changes nothing (fault 24)."""

from __future__ import annotations

import copy
import importlib
import importlib.machinery
import importlib.resources
import importlib.util
import inspect
import pickle
import pkgutil
import sys
import threading
import zipfile
from types import ModuleType

import pytest

from tests.support.ranks import read_rank, run_rank, write_script
from zerokit.instrument.post_import import PostImport

SOURCE = '"""A module."""\nimport time\ntime.sleep({pause})\nclass Thing:\n    value = 1\n'


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A package with modules to hook, and what was hooked so far."""
    package = tmp_path / "hooked_package"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE.format(pause=0))
    (package / "inner.py").write_text(SOURCE.format(pause=0.05))
    (package / "data.txt").write_text("data")
    (tmp_path / "hooked_namespace").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    hooked: list[ModuleType] = []

    def install(*names: str) -> list[ModuleType]:
        PostImport(dict.fromkeys(names, hooked.append)).install()
        return hooked

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_looking_a_module_up_neither_hooks_it_nor_uses_the_hook_up(world):
    hooked = world("hooked_package", "hooked_package.inner")
    for _ in range(3):
        assert importlib.util.find_spec("hooked_package") is not None
        assert importlib.machinery.PathFinder.find_spec("hooked_package") is not None
        assert pkgutil.find_loader("hooked_package") if sys.version_info < (3, 12) else True
    assert hooked == []
    assert "hooked_package" not in sys.modules
    assert importlib.util.find_spec("hooked_package.inner") is not None  # imports its package
    assert [module.__name__ for module in hooked] == ["hooked_package"]
    import hooked_package.inner as inner

    assert hooked[1:] == [inner]
    importlib.import_module("hooked_package.inner")
    assert importlib.util.find_spec("hooked_package.inner") is inner.__spec__
    assert hooked[1:] == [inner]


def test_a_spec_that_was_looked_up_is_as_without_us(world):
    alone = importlib.util.find_spec("hooked_package")
    world("hooked_package")
    spec = importlib.util.find_spec("hooked_package")
    assert spec == alone
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert spec.loader == alone.loader
    assert hash(spec.loader) == hash(alone.loader)
    assert repr(spec.loader).startswith("<_frozen_importlib_external.SourceFileLoader object")
    assert spec.loader.get_source("hooked_package") == alone.loader.get_source("hooked_package")
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        other = pickle.loads(pickle.dumps(spec, protocol))  # noqa: S301
        assert type(other.loader) is importlib.machinery.SourceFileLoader
        assert other == alone
    assert copy.copy(spec.loader) == copy.deepcopy(spec.loader) == alone.loader
    assert not hasattr(spec.loader, "no_such_thing")


def test_an_imported_module_shows_its_own_loader(world):
    world("hooked_package")
    import hooked_package

    for loader in (hooked_package.__spec__.loader, hooked_package.__loader__):
        assert type(loader) is importlib.machinery.SourceFileLoader
    assert inspect.getsource(hooked_package.Thing) == "class Thing:\n    value = 1\n"
    assert inspect.getdoc(hooked_package) == "A module."
    assert (importlib.resources.files("hooked_package") / "data.txt").read_text() == "data"
    assert pkgutil.get_data("hooked_package", "data.txt") == b"data"
    assert [found.name for found in pkgutil.iter_modules(hooked_package.__path__)] == ["inner"]
    thing = hooked_package.Thing()
    assert type(pickle.loads(pickle.dumps(thing))) is hooked_package.Thing  # noqa: S301


def test_a_reload_is_hooked_again(world):
    hooked = world("hooked_package")
    import hooked_package

    first = hooked_package.Thing
    assert importlib.reload(hooked_package) is hooked_package
    assert hooked == [hooked_package, hooked_package]
    assert hooked_package.Thing is not first
    assert type(hooked_package.__spec__.loader) is importlib.machinery.SourceFileLoader


def test_a_module_removed_and_imported_anew_is_hooked_anew(world):
    hooked = world("hooked_package")
    first = importlib.import_module("hooked_package")
    del sys.modules["hooked_package"]
    second = importlib.import_module("hooked_package")
    assert hooked == [first, second]
    assert first is not second


def test_threads_that_import_at_once_hook_once_and_never_see_it_unhooked(world):
    observed: list[bool] = []
    hooked = world("hooked_package.inner")
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        importlib.util.find_spec("hooked_package")
        module = importlib.import_module("hooked_package.inner")
        observed.append(module in hooked)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert observed == [True] * 8
    assert len(hooked) == 1


def lazy_import(name: str) -> ModuleType:
    """The recipe of Python's documentation."""
    spec = importlib.util.find_spec(name)
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def test_a_lazily_loaded_module_is_hooked_when_it_loads(world):
    hooked = world("hooked_package")
    module = lazy_import("hooked_package")
    assert hooked == []
    assert module.Thing.value == 1
    assert hooked == [module]
    assert type(module.__spec__.loader) is importlib.machinery.SourceFileLoader


def test_a_lazy_module_that_waits_when_the_hooks_come(world):
    module = lazy_import("hooked_package")
    hooked = world("hooked_package")
    assert hooked == []
    assert module.Thing.value == 1
    assert hooked == [module]


def test_modules_that_are_imported_already_are_hooked_at_once(world):
    module = importlib.import_module("hooked_package")
    assert world("hooked_package", "hooked_package.inner") == [module]


def test_a_second_copy_is_hooked_by_itself(world):
    hooked = world("hooked_package")
    spec = importlib.util.find_spec("hooked_package")
    first = importlib.import_module("hooked_package")
    copy_ = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy_)
    assert [id(module) for module in hooked] == [id(first), id(copy_)]


def test_a_module_that_puts_another_in_its_place(world, tmp_path):
    (tmp_path / "hooked_package" / "inner.py").write_text(
        "import sys, types\nclass Lazy(types.ModuleType):\n    Thing = 2\n"
        "sys.modules[__name__] = Lazy(__name__)\n"
    )
    hooked = world("hooked_package.inner")
    import hooked_package.inner as inner

    assert hooked == [inner]
    assert inner.Thing == 2


def test_namespaces_and_missing_modules_are_found_as_without_us(world):
    hooked = world("hooked_namespace", "no_such_package", "hooked_package.no_such_module")
    assert importlib.util.find_spec("hooked_namespace").submodule_search_locations is not None
    import hooked_namespace

    assert hooked_namespace.__file__ is None
    assert importlib.util.find_spec("no_such_package") is None
    assert importlib.util.find_spec("hooked_package.no_such_module") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package")
    assert [module.__name__ for module in hooked] in ([], ["hooked_namespace"])


def test_a_module_in_a_zip_file(world, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("zipped_module.py", SOURCE.format(pause=0))
    monkeypatch.syspath_prepend(str(tmp_path / "code.zip"))
    hooked = world("zipped_module")
    assert importlib.util.find_spec("zipped_module") is not None
    module = importlib.import_module("zipped_module")
    assert hooked == [module]
    assert inspect.getsource(module.Thing).startswith("class Thing")


class Old:
    """A loader of the days before ``exec_module``."""

    def load_module(self, name: str) -> ModuleType:
        module = sys.modules.setdefault(name, ModuleType(name))
        module.__loader__ = self
        module.answer = 42
        return module


class OldFinder:
    @staticmethod
    def find_spec(name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, Old()) if name == "old_style" else None


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
@pytest.mark.skipif(sys.version_info >= (3, 15), reason="Python 3.15 has no load_module")
def test_a_loader_that_knows_only_load_module(world):
    hooked = world("old_style")
    sys.meta_path.append(OldFinder)
    assert importlib.util.find_spec("old_style") is not None
    assert hooked == []
    module = importlib.import_module("old_style")
    assert module.answer == 42
    assert hooked == [module]
    assert type(module.__loader__) is Old


class Chaining:
    """A finder such as wrapt's and wandb's: it asks all finders once more and wraps the loader found."""

    def __init__(self, seen: list[str]) -> None:
        self.seen, self.busy = seen, False

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if self.busy or name != "hooked_package":
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        inner, observed = spec.loader, self.seen

        class Chained(importlib.abc.Loader):
            def create_module(self, spec: object) -> object:
                return inner.create_module(spec)

            def exec_module(self, module: ModuleType) -> None:
                inner.exec_module(module)
                observed.append(module.__name__)

        spec.loader = Chained()
        return spec


@pytest.mark.parametrize("order", ["in front of ours", "behind ours"])
def test_another_hook_and_ours_run_once_each(world, order):
    observed: list[str] = []
    if order == "behind ours":  # a sitecustomize installed it before our bootstrap ran
        sys.meta_path.insert(0, Chaining(observed))
    hooked = world("hooked_package")
    if order == "in front of ours":
        sys.meta_path.insert(0, Chaining(observed))
    module = importlib.import_module("hooked_package")
    assert (hooked, observed) == ([module], ["hooked_package"])


def test_a_patched_exec_module_of_a_looked_up_spec_is_called_once(world):
    hooked = world("hooked_package")
    spec = importlib.util.find_spec("hooked_package")
    calls: list[str] = []
    original = spec.loader.exec_module
    spec.loader.exec_module = lambda module: (calls.append(module.__name__), original(module))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert calls == ["hooked_package"]
    assert [id(entry) for entry in hooked] == [id(module)]


def test_a_hook_that_fails_leaves_the_module_imported(world, capsys):
    PostImport({"hooked_package": lambda module: module.no_such_attribute}).install()
    assert importlib.import_module("hooked_package").Thing.value == 1
    assert "hooked_package is not measured" in capsys.readouterr().err


FAKE_TORCH = """
    import types
    class _C:
        peak = 0
        now = 0
        @classmethod
        def _cuda_memoryStats(cls, device):
            return {"allocated_bytes": {"all": {"current": cls.now, "peak": cls.peak}},
                    "reserved_bytes": {"all": {"current": cls.now, "peak": cls.peak}},
                    "allocation": {"all": {"allocated": 1}}}
        @classmethod
        def _cuda_resetPeakMemoryStats(cls, device):
            cls.peak = cls.now
    def allocate(size):
        _C.now += size
        _C.peak = max(_C.peak, _C.now)
    cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
"""
LOOKS_UP = """
    import importlib.util, sys
    assert importlib.util.find_spec("torch") is not None      # as datasets, trl and transformers do
    assert importlib.util.find_spec("torch") is not None
    assert "torch" not in sys.modules
    import torch
    torch.allocate(7 << 20)
    print(type(torch.__spec__.loader).__name__)
"""


def test_a_script_that_looks_torch_up_first_keeps_its_gpu_figures(tmp_path, monkeypatch):
    """All GPU figures of TRL's own scripts were lost: ``datasets`` looks torch up before it is imported."""
    package = tmp_path / "torch"
    package.mkdir()
    write_script(package, FAKE_TORCH, "__init__.py")
    script = write_script(tmp_path, LOOKS_UP)
    code, out, err = run_rank(tmp_path, "--", script, device="cuda")
    assert (code, out) == (0, "SourceFileLoader\n"), err
    assert read_rank(tmp_path).last("end")["peak_allocated_bytes"] == 7 << 20
