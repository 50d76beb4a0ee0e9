"""Which hardware a request means: named, found in this machine, assumed, or CPU ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zerokit.domain.hardware import UNKNOWN_NETWORK_BYTES_PER_SECOND, Cluster, Gpu
from zerokit.errors import InputError
from zerokit.notes import Note, notes_of
from zerokit.planner.options import BY_NAME, VALUES
from zerokit.units import (
    counted,
    format_gib,
    parse_bytes,
    parse_count,
    parse_positive_int,
    parse_rate,
    parse_share,
)
from zerokit.values import frozen_dataclass, replace

_MOST_GPUS = 1 << 20
_MOST = {
    **dict.fromkeys(("gpus", "nodes", "tp", "pp", "sp", "cp"), _MOST_GPUS),
    **dict.fromkeys(("seq_len", "new_tokens"), 10**8), "lora_rank": 65536, "images": 10_000,
}  # fmt: skip
"""What a whole number may be at most, where that is not :data:`_MOST_ELSE`."""
_MOST_ELSE = 10**9


def choice(options: Mapping[str, Any], name: str) -> str | None:
    """One of the words that an option takes; ``None`` when it was not given, or is ``auto``. Raises
    InputError: something else."""
    value, allowed = options.get(name), BY_NAME[name].metavar.split("|")
    if value is None or value == "auto":
        return None
    if value not in allowed:
        hint = VALUES.get((name, str(value).lower()))
        raise InputError(f"⟨{name}⟩ {value}: " + (hint or f"use one of {', '.join(allowed)}"))
    return str(value)


def integer(options: Mapping[str, Any], name: str) -> int | None:
    """A whole number; ``None`` when it was not given. Raises InputError: not a whole number, below 1 or above
    what the option takes."""
    value = options.get(name)
    if value in (None, "auto"):
        return None
    example = "4096" if name == "seq_len" else "8"
    thousands = re.fullmatch(r"(\d+)\s*[kK]", str(value)) if name == "seq_len" else None
    value = int(thousands[1]) * 1024 if thousands else value  # as contexts are named: 4k, 128k
    return parse_positive_int(value, f"⟨{name}⟩", _MOST.get(name, _MOST_ELSE), example=example)


def share(options: Mapping[str, Any], name: str) -> float | None:
    """A share from 0 to below 1; ``None`` when it was not given. Raises InputError: not a share."""
    value = options.get(name)
    return None if value in (None, "auto") else parse_share(value, f"⟨{name}⟩")


def count(options: Mapping[str, Any], name: str) -> int | None:
    """A count such as 5e8 or 500m; ``None`` when it was not given. Raises InputError: not a count."""
    value = options.get(name)
    return None if value in (None, "auto") else parse_count(value, f"⟨{name}⟩")


DEFAULT_GPU = "h100-sxm-80gb"
_CPU_NOTES = (
    "required beside the tensors: 1 GiB of process and room for an allocator; a run's report predicts the "
    "tensors and the process as measured",
)


@frozen_dataclass
class Hardware:
    """A cluster, and what was taken or assumed."""

    cluster: Cluster
    notes: tuple[Note, ...]
    named: bool  # whether the memory per GPU is known rather than assumed
    found_here: bool = False  # whether the GPUs are this machine's


def hardware(options: Mapping[str, Any]) -> Hardware:
    """The cluster of the options. Raises InputError: names the option and the fix."""
    device = choice(options, "device")
    if device == "local" and (options.get("gpu") or options.get("vram")):
        raise InputError("⟨gpu⟩, ⟨vram⟩: not with ⟨device⟩ local, which is this machine's hardware")
    _refuse_number_with_name(options)
    gpus, nodes = (integer(options, name) for name in ("gpus", "nodes"))
    host_ram = parse_bytes(options["host_ram"], "⟨host_ram⟩") if options.get("host_ram") else None
    if device == "cpu":
        if options.get("gpu") or options.get("vram"):
            raise InputError("⟨gpu⟩, ⟨vram⟩: not with ⟨device⟩ cpu; ⟨host_ram⟩ SIZE sets the memory")
        return _cpu_ranks(gpus, nodes, host_ram, ())
    gpu, reasons, detected, named = _gpu(options)
    notes = notes_of("gpu", reasons, "hardware")
    assumed = gpu is None
    if gpu is None:
        if device == "local":
            return _cpu_ranks(gpus, nodes, host_ram, (*notes, "planned for CPU ranks of this machine"))
        from zerokit.catalog import gpus as catalog

        gpu = catalog.load(DEFAULT_GPU)
        text = (
            f"assumed {gpu.title}: none was named, none was found here ({'; '.join(notes)}); "
            "⟨device⟩ cpu plans for CPU ranks; name yours: ⟨gpus⟩ N ⟨gpu⟩ NAME"
        )
        notes = (Note("gpu-assumed", text, "default", short=f"⟨gpu⟩ {gpu.name}"),)
    if gpus is None:
        gpus = detected or 1
        text = f"{counted(gpus, 'GPU')}: " + ("all that are visible" if detected else "⟨gpus⟩ not given")
        short = "" if detected else f"⟨gpus⟩ {gpus}"
        notes = (*notes, Note("gpus-assumed", text, "hardware" if detected else "default", short=short))
    if nodes is None:
        most = gpu.max_gpus_per_node
        nodes = gpus // max(n for n in range(1, most + 1) if gpus % n == 0)  # all alike
        if nodes > 1:
            per_node = gpus // nodes
            text = f"{nodes} nodes for {gpus} GPUs, {per_node} on each: ⟨nodes⟩ not given"
            notes = (*notes, Note("nodes-assumed", text, "default", short=f"⟨nodes⟩ {nodes}"))
    elif nodes > 1 and gpus <= gpu.max_gpus_per_node:
        text = (
            f"{counted(gpus, 'GPU')} on {nodes} nodes are {gpus // nodes} on each, though one node holds "
            f"{gpu.max_gpus_per_node}: ⟨gpus⟩ counts those of all nodes; for {gpus} on each ⟨gpus⟩ "
            f"{gpus * nodes}"
        )
        notes = (*notes, Note("gpus-of-all-nodes", text, "hardware"))
    if detected and host_ram is None and nodes == 1 and gpus <= detected:
        host_ram, note = _this_host()
        notes = (*notes, Note("host-memory", note, "hardware")) if note else notes
    network = parse_rate(options["network"], "⟨network⟩") if options.get("network") else None
    if nodes == 1 and network is not None and (detected or options.get("gpus")):
        text = f"⟨network⟩ {options['network']}: not used, one node sends nothing over it"
        notes = (*notes, Note("network-unused", text, "hardware"))
    if nodes > 1 and network is None:
        notes = (*notes, _assumed_network(gpu, gpus // nodes))
    nvme = options.get("nvme")  # a folder on every node; this machine may have none
    if nvme and not str(nvme).startswith("/"):
        raise InputError(
            f"⟨nvme⟩ {nvme}: write the whole path (/…): each rank would look a relative one up in its own "
            "working folder"
        )
    cluster = Cluster(
        gpu=gpu, gpus=gpus, nodes=nodes, host_ram_bytes=host_ram, nvme_path=nvme, gpu_assumed=assumed,
        network_bytes_per_second=float(network) if network else None,
    )  # fmt: skip
    return Hardware(cluster=cluster, notes=notes, named=named, found_here=detected > 0)


def doubted_vram(options: Mapping[str, Any]) -> str | None:
    """What makes the memory that was given for a GPU one that its user may not mean."""
    from zerokit.catalog.gpus import sold_in_gb

    sold = sold_in_gb(parse_bytes(options["vram"], "⟨vram⟩")) if options.get("vram") else None
    fix = "leave it out, as ⟨gpu⟩ names the card" if options.get("gpu") else "name the ⟨gpu⟩"
    return None if sold is None else f"⟨vram⟩ {options['vram']}: {sold}; {fix}, or write it in GiB"


_NUMBER_AND_NAME = re.compile(r"\s*(\d+)\s*[x×*]\s*([A-Za-z0-9].*)")


def _refuse_number_with_name(options: Mapping[str, Any]) -> None:
    """``2x4090`` is a number and a name: two options; and so is a name where the number belongs. Raises
    InputError: with both options written out."""
    from zerokit.catalog import gpus

    typed = str(options.get("gpus") or "").strip()
    if typed[:1].isalpha():
        name = typed
        with suppress(InputError):
            name = gpus.lookup(typed).name
        number = options["gpu"] if str(options.get("gpu")).isdigit() else "N"
        if name in gpus.names():
            raise InputError(f"⟨gpus⟩ {typed}: {name} is a kind of GPU: write ⟨gpus⟩ {number} ⟨gpu⟩ {name}")
    for option in ("gpus", "gpu"):
        text = str(options.get(option) or "")
        match = _NUMBER_AND_NAME.fullmatch(text)
        if match is not None:
            written = f"⟨{option}⟩ {text}: write ⟨gpus⟩ {match[1]} ⟨gpu⟩"
            try:
                name = gpus.lookup(match[2]).name
            except InputError as error:
                raise InputError(f"{written} NAME; {error.marked}") from None
            raise InputError(f"{written} {name}")


def _assumed_network(gpu: Gpu, per_node: int) -> Note:
    usual, slowest = gpu.network_bytes_per_second, gpu.slowest_network_bytes_per_second
    if usual is None:
        rate = UNKNOWN_NETWORK_BYTES_PER_SECOND
        text = f"network assumed: {rate / 1e9:g} GB/s per node (400 Gb/s); ⟨network⟩ not given"
        return Note("network-assumed", text, "default", short=f"⟨network⟩ {rate / 1e9:g} GB/s per node")
    words = f"network assumed: {usual * per_node / 1e9:g} GB/s per node, as usual for {gpu.name}"
    if slowest is not None and slowest < usual:
        words += f" (common clouds: {slowest * per_node / 1e9:.3g} to {usual * per_node / 1e9:g})"
    short = f"⟨network⟩ {usual * per_node / 1e9:g} GB/s per node"
    return Note("network-assumed", f"{words}; ⟨network⟩ not given", "default", short=short)


def _gpu(options: Mapping[str, Any]) -> tuple[Gpu | None, tuple[str, ...], int, bool]:
    """The GPU, what was taken and why, how many are in this machine (0: not looked), memory known."""
    name, vram = options.get("gpu"), options.get("vram")
    if name:
        from zerokit.catalog import gpus

        if "," in name:
            raise InputError(
                f"⟨gpu⟩ {name}: a plan and an estimate are for one kind; name one, or compare them: "
                f"`zerokit size --gpu {name}`"
            )
        gpu = gpus.lookup(name)
        if vram:
            size = parse_bytes(vram, "⟨vram⟩")
            return gpu.with_total_memory(size), (f"{gpu.name} with {format_gib(size)}: ⟨vram⟩",), 0, True
        others = [meant for meant in gpus.meanings(name) if meant != gpu.name]
        text = f"⟨gpu⟩ {name} is taken for {gpu.name}; others: {', '.join(others)}"
        taken = Note("gpu-of-several", text, "default", short=f"⟨gpu⟩ {gpu.name}")
        return gpu, (taken,) if others else (), 0, True
    if vram:
        from zerokit.catalog import gpus

        size = parse_bytes(vram, "⟨vram⟩")
        gpu, reason = gpus.for_vram(size)
        return replace(gpu.with_total_memory(size), stands_in=True), (reason,), 0, True
    entry, reason, detected = gpu_of_this_machine()
    return entry, (reason,), detected, entry is not None


def gpu_of_this_machine() -> tuple[Gpu | None, str, int]:
    """The GPU of this machine with its own memory, the reason in words, and how many there are; None: none.
    Raises InputError: there are GPUs, and the catalogue or the driver does not say enough of them."""
    from zerokit.machine.detect import detect

    machine = detect()
    entry, reason = machine.catalog_gpu()
    if entry is None and machine.gpus:
        raise InputError(f"this machine's GPUs cannot be used for a prediction: {reason}")
    return entry, reason if entry is None else f"this machine: {reason}", len(machine.gpus)


def gpu_of_plan(cluster: Mapping[str, Any], request: Mapping[str, Any]) -> Gpu | None:
    """The GPU that a plan was made for, with the memory that was asked for; None: CPU ranks, or not known.
    ``cluster``: the plan's. ``request``: its own. Raises InputError: the catalogue does not have it, or the
    size is none."""
    from zerokit.catalog import gpus

    name, size = cluster.get("gpu"), request.get("vram")
    if not isinstance(name, str) or name == "cpu":
        return None
    gpu = gpus.lookup(name)
    return gpu.with_total_memory(parse_bytes(size, "⟨vram⟩")) if size else gpu


def _this_host() -> tuple[int | None, str]:
    from zerokit.machine.host import detect_host

    host = detect_host()
    if host.ram_bytes is None:
        return None, ""
    return host.ram_bytes, f"host memory {format_gib(host.ram_bytes, 0)}: {host.ram_reason}"


def _cpu_ranks(
    ranks: int | None, nodes: int | None, host_ram: int | None, reasons: tuple[str, ...]
) -> Hardware:
    if nodes not in (None, 1):
        raise InputError("⟨nodes⟩: CPU ranks are planned for one node")
    from zerokit.machine.host import bf16_in_hardware, detect_host

    host, notes = detect_host(), notes_of("cpu-ranks", reasons, "hardware")
    if ranks is None:
        ranks = 2
        notes = (*notes, Note("gpus-assumed", "2 CPU ranks: ⟨gpus⟩ not given", "default", short="⟨gpus⟩ 2"))
    if host_ram is None:
        host_ram = host.ram_bytes
        text = f"host memory {format_gib(host_ram or 0, 0)}: {host.ram_reason}; shared by all ranks"
        notes = (*notes, Note("host-memory", text, "hardware"))
    if host_ram is None:
        raise InputError("⟨host_ram⟩ SIZE is required: this machine does not report its memory")
    share = host_ram // ranks
    gpu = Gpu(
        name="cpu",
        title="CPU rank",
        vram_bytes=share,
        driver_vram_bytes=share,
        peak_flops=dict.fromkeys(("bf16", "fp32") if bf16_in_hardware() else ("fp32",), 1e11),
        hbm_bytes_per_second=1e10,
        link="pcie",
        link_bytes_per_second=5e9,
        pcie_bytes_per_second=1e10,
        matmul_efficiency=0.5,
        context_bytes=1 << 30,  # the Python process with torch and DeepSpeed
        max_gpus_per_node=1024,
    )
    cluster = Cluster(gpu=gpu, gpus=ranks, nodes=1, host_ram_bytes=host_ram)
    notes = (*notes, *notes_of("cpu-ranks", _CPU_NOTES, "hardware"))
    return Hardware(cluster=cluster, notes=notes, named=True)
