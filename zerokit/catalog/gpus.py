"""The GPUs zerokit knows: one YAML file each in ``gpus/``, named as the GPU is.

Looking one up forgives case, separators and the vendor's words; the names that nvidia-smi,
rocm-smi and torch print lead to the entry. An incomplete name lists what it could mean.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerokit.catalog.reader import (
    Field,
    Words,
    could_mean,
    entry_names,
    has_entry,
    incomplete,
    read,
    skipped,
    split,
    suggestions,
)
from zerokit.domain.hardware import Chip, Gpu, Processors
from zerokit.errors import InputError
from zerokit.strictload import Document
from zerokit.units import GIB, MIB, format_gib
from zerokit.values import frozen_dataclass

FOLDER = Path(__file__).parent / "gpus"
PRECISIONS = ("bf16", "fp16", "fp32")

_FIELDS = {
    "name": Field(kind="text"),
    "title": Field(kind="text"),
    "driver_names": Field(kind="texts"),
    "aliases": Field(kind="texts", required=False),
    "vram_gib": Field(kind="number"),
    "driver_vram_mib": Field(kind="whole"),
    "bf16_tflops": Field(kind="number", required=False),
    "fp16_tflops": Field(kind="number"),
    "fp32_tflops": Field(kind="number"),
    "measured_matmul_tflops": Field(kind="number", required=False),
    "sustained_matmul_tflops": Field(kind="number", required=False),
    "hbm_gb_per_second": Field(kind="number"),
    "link": Field(kind="text", choices=("nvlink", "pcie", "xgmi")),
    "link_gb_per_second": Field(kind="number"),
    "pcie_gb_per_second": Field(kind="number"),
    "network_gb_per_second": Field(kind="number", required=False),
    "slowest_network_gb_per_second": Field(kind="number", required=False),
    "context_mib": Field(kind="whole"),
    "peer_to_peer": Field(kind="flag"),
    "expandable_segments": Field(kind="flag"),
    "max_gpus_per_node": Field(kind="whole"),
    "host_gib_per_gpu": Field(kind="whole"),
    "compute_capability": Field(kind="text", required=False),
    "multiprocessors": Field(kind="whole", required=False),
    "threads_per_multiprocessor": Field(kind="whole", required=False),
    "l2_cache_mib": Field(kind="number", required=False),
    "memory_clock_mhz": Field(kind="whole", required=False),
    "assumed_for_vram": Field(kind="flag", required=False),
    "sold_as": Field(kind="mapping", required=False),
    "sources": Field(kind="mapping"),
}
_AS_WRITTEN = (
    "name", "title", "link", "peer_to_peer", "expandable_segments", "max_gpus_per_node", "sources",
)  # fmt: skip
_CHIP = ("compute_capability", "multiprocessors", "threads_per_multiprocessor", "l2_cache_mib")
"""All of them, or none: no rehearsal on this GPU, and no partial sums in its estimates."""
_FIGURES = (
    "compute_capability",
    *(
        key
        for key, field in _FIELDS.items()
        if field.kind in ("number", "whole") and key != "max_gpus_per_node"
    ),
)
_MAY_HAVE_SOURCE = (*_FIGURES, "peer_to_peer", "expandable_segments", "max_gpus_per_node")
_VENDOR_WORDS = {
    "nvidia": {"nvidia", "tesla", "geforce", "graphics", "gpu", "generation"},
    "amd": {"amd", "instinct", "gpu"},
}


@frozen_dataclass
class _Entry:
    """A GPU and what it is called."""

    gpu: Gpu
    assumed_for_vram: bool
    labels: tuple[Words, ...]
    vendor_words: frozenset[str]


def names() -> tuple[str, ...]:
    """All catalogue names, sorted."""
    return entry_names(FOLDER)


def load(name: str) -> Gpu:
    """The GPU with exactly this catalogue name, reading only its file. Raises InputError: there is none."""
    if has_entry(FOLDER, name):
        return read_gpu(FOLDER / f"{name}.yaml")
    raise InputError(f"⟨gpu⟩ {_unknown(name)}")


def sold_as(name: str, service: str) -> str | None:
    """What a service that starts jobs, ``skypilot`` or ``dstack``, calls the GPU of exactly this catalogue
    name; None: not known."""
    if not has_entry(FOLDER, name):
        return None
    called: Mapping[str, str] = read(FOLDER / f"{name}.yaml", _FIELDS).value.get("sold_as", {})
    return called.get(service)


def catalog() -> tuple[Gpu, ...]:
    """Every GPU, by name."""
    return tuple(entry.gpu for entry in _entries())


def lookup(text: str, option: str = "⟨gpu⟩ ") -> Gpu:
    """The GPU that a name means: ``h100-sxm-80gb``, ``A100-80GB``, ``a100 80gb``, ``NVIDIA H100 80GB HBM3``.

    ``option`` stands before the name in messages; empty where no ``⟨vram⟩`` can be given instead.

    Raises:
        InputError: no GPU has this name. The message lists those that an incomplete name could
            mean, and chooses none.
    """
    if len(text) > 100:
        raise InputError(f"{option}{text[:20]!r}…: too long for a GPU's name; `zerokit gpus` lists them")
    if has_entry(FOLDER, text):
        return load(text)
    words = _words(text)
    candidates = _named(words)
    if len(candidates) == 1:
        return candidates[0]
    could_be = tuple(gpu.name for gpu in candidates) or meanings(text)
    raise InputError(option + (f"{text!r} {incomplete(could_be)}" if could_be else _unknown(text, option)))


def meanings(text: str) -> tuple[str, ...]:
    """All GPUs that an incomplete name could mean; one alone where it is a GPU's whole name."""
    words = _words(text)
    if whole := [gpu.name for gpu in _named(words) if words == _words(gpu.name)]:
        return tuple(whole)
    # a driver's name has the size beside the model's, which the catalogue's names part
    return could_mean(((gpu.name, between) for gpu, between in _skipped(words)), closest_only=False)


def for_driver(name: str, driver_vram_bytes: int) -> tuple[Gpu | None, str]:
    """The catalogue entry of a GPU found in a machine, with its own memory size, and the reason.

    Args:
        name: as nvidia-smi, rocm-smi or torch print it.
        driver_vram_bytes: the total that the driver reports.

    Returns:
        ``None`` with the reason when the catalogue does not know it.
    """
    words = _words(name)
    candidates = _named(words)
    if not candidates:
        containing = dict.fromkeys(gpu for gpu, between in _skipped(words) if between == 0)
        candidates = [gpu for gpu in containing if abs(driver_vram_bytes / gpu.driver_vram_bytes - 1) < 0.03]
    if len(candidates) != 1:
        return None, f"{name} ({format_gib(driver_vram_bytes)}) is not in the catalogue"
    gpu = candidates[0]
    if abs(driver_vram_bytes / gpu.driver_vram_bytes - 1) < 0.01:
        return gpu, f"{name} is {gpu.name} in the catalogue"
    return (
        gpu.with_total_memory(driver_vram_bytes),
        f"{name} is {gpu.name} in the catalogue, but the driver reports {format_gib(driver_vram_bytes)} "
        f"instead of {format_gib(gpu.driver_vram_bytes)}",
    )


def for_vram(vram_bytes: int) -> tuple[Gpu, str]:
    """Whose speeds to assume when only the memory per GPU is known, and the reason.

    Returns:
        The entry as the catalogue has it: ``with_total_memory`` gives it the asked size.
    """
    typical = [entry.gpu for entry in _entries() if entry.assumed_for_vram]
    gpu = min(typical, key=lambda gpu: abs(math.log(gpu.driver_vram_bytes / vram_bytes)))
    sold = f"{words}; " if (words := sold_in_gb(vram_bytes)) else ""
    return gpu, (
        f"{sold}speeds assumed to be those of {gpu.name}, the typical GPU nearest to "
        f"{format_gib(vram_bytes, 1)}; name the GPU with ⟨gpu⟩ for better ones"
    )


def sold_in_gb(vram_bytes: int) -> str | None:
    """That a size in whole GB, as cards are sold, is less than such cards have; None for any other size."""
    decimal, rest = divmod(vram_bytes, 10**9)
    if rest:
        return None
    sizes = [e.gpu.driver_vram_bytes for e in _entries() if f" {decimal} GB" in e.gpu.title]
    least, most = (f"{size(sizes or [decimal * GIB]) / GIB:.1f}" for size in (min, max))
    have = f"{least} to {most}" if least != most else most
    return f"{decimal}GB is {format_gib(vram_bytes, 1)}, and cards sold as {decimal} GB have {have} GiB"


def read_gpu(path: Path) -> Gpu:
    """One catalogue file. Raises FileInputError: with the line, when the file breaks a rule."""
    return _read(path).gpu


@functools.cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_read(FOLDER / f"{name}.yaml") for name in names())


def _read(path: Path) -> _Entry:
    document = read(path, _FIELDS)
    values: dict[str, Any] = document.value
    _check(document, path.stem)
    peaks = {
        precision: values[f"{precision}_tflops"] * 1e12
        for precision in PRECISIONS
        if f"{precision}_tflops" in values
    }
    measured, sustained = (
        None
        if (tflops := values.get(f"{kind}_matmul_tflops")) is None
        else tflops * 1e12 / peaks.get("bf16", peaks["fp16"])
        for kind in ("measured", "sustained")
    )
    rates: dict[str, Any] = {
        f"{name}_bytes_per_second": None
        if (rate := values.get(f"{name}_gb_per_second")) is None
        else rate * 1e9
        for name in ("hbm", "link", "pcie", "network", "slowest_network")
    }
    names_of_it = (*values.get("aliases", []), *values["driver_names"])
    gpu = Gpu(
        **{name: values[name] for name in _AS_WRITTEN}, **rates, peak_flops=peaks,
        vram_bytes=round(values["vram_gib"] * GIB), driver_vram_bytes=values["driver_vram_mib"] * MIB,
        context_bytes=values["context_mib"] * MIB, host_bytes_per_gpu=values["host_gib_per_gpu"] * GIB,
        matmul_efficiency=measured, sustained_efficiency=sustained, chip=_chip(values), aliases=names_of_it,
    )  # fmt: skip
    vendor_words = _VENDOR_WORDS["amd" if gpu.title.startswith("AMD") else "nvidia"]
    labels = tuple(_plain(_words(label), vendor_words) for label in (gpu.name, gpu.title, *names_of_it))
    assumed = values.get("assumed_for_vram", False)
    return _Entry(gpu=gpu, assumed_for_vram=assumed, labels=labels, vendor_words=frozenset(vendor_words))


def _plain(words: Words, vendor_words: Collection[str]) -> Words:
    """A name without the words of the GPU's vendor."""
    return tuple(word for word in words if word not in vendor_words)


def _chip(values: dict[str, Any]) -> Chip | None:
    if "compute_capability" not in values:
        return None
    major, minor = values["compute_capability"].split(".")
    return Chip(
        compute_capability=(int(major), int(minor)),
        processors=Processors(count=values["multiprocessors"], threads=values["threads_per_multiprocessor"]),
        l2_cache_bytes=round(values["l2_cache_mib"] * MIB),
        memory_clock_mhz=values.get("memory_clock_mhz"),
    )


def _check(document: Document, name: str) -> None:
    values: dict[str, Any] = document.value
    if values["name"] != name:
        raise document.error(("name",), f"name: {values['name']!r} must be the file's name, {name!r}")
    if values["vram_gib"] * GIB > values["driver_vram_mib"] * MIB * 1.001:
        raise document.error(("vram_gib",), "vram_gib exceeds driver_vram_mib; check the units")
    peak = values.get("bf16_tflops", values["fp16_tflops"])
    for key in ("measured_matmul_tflops", "sustained_matmul_tflops"):
        if values.get(key, 0) > peak:
            raise document.error((key,), f"{key} is more than the datasheet's peak")
    if values["link"] == "pcie" and values["link_gb_per_second"] != values["pcie_gb_per_second"]:
        message = "link is pcie, so link_gb_per_second must equal pcie_gb_per_second"
        raise document.error(("link_gb_per_second",), message)
    if values.get("slowest_network_gb_per_second", 0) > values.get("network_gb_per_second", 0):
        key = "slowest_network_gb_per_second"
        raise document.error((key,), f"{key} is more than network_gb_per_second")
    _check_chip(document)
    _check_sources(document)


def _check_chip(document: Document) -> None:
    values: dict[str, Any] = document.value
    present = [key for key in (*_CHIP, "memory_clock_mhz") if key in values]
    missing = [key for key in _CHIP if key not in values]
    if present and missing:
        raise document.error((present[0],), f"{present[0]} needs {', '.join(missing)} beside it")
    if present and not re.fullmatch(r"\d{1,2}\.\d", values["compute_capability"]):
        message = 'compute_capability: expected major and minor, such as "9.0"'
        raise document.error(("compute_capability",), f"{message}, got {values['compute_capability']!r}")


def _check_sources(document: Document) -> None:
    values: dict[str, Any] = document.value
    sources = values["sources"]
    missing = [key for key in _FIGURES if key in values and key not in sources]
    if missing:
        raise document.error(("sources",), f"sources: say where these come from: {', '.join(missing)}")
    for key, source in sources.items():
        if key not in _MAY_HAVE_SOURCE or key not in values:
            raise document.error(("sources", key), f"sources: no such figure in this file: {key}")
        if not isinstance(source, str) or len(source) < 6:
            raise document.error(("sources", key), f"sources: {source!r} does not say where {key} comes from")


def _words(text: str) -> Words:
    """Letters and digits apart, ``80g`` and ``80gib`` as ``80gb``."""
    parts = tuple(part for part in split(text) if part != "/")  # "MI250X / MI250" is a driver's name
    return tuple(
        "gb" if part in ("g", "gib") and index and parts[index - 1].isdigit() else part
        for index, part in enumerate(parts)
    )


def _named(words: Words) -> list[Gpu]:
    return [e.gpu for e in _entries() if (plain := _plain(words, e.vendor_words)) and plain in e.labels]


def _skipped(words: Words) -> Iterator[tuple[Gpu, int | None]]:
    """Of each label of each GPU, how many of its words stand between these ones."""
    if any(word.isalpha() and word != "gb" for word in words):  # a bare size names no GPU
        for entry in _entries():
            label_words = _plain(words, entry.vendor_words)
            yield from ((entry.gpu, skipped(label, label_words)) for label in entry.labels if label_words)


_NOT_MODELLED = {
    ("gaudi", "hpu"): (
        "Intel's bridge compiles operators into graphs whose memory a compiler lays out "
        "(docs.habana.ai, PyTorch Gaudi Theory of Operations), not PyTorch's CUDA allocator, which zerokit "
        "replays; measure a run on one card"
    ),
}
"""Parts of a name -> why no card with such a name can be planned for."""


def _unknown(text: str, option: str = "⟨gpu⟩ ") -> str:
    for parts, why in _NOT_MODELLED.items():
        if any(part in text.lower() for part in parts):
            return f"{text}: not modelled: {why}"
    if text.isdecimal() and option:
        return f"{text}: for the number of GPUs, give ⟨gpus⟩ {text}; ⟨gpu⟩ takes a name (`zerokit gpus`)"
    return (
        f"{text!r} is not in the catalogue; {suggestions(text, names())}"
        f"`zerokit gpus` lists them{', or give ⟨vram⟩ SIZE per GPU instead' if option else ''}"
    )


_SHOWN = (
    "name", "title", "vram_bytes", "driver_vram_bytes", "peak_flops", "matmul_efficiency",
    "sustained_efficiency", "hbm_bytes_per_second", "link", "link_bytes_per_second", "pcie_bytes_per_second",
    "network_bytes_per_second", "slowest_network_bytes_per_second", "context_bytes", "host_bytes_per_gpu",
    "peer_to_peer", "expandable_segments", "max_gpus_per_node",
)  # fmt: skip
"""Fields that ``--json`` has as they are, in its order."""


def as_dict(gpu: Gpu) -> dict[str, Any]:
    """A GPU for ``--json``: bytes and FLOP/s, in whole units."""
    chip = gpu.chip
    return {
        **{name: getattr(gpu, name) for name in _SHOWN},
        "peak_flops": dict(gpu.peak_flops),
        "compute_capability": chip and "{}.{}".format(*chip.compute_capability),
        "multiprocessors": chip and chip.processors.count,
        "threads_per_multiprocessor": chip and chip.processors.threads,
        "l2_cache_bytes": chip and chip.l2_cache_bytes,
        "memory_clock_mhz": chip and chip.memory_clock_mhz,
        "aliases": list(gpu.aliases),
        "sources": dict(gpu.sources),
    }
