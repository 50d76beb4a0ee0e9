"""Make PyTorch's C++ believe in an accelerator ``cuda`` on a machine that has none.

``backward()`` of tensors on ``cuda`` needs two C++ objects that a CPU build, or a CUDA build without a
GPU, does not have: a device guard (``torch/csrc/autograd/input_buffer.cpp``,
``at::getAccelerator``) and hooks that say that there is a device
(``aten/src/ATen/detail/CUDAHooksInterface.h``). Both are reached through tables of function pointers
that libtorch exports, and both tables are filled here with pointers that libtorch already has:

* guard: an object whose functions all return 0 goes into the registry's slot of CUDA;
  ``_ensureCUDADeviceGuardSet`` sees "0 devices" and puts PyTorch's own ``NoOpDeviceGuardImpl`` there
  (``torch/csrc/Module.cpp``). Its ``getDevice`` answers what ``torch.cuda.current_device()`` does, since C++
  takes ``cuda`` without a number for that (``x.to("cuda")``).
* hooks: the hooks object gets a copy of its own virtual table, in which ``hasCUDA``, ``isBuilt``,
  ``isAvailable``, ``hasPrimaryContext`` and ``deviceCount`` answer 1 and ``init`` does nothing. Which
  slot is whose follows from the order of ``virtual`` in the headers that every wheel ships.

No compiler is needed. It is undefined behaviour by the letter of C++, so it is done in a child process
only, and nothing runs before :func:`self_test` has passed.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._triton import has_triton_package

OLDEST_TORCH = (2, 10)
NEWEST_TORCH = (2, 15)
"""Versions that rehearsals were tried with (``tests/rehearsal/test_stand_ins.py``). With another one the
result says so."""

_CUDA, _META = 1, 14  # c10::DeviceType
_DEVICE_TYPES = 24  # slots that are read of the registry; it has at least as many
_ANSWER_ONE = ("hasCUDA", "isBuilt", "isAvailable", "hasPrimaryContext", "deviceCount")
_DO_NOTHING = ("init",)
_VIRTUAL = re.compile(r"^\s*virtual\s+([^;{=]*)", re.MULTILINE)
_NAME = re.compile(r"(~?\w+)\s*\(")

_referenced: list[Any] = []  # what C++ points to must outlive it


class UnknownLayout(Exception):
    """This build of PyTorch cannot be made to believe in a GPU; the message says what failed."""


def install() -> None:
    """Fill both tables. Call it once, before any tensor on ``cuda`` is made. Raises UnknownLayout: another
    system than Linux, or a PyTorch whose tables are not as expected."""
    if sys.platform != "linux":
        raise UnknownLayout(f"a rehearsal needs Linux, this is {platform.system()}")
    try:
        root = Path(torch.__file__).parent
        headers = root / "include"
        c10 = ctypes.CDLL(str(root / "lib" / "libc10.so"))
        cpu = ctypes.CDLL(str(root / "lib" / "libtorch_cpu.so"))
        registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
        answers_one, does_nothing = _guard_functions(registry, headers)
        _fill_guard(registry)
        _tell_current_device(registry, headers)
        _fill_hooks(cpu, headers, answers_one, does_nothing)
        accelerator = str(torch._C._get_accelerator())
        if accelerator != "cuda":
            raise UnknownLayout(f"PyTorch {torch.__version__} still names {accelerator} as its accelerator")
    except UnknownLayout:
        raise
    except (AttributeError, OSError, ValueError) as error:
        raise UnknownLayout(
            f"PyTorch {torch.__version__} cannot be made to believe in a GPU: its device tables are "
            f"elsewhere ({error}); {tried_versions()}"
        ) from error


def version_note() -> str | None:
    """What to say of a PyTorch outside the tried versions; None inside."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return None if OLDEST_TORCH <= version <= NEWEST_TORCH else tried_versions()


def tried_versions() -> str:
    """This PyTorch's version, beside those that rehearsals were tried with."""
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST_TORCH, NEWEST_TORCH))
    return f"rehearsals were tried with PyTorch {oldest} to {newest}, this is {torch.__version__}"


def _virtual_slots(header: Path) -> list[str]:
    """The virtual functions of a header's first class, in order; a destructor takes two slots."""
    slots: list[str] = []
    for declaration in _VIRTUAL.findall(header.read_text()):
        named = _NAME.search(declaration)
        if named is None:
            raise UnknownLayout(f"{header.name}: cannot read {declaration.strip()!r}")
        name = named.group(1)
        slots += [name, name + " (deleting)"] if name.startswith("~") else [name]
    return slots


def _guard_functions(registry: Any, headers: Path) -> tuple[int, int]:
    """Native functions of PyTorch's own guard for meta tensors: one that returns 1, one that does nothing."""
    slots = _virtual_slots(headers / "c10/core/impl/DeviceGuardImplInterface.h")
    meta = registry[_META]
    pointers = ctypes.POINTER(ctypes.c_void_p)
    table = ctypes.cast(ctypes.cast(meta, pointers)[0], pointers)
    count = table[slots.index("deviceCount")]
    if ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(count)(meta) != 1:
        raise UnknownLayout("the guard of meta tensors does not count one device")
    return count, table[slots.index("setDevice")]


def _fill_guard(registry: Any) -> None:
    zero = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda guard: 0)
    address = ctypes.cast(zero, ctypes.c_void_p).value
    table = (ctypes.c_void_p * 64)(*([address] * 64))
    placeholder = (ctypes.c_void_p * 2)(ctypes.addressof(table))
    _referenced.extend((zero, table, placeholder))
    if not registry[_CUDA]:
        registry[_CUDA] = ctypes.addressof(placeholder)
    torch._C._ensureCUDADeviceGuardSet()
    if registry[_CUDA] == ctypes.addressof(placeholder):
        raise UnknownLayout("PyTorch did not put its own guard into the registry")


def _tell_current_device(registry: Any, headers: Path) -> None:
    """A ``c10::Device`` is a byte for its type and one for its index, returned in one register."""
    slots = _virtual_slots(headers / "c10/core/impl/DeviceGuardImplInterface.h")
    guard = ctypes.cast(registry[_CUDA], ctypes.POINTER(ctypes.c_void_p))
    answer = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(
        lambda this: _CUDA | torch.cuda.current_device() << 8
    )
    _referenced.append(answer)
    address = ctypes.cast(answer, ctypes.c_void_p).value
    assert address is not None
    _replace(guard, slots, {"getDevice": address})


def _fill_hooks(library: Any, headers: Path, answers_one: int, does_nothing: int) -> None:
    base = _virtual_slots(headers / "ATen/detail/AcceleratorHooksInterface.h")
    own_slots = _virtual_slots(headers / "ATen/detail/CUDAHooksInterface.h")
    slots = base + [name for name in own_slots if not name.startswith("~") and name not in base]
    get_hooks = library._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    functions = dict.fromkeys(_ANSWER_ONE, answers_one) | dict.fromkeys(_DO_NOTHING, does_nothing)
    _replace(hooks, slots, functions)


def _replace(target: Any, slots: list[str], functions: dict[str, int]) -> None:
    """Give an object a copy of its virtual table with other functions in some slots."""
    before = 2  # offset-to-top and type_info stand before the first function (Itanium C++ ABI 2.5.2)
    word = ctypes.sizeof(ctypes.c_void_p)
    old = ctypes.cast(target[0] - before * word, ctypes.POINTER(ctypes.c_void_p))
    size = len(slots) + before
    new = (ctypes.c_void_p * size)(*[old[index] for index in range(size)])
    _referenced.append(new)
    for name, function in functions.items():
        new[before + slots.index(name)] = function
    target[0] = ctypes.addressof(new) + before * word


def self_test() -> None:
    """A product and its gradient on ``cuda``, through autograd's own device thread.

    Call it with the dispatch mode active.

    Raises:
        UnknownLayout: says which step failed.
    """
    try:
        left = torch.empty(64, 32, device="cuda", requires_grad=True)
        right = torch.empty(32, 16, device="cuda", dtype=torch.float32)
        loss = (left @ right).relu().sum()
        loss.backward()
        gradient = left.grad
    except Exception as error:
        raise UnknownLayout(
            f"the self-test fails: {type(error).__name__}: {error}; {tried_versions()}"
        ) from error
    if gradient is None or gradient.shape != left.shape or gradient.device.type != "cuda":
        raise UnknownLayout(f"the self-test fails: no gradient on the fake GPU; {tried_versions()}")


_ASKS_PYTORCH = frozenset({"torch", "deepspeed", "zerokit"})
"""``torch.compile`` has a warning of its own; DeepSpeed asks for its inference."""


def note() -> str | None:
    """What the reader must know, where Triton is missing and loaded code asks PyTorch for it; else None.

    The stand-in is not told to PyTorch, which compiles with Triton: torchao's kernels for low precisions are
    taken by ``torch.utils._triton.has_triton``.
    """
    if has_triton_package():
        return None
    loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    packages = {name.partition(".")[0] for name, path in loaded.items() if _asks_for_triton(name, path)}
    if not packages:
        return None
    names = sorted("the script" if name == "__main__" else name for name in packages)
    return (
        f"Triton is not installed here, as it is beside PyTorch's CUDA builds: {', '.join(names)} may have "
        "run other code than on the GPU, with other memory and times (pip install triton)"
    )


@functools.cache
def _asks_for_triton(name: str, path: str | None) -> bool:
    """Whether a loaded module's source asks PyTorch."""
    package = name.partition(".")[0]
    if package in _ASKS_PYTORCH or package in sys.stdlib_module_names:
        return False
    if path is None or not path.endswith(".py"):
        return False
    try:
        return re.search(rb"\bhas_triton(_package)?\b", Path(path).read_bytes()) is not None
    except OSError:
        return False
