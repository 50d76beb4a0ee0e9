"""Run a script on a real GPU and write what it reached, by the phases that a rehearsal knows.

    measure.py OUT.jsonl NAME STEPS [-m] SCRIPT ARGS…

The same hooks decide where a phase begins (:mod:`zerokit.rehearsal.process.phases`); the figures are
``torch.cuda``'s. Under a launcher rank 0 writes, or the one that ``MEASURED_RANK`` names.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from zerokit.instrument.post_import import PostImport
from zerokit.launcher.rank.process import Program, run_target
from zerokit.rehearsal.process.adapters import data_loaders, deepspeed, training
from zerokit.rehearsal.process.adapters.wrapping import within
from zerokit.rehearsal.process.context import Context
from zerokit.rehearsal.process.endings import StopRehearsal
from zerokit.rehearsal.process.phases import Phases

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "datasets",
    "liger_kernel",
    "bitsandbytes",
    "triton",
)


@dataclass
class CudaLedger:
    """A ledger whose figures are a real GPU's: read and reset at each boundary."""

    phase: str = "load"
    peaks: dict[str, int] = field(default_factory=dict)
    recent_peaks: dict[str, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    resets: bool = False

    def enter(self, phase: str) -> None:
        """What was reached since the last boundary belongs to the phase that ends."""
        self.read()
        self.phase = phase

    def holds(self, storage: object, what: str) -> None:
        """Which storage holds weights matters to a rehearsal's ledger alone."""

    def read(self) -> None:
        """Take the allocator's peaks and set them anew."""
        if not torch.cuda.is_initialized():
            return
        # a script may choose its device only once it has allocated there
        device = int(os.environ.get("LOCAL_RANK", "0"))
        reached = torch.cuda.max_memory_allocated(device)
        for book in (self.peaks, self.recent_peaks):
            book[self.phase] = max(book.get(self.phase, 0), reached)
        self.reserved_bytes = max(self.reserved_bytes, torch.cuda.max_memory_reserved(device))
        self.resets = True
        torch.cuda.reset_peak_memory_stats(device)
        self.resets = False


def _writes(context: Context, owner: Any, name: str) -> None:
    """Writing of files belongs to ``save``, whoever does it (Axolotl calls ``save_pretrained`` itself)."""
    write = getattr(owner, name)

    def written(*args: Any, **kwargs: Any) -> Any:
        with context.phases.inside("save"):
            return write(*args, **kwargs)

    setattr(owner, name, written)


def _before_resets(ledger: CudaLedger) -> None:
    """A script that resets the peaks (Axolotl does, whenever it logs) takes nothing from a phase."""
    reset = torch._C._cuda_resetPeakMemoryStats

    def reset_by_script(device: int) -> None:
        if not ledger.resets:
            ledger.read()
        reset(device)

    torch._C._cuda_resetPeakMemoryStats = reset_by_script


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0], "gpu": torch.cuda.get_device_name(0)}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def main() -> None:
    """Run, measured; the line is written whatever happens."""
    out, name, steps, *rest = sys.argv[1:]
    is_module = rest[0] == "-m"
    rest = rest[1:] if is_module else rest
    ledger = CudaLedger()
    machine: Any = SimpleNamespace(
        ledger=ledger, stub=lambda what: None, warn=lambda text: None, kept_evaluation_batches=None
    )
    phases = Phases(machine, int(steps))
    phases.repeats_end = False
    context = Context(machine, phases)
    PostImport(
        {
            "accelerate.accelerator": lambda module: training.accelerator(context, module),
            "deepspeed.runtime.engine": lambda module: deepspeed.engine(context, module),
            "safetensors.torch": lambda module: _writes(context, module, "save_file"),
            "transformers.generation.utils": lambda module: within(
                module.GenerationMixin, "generate", partial(phases.inside, "generate")
            ),
            "transformers.trainer": lambda module: training.trainer(context, module),
            "transformers.trainer_callback": lambda module: training.callbacks(context, module),
        }
    ).install()
    phases.install()
    _before_resets(ledger)
    _writes(context, torch, "save")
    data_loaders.ending(context, whole_evaluations=True)
    error = None
    try:
        run_target(Program(name=rest[0], is_module=is_module, arguments=rest[1:]))
    except StopRehearsal:
        pass
    except SystemExit as ended:
        error = None if ended.code in (None, 0) else f"exit {ended.code!r}"
    except BaseException:
        error = traceback.format_exc()[-3000:]
        traceback.print_exc()
    ledger.read()
    line = {
        "name": name,
        "phases": ledger.peaks,
        "peak_allocated_bytes": max(ledger.peaks.values(), default=0),
        "peak_reserved_bytes": ledger.reserved_bytes,
        "steps": phases.steps,
        "error": error,
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "versions": _versions(),
    }
    if os.environ.get("RANK", "0") == os.environ.get("MEASURED_RANK", "0"):
        with Path(out).open("a") as file:
            file.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    os._exit(1 if error else 0)  # no handler at exit of a distributed run may hang


main()
