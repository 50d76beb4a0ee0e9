"""Installed versions, read from package metadata: nothing heavy is imported."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from zerokit import __version__
from zerokit.doctor.finding import DoctorFinding, Surroundings, blocker, note, ok, warning
from zerokit.errors import INSTALL_TRAINING
from zerokit.machine.supported import SUPPORTED
from zerokit.machine.versions import installed
from zerokit.units import counted

# the versions that zerokit's rules and memory model were read from and checked against
READ_FROM = {
    "torch": "2.13.0",
    **{supported_package.package: supported_package.newest for supported_package in SUPPORTED},
    "transformers": "5.23.0",
}
NEEDED = ("torch", "deepspeed")
# oldest driver that runs programs of each CUDA major version: NVIDIA's CUDA toolkit release notes,
# table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility"
OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """How the installed torch was built: with which CUDA version, such as ``12.8``, or which of ROCm."""

    version: str
    cuda: str | None
    hip: str | None


def package_file(distribution: str, path: str) -> Path | None:
    """A file of an installed distribution, without importing it."""
    try:
        located = Path(str(importlib.metadata.distribution(distribution).locate_file(path)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return located if located.is_file() else None


def torch_build() -> TorchBuild | None:
    """What torch was built for, from its ``version.py``; ``None``: torch is not installed."""
    version = installed("torch")
    if version is None:
        return None
    path = package_file("torch", "torch/version.py")
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    return TorchBuild(version=version, cuda=_assigned(text, "cuda"), hip=_assigned(text, "hip"))


def _assigned(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([0-9][^'\"]*)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def findings(around: Surroundings) -> list[DoctorFinding]:
    """Python, the packages a run needs, and whether torch, driver and GPUs belong together."""
    result = [
        ok(
            "software.python",
            f"Python {platform.python_version()} at {sys.executable}; zerokit {__version__}",
        )
    ]
    result += [_package(name) for name in READ_FROM]
    build = torch_build()
    if build is not None:
        result.append(_torch_fits(build, around))
    return result


def _package(name: str) -> DoctorFinding:
    check = f"software.{name}"
    version, read_from = installed(name), READ_FROM[name]
    if version is None:
        if name in NEEDED:
            return blocker(
                check, f"{name} is not installed; planning works, running does not", INSTALL_TRAINING
            )
        return note(check, f"{name} is not installed; scripts that import it will not run", INSTALL_TRAINING)
    supported = next(
        (supported_package for supported_package in SUPPORTED if supported_package.package == name), None
    )
    if supported is not None and (problem := supported.problem(version)) is not None:
        reason, _, command = problem.rpartition(": ")
        return blocker(check, reason, command)
    release = version.partition("+")[0]
    if release == read_from:
        return ok(check, f"{name} {version}, the version that zerokit was checked against")
    reason = f"{name} {version}; zerokit was checked against {read_from}"
    if name == "deepspeed" and release.split(".")[:2] != read_from.split(".")[:2]:
        return warning(
            check,
            f"{reason}: keys, defaults and memory use may differ",
            f"pip install 'deepspeed=={read_from}', or compare a short run with `zerokit report`",
        )
    return note(check, reason)


def _torch_fits(build: TorchBuild, around: Surroundings) -> DoctorFinding:
    check, detected = "software.torch-build", around.detected
    if not detected.gpus:
        kind = f"CUDA {build.cuda}" if build.cuda else f"ROCm {build.hip}" if build.hip else "CPU only"
        return ok(check, f"torch is built for: {kind}; no GPU is visible here")
    if detected.vendor == "amd":
        if build.hip:
            return ok(check, f"torch is built for ROCm {build.hip}")
        return blocker(
            check,
            "torch is not built for ROCm: it will see none of the AMD GPUs",
            "install the ROCm build of torch from pytorch.org",
        )
    if build.cuda is None:
        return blocker(
            check,
            f"torch {build.version} is built without CUDA: it will not see "
            f"{counted(len(detected.gpus), 'GPU')} of this machine",
            "install a CUDA build of torch (pytorch.org), or run with --device cpu",
        )
    return _driver_runs(check, build.cuda, detected.driver_version)


def _driver_runs(check: str, cuda: str, driver: str | None) -> DoctorFinding:
    major = int(cuda.split(".")[0])
    oldest = OLDEST_DRIVER.get(major)
    have = tuple(int(part) for part in re.findall(r"\d+", driver or "")[:3])
    if oldest is None or not have:
        return note(
            check, f"torch is built for CUDA {cuda}, the driver is {driver or 'unknown'}: not compared"
        )
    if have < oldest:
        oldest_text = ".".join(f"{part:02d}" if index else str(part) for index, part in enumerate(oldest))
        able = [major for major, oldest in OLDEST_DRIVER.items() if have >= oldest]
        return blocker(
            check,
            f"driver {driver} is too old for torch's CUDA {cuda}, which needs {oldest_text} or newer",
            f"update the driver, or install torch for CUDA {f'{max(able)}.x' if able else '10 or older'}",
        )
    return ok(check, f"torch is built for CUDA {cuda}; driver {driver} runs it")
