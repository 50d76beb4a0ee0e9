"""Which DeepSpeed operators would be compiled at the first run, and whether they can be.

DeepSpeed compiles an operator when it is first used, unless it was built at installation
(``deepspeed/ops/op_builder/builder.py``, ``OpBuilder.load``); the result is kept under
``TORCH_EXTENSIONS_DIR``.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerokit.doctor.finding import DoctorFinding, Surroundings, note, ok, warning
from zerokit.doctor.software import TorchBuild, package_file, torch_build
from zerokit.launcher.locks import stale_locks
from zerokit.machine.detect import ask
from zerokit.machine.versions import installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One DeepSpeed operator: when a run loads it, which runs may (``on`` ``gpu``, ``cpu`` or both), whether
    it needs the CUDA toolkit on GPU runs (its builder is a ``CUDAOpBuilder``) or libaio, and what to do
    without it."""

    name: str
    used_for: str
    on: tuple[str, ...]
    nvcc: bool = False
    libaio: bool = False
    without: str = ""


OPERATORS = (
    Operator(
        name="fused_adam", used_for="Adam on the GPU", on=("gpu",), nvcc=True,
        without='use "torch_adam": true in the optimizer\'s params',
    ),
    Operator(
        name="cpu_adam", used_for="optimizer offload to the CPU", on=("gpu", "cpu"),
        without="plan without --offload-optimizer, or with \"torch_adam\": true",
    ),
    Operator(
        name="async_io", used_for="offload to NVMe", on=("gpu",), nvcc=True, libaio=True,
        without="plan without NVMe offload",
    ),
    Operator(
        name="deepspeed_shm_comm", used_for="communication between CPU ranks", on=("cpu",),
        without="`zerokit launch` does without it",
    ),
)  # fmt: skip
# CUDA versions that DeepSpeed accepts for one another: builder.py, cuda_minor_mismatch_ok
_MINORS_ALIKE = (11, 12)


def findings(around: Surroundings) -> list[DoctorFinding]:
    """Compiler, ninja, CUDA toolkit, and each operator that a run here may load."""
    build = torch_build()
    if build is None or installed("deepspeed") is None:
        return []
    compiler = _compiler(around)
    ninja = _ninja(around)
    toolkit, toolkit_finding = _toolkit(around, build)
    result = [toolkit_finding] if toolkit_finding else []
    missing = [name for name, there in (("a C++ compiler", compiler), ("ninja", ninja)) if there is None]
    tools = ", ".join(str(tool_path) for tool_path in (compiler, ninja) if tool_path)
    if not missing:
        result.append(ok("build.tools", f"operators can be compiled: {tools}"))
    else:
        result.append(
            note(
                "build.tools",
                f"operators cannot be compiled here: {' and '.join(missing)} missing",
                "install g++ and `pip install ninja`, or use a DeepSpeed with its operators prebuilt",
            )
        )
    result += [
        warning("build.lock", lock.description, lock.command)
        for lock in stale_locks(around.environment, around.home)
    ]
    device = "gpu" if around.detected.gpus else "cpu"
    prebuilt = _prebuilt()
    for operator in OPERATORS:
        if device in operator.on:
            result.append(_operator(operator, around, build, prebuilt, missing, toolkit))
    return result


def _operator(
    operator: Operator,
    around: Surroundings,
    build: TorchBuild,
    prebuilt: frozenset[str],
    missing: list[str],
    toolkit: str | None,
) -> DoctorFinding:
    check = f"build.{operator.name}"
    purpose = f"{operator.name} ({operator.used_for})"
    if operator.name in prebuilt:
        return ok(check, f"{purpose}: built with DeepSpeed")
    cached = _cache(around, build) / operator.name / f"{operator.name}.so"
    if cached.is_file():
        return ok(check, f"{purpose}: compiled already, {cached}")
    lacking = list(missing)
    if operator.nvcc and around.detected.vendor == "nvidia" and toolkit is not None:
        lacking.append(toolkit)
    headers = (around.root / folder / "libaio.h" for folder in ("usr/include", "usr/local/include"))
    if operator.libaio and not any(header.is_file() for header in headers):
        lacking.append("libaio headers (libaio-dev, or libaio-devel)")
    if lacking:
        return warning(
            check,
            f"{purpose}: not built, and cannot be: {', '.join(lacking)}",
            f"install what is missing, or {operator.without}",
        )
    return note(check, f"{purpose}: will be compiled at the first run that uses it (about a minute)")


def _compiler(around: Surroundings) -> str | None:
    path = around.environment.get("PATH")
    names = (around.environment.get("CXX", ""), "c++", "g++", "clang++")
    return next((compiler for name in names if name and (compiler := shutil.which(name, path=path))), None)


def _ninja(around: Surroundings) -> str | None:
    ninja = shutil.which("ninja", path=around.environment.get("PATH"))
    # torch runs `ninja` from the PATH; the package puts it beside python, which may not be on it
    sibling = Path(sys.executable).with_name("ninja")
    return ninja or (str(sibling) if sibling.is_file() else None)


def _toolkit(around: Surroundings, build: TorchBuild) -> tuple[str | None, DoctorFinding | None]:
    """What keeps the CUDA toolkit from compiling, if anything; and the finding about it."""
    check = "build.cuda-toolkit"
    if around.detected.vendor != "nvidia" or build.cuda is None:
        return None, None
    nvcc = _nvcc(around)
    fix = f"install the CUDA {build.cuda} toolkit and set CUDA_HOME"
    if nvcc is None:
        home = around.environment.get("CUDA_HOME") or around.environment.get("CUDA_PATH")
        looked = f"no bin/nvcc in CUDA_HOME={home}" if home else "no nvcc on the PATH or in /usr/local/cuda"
        return "the CUDA toolkit (nvcc)", note(check, f"no CUDA toolkit: {looked}", fix)
    answer = ask([str(nvcc), "--version"], {**around.environment, "PATH": str(nvcc.parent)})
    match = re.search(r"release (\d+)\.(\d+)", answer.text or "")
    if match is None:
        return "a working nvcc", warning(check, f"{nvcc} does not tell its version: {answer.problem}", fix)
    have, want = f"{match[1]}.{match[2]}", ".".join(build.cuda.split(".")[:2])
    alike = have.split(".")[0] == want.split(".")[0] and int(match[1]) in _MINORS_ALIKE
    if have == want or alike:
        return None, ok(check, f"{nvcc} is CUDA {have}; torch is built for {want}")
    if around.environment.get("DS_SKIP_CUDA_CHECK") == "1":
        return None, note(check, f"CUDA {have} and torch's {want} differ; DS_SKIP_CUDA_CHECK=1 lets it pass")
    lacking = f"a CUDA {want} toolkit (there is {have})"
    return lacking, warning(
        check, f"{nvcc} is CUDA {have}, torch is built for {want}: DeepSpeed refuses", fix
    )


def _nvcc(around: Surroundings) -> Path | None:
    """As torch looks for it (``torch.utils.cpp_extension._find_cuda_home``)."""
    home = around.environment.get("CUDA_HOME") or around.environment.get("CUDA_PATH")
    if home:
        nvcc = Path(home) / "bin/nvcc"
        return nvcc if nvcc.is_file() else None
    on_path = shutil.which("nvcc", path=around.environment.get("PATH"))
    if on_path:
        return Path(on_path)
    usual = around.root / "usr/local/cuda/bin/nvcc"
    return usual if usual.is_file() else None


def _prebuilt() -> frozenset[str]:
    """Operators that were built when DeepSpeed was installed, from its own record."""
    path = package_file("deepspeed", "deepspeed/git_version_info_installed.py")
    if path is None:
        return frozenset()
    with suppress(OSError, SyntaxError, ValueError, AttributeError):
        for node in ast.parse(path.read_text(encoding="utf-8", errors="replace")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "installed_ops":
                values = ast.literal_eval(node.value)
                return frozenset(name for name, built in values.items() if built is True)
    return frozenset()


def _cache(around: Surroundings, build: TorchBuild) -> Path:
    """Where torch keeps compiled extensions (``torch.utils.cpp_extension._get_build_directory``)."""
    folder = around.environment.get("TORCH_EXTENSIONS_DIR")
    if folder:
        return Path(folder)
    kinds = (("rocm", build.hip), ("cu", build.cuda))
    kind = next((name + version.replace(".", "") for name, version in kinds if version), "cpu")
    base = Path(around.environment.get("XDG_CACHE_HOME") or around.home / ".cache")
    return base / "torch_extensions" / f"py{sys.version_info.major}{sys.version_info.minor}_{kind}"
