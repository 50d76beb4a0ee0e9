"""What this rank could not have: an allocation, with what was live at that moment; a full disk, where torch
says no more than "unexpected pos" or "iostream error".
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from zerokit.launcher.rank.memory_snapshots import MemorySnapshots
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import Record
from zerokit.launcher.secrets import redact

_WRITE_FAILED = re.compile(
    r"iostream error|unexpected pos \d+ vs|PytorchStreamWriter failed|file write failed"
    r"|No space left on device"
)  # caffe2/serialize/inline_container.cc of torch 2.13; errno's own words
_PATHS = ("f", "file", "filename", "path", "name", "folder", "save_path", "save_dir", "save_directory",
          "output_dir", "output_path")  # fmt: skip
"""Names of arguments that hold what is written to, in torch, safetensors, DeepSpeed and Transformers."""
_NOTHING_LEFT_BYTES = 1 << 20


def full_disk(error: BaseException, text: str) -> str | None:
    """``the disk of /out is full``, of what the failing call wrote to, which the error's traceback knows;
    None where it is not so."""
    if not _WRITE_FAILED.search(text):
        return None
    for path in _written_to(error):
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH112, PTH120
        try:
            disk = os.statvfs(folder)
        except (OSError, ValueError):
            continue
        writable = not disk.f_flag & os.ST_RDONLY
        if writable and disk.f_bavail * disk.f_frsize < _NOTHING_LEFT_BYTES:
            return f"the disk of {folder} is full"
    return None


def _written_to(error: BaseException) -> Iterator[str]:
    """The paths among the arguments of the calls that failed, the innermost first."""
    calls = []
    entry = error.__traceback__
    while entry is not None:
        calls.append(entry.tb_frame)
        entry = entry.tb_next
    for call in reversed(calls):
        for name in _PATHS:
            value = call.f_locals.get(name)
            if isinstance(value, str | os.PathLike):
                yield os.fspath(value)


_BIGGEST = 12
_MAX_RECORDED = 3  # a script that tries smaller batches until one fits raises many
_MAX_OBJECTS = 5_000_000
_MOST_BYTES = 1 << 62
_TEXT = 2000
_SLACK = 1 << 14  # characters more, so that no secret is cut in two before it is masked
_NCCL_ASKS_FOR = 64 << 20
"""At most at a time; a communicator takes some hundred MiB (zerokit.memory.card)."""
_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_CPU_ASKED = re.compile(r"you tried to allocate (\d+) bytes")  # c10/core/impl/alloc_cpu.cpp


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: the GPU's, or the host's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = _text_of(error)
    return "out of memory" in text or "DefaultCPUAllocator: can't allocate memory" in text


def _nccl_had_no_room(message: str) -> str | None:
    """What to add where NCCL's call of CUDA failed on a full GPU: PyTorch's allocator shares nothing."""
    if "ncclUnhandledCudaError" not in message:
        return None
    with contextlib.suppress(Exception):
        free = sys.modules["torch"].cuda.mem_get_info()[0]
        if free < _NCCL_ASKS_FOR:
            return f"the GPU was full ({free >> 20} MiB free): NCCL got no memory beside PyTorch's"
    return None


def _text_of(error: BaseException) -> str:
    """What the exception says; a script's own class may raise when asked."""
    try:
        return str(error)
    except Exception:
        return "<it cannot be shown>"


def asked_bytes(text: str) -> int | None:
    """How much PyTorch's message says was asked for."""
    if match := _CPU_ASKED.search(text):
        return min(int(match[1]), _MOST_BYTES)
    match = _ASKED.search(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


class OomWatch:
    """Records what was live when the CUDA allocator gave up, before the exception unwinds and frees it."""

    def __init__(self, probe: Probe, snapshots: MemorySnapshots) -> None:
        self._probe = probe
        self._snapshots = snapshots
        self._recorded = 0
        self._engines: list[Any] = []

    def attach(self, torch: Any) -> None:
        """Have PyTorch call us at the failing allocation."""
        self._snapshots.begin(torch)
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(functools.partial(self._observe, torch))

    def know(self, engine: Any) -> None:
        """An engine whose parameters can name blocks (a weak reference)."""
        self._engines.append(engine)

    def _observe(self, torch: Any, device: int, requested: int, total: int, free: int) -> None:
        if not self._probe.is_rank or self._recorded >= _MAX_RECORDED:
            return
        self._recorded += 1
        with contextlib.suppress(Exception):
            self._probe.event(self.record(torch, device, requested, total, free))
            self._snapshots.write(torch, "oom")

    def record(self, torch: Any, device: int, requested: int, total: int | None, free: int | None) -> Record:
        """The account of one failed allocation."""
        probe = self._probe
        stats: Record = {}
        if probe.cuda is not None:
            with contextlib.suppress(Exception):
                probe.cuda.peek()
                state = probe.cuda.devices[device]
                stats = {
                    "allocated_bytes": state.allocated_bytes,
                    "reserved_bytes": state.reserved_bytes,
                    "fragmentation_bytes": state.reserved_bytes - state.allocated_bytes,
                    "alloc_retries": state.retries,
                }
        blocks: list[Record] = []
        with contextlib.suppress(Exception):
            blocks = self._blocks(torch, device)
        return {
            "type": "oom", "memory": "gpu", "cuda_device": device, "asked_bytes": requested,
            "device_total_bytes": total, "device_free_bytes": free,
            "phase": probe.named[-1] if probe.named else probe.phase, "step": probe.steps + 1,
            **stats, "biggest_blocks": blocks,
        }  # fmt: skip

    def _blocks(self, torch: Any, device: int) -> list[Record]:
        """The biggest live blocks of the allocator, with the tensors found in them."""
        live: list[tuple[int, int]] = []
        for segment in torch.cuda.memory.memory_snapshot():
            if segment.get("device") != device:
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    live.append((block["size"], block.get("address", address)))
                address += block["size"]
        biggest = sorted(live, reverse=True)[:_BIGGEST]
        tensors = self._tensors_at(torch, {address: size for size, address in biggest})
        return [{"bytes": size, **tensors.get(address, {})} for size, address in biggest]

    def _tensors_at(self, torch: Any, blocks: dict[int, int]) -> dict[int, Record]:
        names = self._parameter_names()
        tensors: dict[int, Record] = {}
        for index, item in enumerate(gc.get_objects()):
            if index > _MAX_OBJECTS or len(tensors) == len(blocks):
                break
            if not issubclass(type(item), torch.Tensor):
                continue
            with contextlib.suppress(Exception):
                address = item.untyped_storage().data_ptr()
                if address in blocks and address not in tensors:
                    about = {"shape": list(item.shape), "dtype": str(item.dtype).removeprefix("torch.")}
                    name = names.get(item.data_ptr())
                    tensors[address] = {**about, **({"name": name} if name else {})}
        return tensors

    def _parameter_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for reference in self._engines:
            engine = reference()
            if engine is None:
                continue
            with contextlib.suppress(Exception):
                for name, parameter in engine.module.named_parameters():
                    names[parameter.data_ptr()] = name
                    if parameter.grad is not None:
                        names[parameter.grad.data_ptr()] = f"gradient of {name}"
        return names


def error_record(probe: Probe, error: BaseException, traceback_text: str) -> Record:
    """The record of an exception that nobody caught; says so where memory ran out."""
    message = _text_of(error)
    start = f"{type(error).__name__}: {message[: _TEXT + _SLACK]}".strip(": ")  # of what may have 50 MB
    text = redact(start, arguments=sys.argv)[:_TEXT]
    no_room = _nccl_had_no_room(message)
    full = no_room or full_disk(error, message)
    if full is not None:
        text = f"{text[: _TEXT - len(full)]}; {full}"
        traceback_text = f"{traceback_text.rstrip()}; {full}"  # whose last line is what people are shown
    ending = redact(traceback_text[-8000 - _SLACK :], arguments=sys.argv)[-8000:]
    record: Record = {
        "type": "error", "error": text, "traceback": ending,
        "phase": probe.phase_left_by(error), "step": probe.steps + 1,
    }  # fmt: skip
    if no_room or is_out_of_memory(error):
        record["out_of_memory"] = True
        record["asked_bytes"] = asked_bytes(message)
        on_gpu = no_room or type(error).__name__ == "OutOfMemoryError" or "CUDA" in message
        record["memory"] = "gpu" if on_gpu else "host"
    return record
