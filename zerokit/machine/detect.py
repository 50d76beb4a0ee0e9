"""What this machine has: GPUs as the driver's tools list them and variables leave them; host memory, cores.

Asks nvidia-smi, rocm-smi or amd-smi; imports no torch (that alone takes seconds, and a machine
that plans may have none). A tool that is missing, fails or hangs is a reason, not an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.catalog import gpus as gpu_catalog
from zerokit.domain.hardware import Gpu
from zerokit.machine.host import HostFacts, detect_host
from zerokit.units import MIB
from zerokit.values import frozen_dataclass

if TYPE_CHECKING:
    import subprocess


@frozen_dataclass
class FoundGpu:
    """One GPU as its driver lists and counts it, in PCI bus order; bytes of its memory, in all and taken by
    any process when looked at, where the driver says it."""

    index: int
    uuid: str
    name: str
    driver_vram_bytes: int | None
    used_bytes: int | None = None


def visible(
    gpus: Sequence[FoundGpu], environment: Mapping[str, str], variables: Sequence[str]
) -> tuple[tuple[FoundGpu, ...], str]:
    """Those that the environment leaves visible, in its order, and a remark that says so."""
    selected = tuple(gpus)
    remarks = []
    for variable in variables:
        value = environment.get(variable)
        if value is None:
            continue
        if "MIG-" in value:
            return (), f", but {variable} names MIG slices, whose size it does not tell: give ⟨vram⟩ SIZE"
        selected, _ = chosen(selected, value)
        remarks.append(f"{variable}={value} leaves {len(selected)}")
    return selected, "".join(f", {remark}" for remark in remarks)


def chosen(gpus: Sequence[FoundGpu], value: str) -> tuple[tuple[FoundGpu, ...], str]:
    """The GPUs that one variable's value names, and what is wrong with it (empty: nothing).

    As CUDA reads it: indexes or (shortened) UUIDs; the list ends at the first entry that names no GPU,
    or several; a GPU named twice hides all; an empty value or -1 hides all.
    """
    named: list[FoundGpu] = []
    for part in (part.strip() for part in value.split(",")):
        if part.isdecimal():
            # an index counts among what an earlier variable left
            fits = [gpus[int(part)]] if int(part) < len(gpus) else []
        elif part.upper().startswith("GPU-"):
            fits = [gpu for gpu in gpus if _same_uuid(gpu.uuid, part)]
        else:
            fits = []
        if len(fits) > 1:
            return tuple(named), f"{part} fits {len(fits)} GPUs; write more of the UUID"
        if not fits:
            break
        if fits[0] in named:
            return (), f"names GPU {fits[0].index} twice; CUDA would see none"
        named += fits
    return tuple(named), ""


def _same_uuid(uuid: str, part: str) -> bool:
    # rocm-smi prints the unique id as 0x…, the variable takes GPU-…
    full = uuid.lower().removeprefix("gpu-").removeprefix("0x")
    start = part.lower().removeprefix("gpu-").removeprefix("0x")
    return bool(start) and full.startswith(start)


TIMEOUT_SECONDS = 5.0


@frozen_dataclass
class Answer:
    """What a tool printed; ``text`` is ``None`` when it gave no usable answer, ``problem`` says why."""

    text: str | None
    problem: str = ""
    missing: str = ""
    """The tool, if it is not on the PATH."""


def ask(
    argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> Answer:
    """Standard output of ``argv``; a tool that is missing, fails or hangs is a problem, not an error."""
    name = argv[0]
    program = shutil.which(name, path=environment.get("PATH", os.defpath))
    if program is None:
        return Answer(text=None, problem=f"{name} is not on the PATH", missing=name)
    import subprocess  # where there is no GPU a plan starts without it

    try:
        process = subprocess.Popen(
            [program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,  # so that what it started is ended with it
        )  # fmt: skip
    except OSError as error:
        return Answer(text=None, problem=f"{name} cannot be run: {error.strerror}")
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(text=None, problem=f"{name} did not answer within {timeout_seconds:g} s")
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        lines = (errors.decode("utf-8", "replace").strip() or text.strip()).splitlines()
        detail = f": {lines[0][:200]}" if lines else ""
        return Answer(text=None, problem=f"{name} ended with exit code {process.returncode}{detail}")
    return Answer(text=text)


def _end(process: subprocess.Popen[bytes]) -> None:
    import subprocess

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # a process stuck in the driver cannot be killed; do not wait for it
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)


_NVIDIA_FIELDS = "index,uuid,name,memory.total,memory.used,driver_version"


@frozen_dataclass
class Detected:
    """This machine: the GPUs that a process started here would see, how many more an environment variable
    hides, who listed them, or why there are none; ``nvidia`` or ``amd``, and the version of the driver."""

    gpus: tuple[FoundGpu, ...]
    hidden_gpus: int
    gpu_reason: str
    driver_version: str | None
    vendor: str | None
    host: HostFacts

    def catalog_gpu(self) -> tuple[Gpu | None, str]:
        """The catalogue's entry for the GPUs here, with their own memory size, and the reason. Of unlike GPUs
        the one with the least memory counts, because every rank must fit."""
        if not self.gpus:
            return None, self.gpu_reason
        entries = [(gpu, *_catalog_entry(gpu)) for gpu in self.gpus]
        for _, entry, reason in entries:
            if entry is None:
                return None, reason
        kinds = sorted({gpu.name for gpu in self.gpus})
        _, smallest, reason = min(entries, key=lambda item: item[1].vram_bytes if item[1] else 0)
        if len(kinds) > 1:
            reason = f"unlike GPUs ({', '.join(kinds)}): planned for the one with the least memory; {reason}"
        return smallest, reason


def detect(
    environment: Mapping[str, str] | None = None,
    *,
    root: Path = Path("/"),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Detected:
    """Look at this machine; never raises. ``environment``: PATH and the variables that hide GPUs; ``root``
    stands for ``/`` (tests lay out another); ``timeout_seconds``: per tool."""
    environment = dict(os.environ if environment is None else environment)
    listing = list_gpus(environment, root=root, timeout_seconds=timeout_seconds)
    visible_gpus, why = visible(listing.gpus, environment, VISIBILITY.get(listing.vendor or "", ()))
    return Detected(
        gpus=visible_gpus,
        hidden_gpus=len(listing.gpus) - len(visible_gpus),
        gpu_reason=listing.reason + why,
        driver_version=listing.driver_version,
        vendor=listing.vendor,
        host=detect_host(root),
    )


VISIBILITY: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Vendor -> variables that hide GPUs, each counting among what the earlier ones left."""


@frozen_dataclass
class Listing:
    """Every GPU of this machine, hidden ones too; ``reason`` says who listed them, or why there are none."""

    gpus: tuple[FoundGpu, ...]
    vendor: str | None
    driver_version: str | None
    reason: str
    missing: tuple[str, ...] = ()
    """Tools that are not on the PATH, which ``reason`` leaves out."""


def list_gpus(
    environment: Mapping[str, str], *, root: Path = Path("/"), timeout_seconds: float = TIMEOUT_SECONDS
) -> Listing:
    """Ask the drivers' tools on the PATH; never raises."""
    nvidia = _nvidia(environment, root, timeout_seconds)
    if nvidia.gpus:
        return nvidia
    amd = _amd(environment, timeout_seconds)
    if amd.gpus:
        return amd
    missing = [*nvidia.missing, *amd.missing]
    together = " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
    absent = f"{together} {'are' if len(missing) > 1 else 'is'} not on the PATH" if missing else ""
    return _none(f"no GPU found: {'; '.join(part for part in (nvidia.reason, amd.reason, absent) if part)}")


def _none(reason: str, missing: Sequence[str] = ()) -> Listing:
    return Listing(gpus=(), vendor=None, driver_version=None, reason=reason, missing=tuple(missing))


def catalogue_name(device: object, total_bytes: object) -> str | None:
    """The catalogue's name of a GPU as torch names it; None: it is none that the catalogue knows."""
    if not isinstance(device, str) or not isinstance(total_bytes, int):
        return None
    gpu, _ = gpu_catalog.for_driver(device, total_bytes)
    return None if gpu is None else gpu.name


def _catalog_entry(gpu: FoundGpu) -> tuple[Gpu | None, str]:
    if gpu.driver_vram_bytes is None:
        return None, f"the driver does not say how much memory {gpu.name} has; give ⟨gpu⟩ or ⟨vram⟩"
    entry, reason = gpu_catalog.for_driver(gpu.name, gpu.driver_vram_bytes)
    return entry, reason if entry else f"{reason}; give ⟨gpu⟩ NAME or ⟨vram⟩ SIZE"


def _nvidia(environment: Mapping[str, str], root: Path, timeout_seconds: float) -> Listing:
    argv = ["nvidia-smi", f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader,nounits"]
    answer = ask(argv, environment, timeout_seconds)
    if answer.text is None:
        remark = _driver_without_tool(root)
        if answer.missing and not remark:
            return _none("", [answer.missing])
        return _none(answer.problem + remark)
    gpus, driver = parse_nvidia(answer.text)
    if not gpus:
        return _none("nvidia-smi lists no GPU")
    reason = f"nvidia-smi lists {len(gpus)}"
    return Listing(gpus=gpus, vendor="nvidia", driver_version=driver, reason=reason)


def parse_nvidia(text: str) -> tuple[tuple[FoundGpu, ...], str | None]:
    """GPUs and driver version from nvidia-smi's CSV; lines that are no GPU are passed over."""
    gpus: list[FoundGpu] = []
    driver: str | None = None
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 6 or not parts[0].isdigit():
            continue
        number, uuid, name, *sizes, version = parts
        # "[N/A]", "[Not Supported]", "[GPU is lost]" stand where there is no figure
        total, used = (int(text) * MIB if text.isdigit() else None for text in sizes)
        gpus.append(
            FoundGpu(index=int(number), uuid=uuid, name=name, driver_vram_bytes=total, used_bytes=used)
        )
        driver = version if version[:1].isdigit() else driver
    return tuple(gpus), driver


def _driver_without_tool(root: Path) -> str:
    """A remark when the kernel has NVIDIA GPUs although nvidia-smi does not answer."""
    try:
        cards = len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return ""
    return f" (but the kernel's driver lists {cards}: put nvidia-smi on the PATH)" if cards else ""


def _amd(environment: Mapping[str, str], timeout_seconds: float) -> Listing:
    rocm = ["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--json"]
    problems, missing = [], []
    for argv, parse in ((rocm, parse_rocm_smi), (["amd-smi", "static", "--json"], parse_amd_smi)):
        answer = ask(argv, environment, timeout_seconds)
        gpus, driver = parse(answer.text or "")
        if gpus:
            reason = f"{argv[0]} lists {len(gpus)}"
            return Listing(gpus=gpus, vendor="amd", driver_version=driver, reason=reason)
        if answer.missing:
            missing.append(answer.missing)
        else:
            problems.append(answer.problem if answer.text is None else f"{argv[0]} lists no GPU")
    return _none("; ".join(problems), missing)


def _json(text: str) -> Any:
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0)
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError):
        return None


def parse_rocm_smi(text: str) -> tuple[tuple[FoundGpu, ...], str | None]:
    """GPUs from ``rocm-smi --json``: ``{"card0": {"Card Series": …, "VRAM Total Memory (B)": …}}``."""
    cards = _json(text)
    if not isinstance(cards, dict):
        return (), None
    gpus = []
    for card, values in cards.items():
        if not (card.startswith("card") and card[4:].isdigit() and isinstance(values, dict)):
            continue
        lower = {str(key).lower(): str(value) for key, value in values.items()}
        names = (lower.get("card series", ""), lower.get("card model", ""), lower.get("device name", ""))
        name = next((name for name in names if name and not name.startswith("0x")), "AMD GPU")
        total, used = lower.get("vram total memory (b)", ""), lower.get("vram total used memory (b)", "")
        gpus.append(
            FoundGpu(
                index=int(card[4:]),
                uuid=lower.get("unique id", ""),
                name=name,
                driver_vram_bytes=int(total) if total.isdigit() else None,
                used_bytes=int(used) if used.isdigit() else None,
            )
        )
    system = cards.get("system")
    driver = system.get("Driver version") if isinstance(system, dict) else None
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)), driver if isinstance(driver, str) else None


def parse_amd_smi(text: str) -> tuple[tuple[FoundGpu, ...], str | None]:
    """GPUs from ``amd-smi static --json``: a list, or ``{"gpu_data": […]}`` in newer versions."""
    cards = _json(text)
    if isinstance(cards, dict):
        cards = cards.get("gpu_data")
    if not isinstance(cards, list):
        return (), None

    def part(whole: Any, key: str) -> dict[str, Any]:
        value = whole.get(key)
        return value if isinstance(value, dict) else {}

    gpus, driver = [], None
    for card in cards:
        if not (isinstance(card, dict) and isinstance(card.get("gpu"), int)):
            continue
        asic, vram, drivers = (part(card, key) for key in ("asic", "vram", "driver"))
        value = part(vram, "size").get("value")
        gpus.append(
            FoundGpu(
                index=card["gpu"],
                uuid=str(asic.get("asic_serial", "")),
                name=str(asic.get("market_name", "AMD GPU")),
                # amd-smi writes "MB" and counts in MiB
                driver_vram_bytes=value * MIB if type(value) is int else None,
            )
        )
        driver = drivers.get("version", driver)
    return tuple(gpus), driver if isinstance(driver, str) else None
