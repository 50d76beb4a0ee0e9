"""Converting a checkpoint: what it needs, why it cannot be, and the conversion itself, by DeepSpeed's and
Accelerate's own tools in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerokit.checkpoints.files import ZeroFiles, sharded_model, size_of, zero_files
from zerokit.domain.deepspeed_settings import CONVERTS_ADAPTERS, DEEPSPEED_VERSION
from zerokit.errors import InputError, NothingFits
from zerokit.files import write_whole
from zerokit.machine.host import detect_host
from zerokit.units import GIB, counted, few, format_gib
from zerokit.values import frozen_dataclass

_MOST_WORKERS = 4  # ds_to_universal's own default (DeepSpeed 0.19.8)
_PROCESS_BYTES = GIB // 2
"""Python with torch and DeepSpeed, and small tensors. 100M weights of four ranks took 0.97 and 1.52 GiB
(ZeRO-2, one worker and four) and 0.71 and 1.47 GiB (ZeRO-3)."""
_FILE_BYTES = 4096  # of a file beside its tensor, at most
_SHARD_BYTES = 5 * 10**9  # of zero_to_fp32's files, which it makes one at a time
_NO_ADAM = (
    "its optimizer keeps {}, and DeepSpeed's converter knows the states of Adam alone (exp_avg, exp_avg_sq)"
)


@frozen_dataclass
class Needs:
    """What a conversion takes, in bytes: of the disk while it runs and afterwards, of host memory."""

    disk_bytes: int
    kept_bytes: int
    host_bytes: int
    workers: int = 1

    def __str__(self) -> str:
        with_workers = f" with {counted(self.workers, 'worker')}" if self.workers > 1 else ""
        after = "" if self.kept_bytes == self.disk_bytes else f" ({format_gib(self.kept_bytes)} afterwards)"
        return (
            f"{format_gib(self.disk_bytes)} of disk{after} and "
            f"{format_gib(self.host_bytes)} of host memory{with_workers}"
        )

    def check(self, what: str, out: Path) -> None:
        """Raises NothingFits: the disk or the host's memory has no room for it; InputError: nothing can be
        written there."""
        folder = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InputError(f"{what} needs a folder that it can write to, and cannot write to {folder}")
        free, available = shutil.disk_usage(folder).free, detect_host().ram_available_bytes
        if self.disk_bytes > free:
            raise NothingFits(
                f"{what} needs {format_gib(self.disk_bytes)} of disk at {folder}, which has "
                f"{format_gib(free)} free: make room there"
            )
        if available is not None and self.host_bytes > available:
            raise NothingFits(
                f"{what} needs {format_gib(self.host_bytes)} of host memory, and {format_gib(available)} are "
                "available: convert on a machine with more"
            )


def to_universal_needs(files: ZeroFiles, facts: dict[str, Any]) -> Needs:
    """What a universal checkpoint takes to make, with as many workers as the host has room for.

    Disk: the states once as fragments of each rank and once joined, four files of each weight; the models are
    copied when the fragments are gone. Host: each worker holds a rank's states and a piece of them; two join
    the largest weight each; a file of weights is read whole (checkpoint/ds_to_universal.py, 0.19.8).
    """
    largest, files_bytes = facts["largest"], facts["names"] * 4 * _FILE_BYTES
    states, models = sum(files.states) + files_bytes, sum(files.models)
    kept = states + models + max(files.states)  # ZeRO-3 keeps the first rank's in optimizer_state.pt
    each, available = max(files.states) + 4 * largest, detect_host().ram_available_bytes or 0
    beside = max(2 * max(files.models, default=0), 2 * 2 * 4 * largest)
    most = min(_MOST_WORKERS, files.ranks, max(1, (available - _PROCESS_BYTES) // each))
    return Needs(
        disk_bytes=max(2 * states + files.ranks * files_bytes + max(files.states), kept),
        kept_bytes=kept,
        host_bytes=_PROCESS_BYTES + max(most * each, beside),
        workers=most,
    )


def why_not_universal(files: ZeroFiles, facts: dict[str, Any]) -> str | None:
    """Why it cannot go on with another number of ranks; None: it can."""
    if files.unsupported:
        return f"it holds {files.unsupported}"
    if facts["mics"]:
        return f"MiCS divided it among {facts['mics']} ranks each"
    if facts["ranks"] != files.ranks:
        return (
            f"{facts['ranks']} ranks wrote it, and files of {files.ranks} are there: bring what is "
            "missing, or remove what another run left"
        )
    if not facts["is_adam"]:
        return _NO_ADAM.format(few(facts["states"]) or "no states")
    if facts["buffers"]:
        return f"the model saves buffers, which DeepSpeed does not load from it: {few(facts['buffers'])}"
    return None


def zero_facts(files: ZeroFiles) -> dict[str, Any]:
    """What the files say; see :func:`zerokit.checkpoints.in_torch.zero_facts`. Raises InputError: they cannot
    be read."""
    facts: dict[str, Any] = _in_torch("zero_facts", str(files.folder))
    return facts


def scheduler_steps(folder: Path) -> list[int]:
    """How far each learning rate schedule has counted that ``Accelerator.save_state`` wrote."""
    sizes = [size_of(path) for path in folder.glob("scheduler*.bin")]
    steps: list[int] = _in_torch("scheduler_steps", str(folder)) if sizes else []
    return steps


def make_universal(files: ZeroFiles, workers: int) -> None:
    """Convert it, beside itself, whole or not at all; where another process has meanwhile, its result stays.
    Raises InputError: the converter failed."""
    part = files.universal.with_name(f"{files.universal.name}.part-{os.getpid()}")
    try:
        _in_torch("to_universal", str(files.folder), str(part), str(workers))
        if not files.is_converted:
            shutil.rmtree(files.universal, ignore_errors=True)
            part.rename(files.universal)
        write_whole(files.folder.parent / "latest_universal", files.universal.name.encode())
    except InputError as error:  # 0.16.9 converts ZeRO-3 with one group of parameters alone
        error.reword(
            f"{error.marked}; resume it on {files.ranks}, or take DeepSpeed {DEEPSPEED_VERSION}, whose "
            "converter knows more"
        )
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


@frozen_dataclass
class Weights:
    """What writes plain weights of a ``checkpoint``'s folder, and what that needs."""

    checkpoint: Path
    task: tuple[str, ...]
    needs: Needs

    @classmethod
    def of(cls, checkpoint: Path) -> Weights:
        """Read a checkpoint that ZeRO or FSDP divided. Raises InputError: there is none, or of adapters."""
        if not checkpoint.is_dir():
            raise InputError(f"{checkpoint}: no such folder; give a run's, or a checkpoint's")
        files, sharded = zero_files(checkpoint), sharded_model(checkpoint)
        if any(checkpoint.glob("adapter_*")) or (files is not None and zero_facts(files)["adapters"]):
            raise InputError(
                f"{checkpoint} holds adapters, and only whole models are converted: a Trainer's lie there as "
                f"PeftModel.from_pretrained loads them; of others, {CONVERTS_ADAPTERS} writes them"
            )
        if files is not None and files.unsupported:
            raise InputError(f"{files.folder} holds {files.unsupported}, which is not converted")
        if files is not None:
            facts = zero_facts(files)
            size, largest = 4 * facts["weights"], 4 * facts["largest"]
            shard = min(size, max(_SHARD_BYTES, largest))
            task: tuple[str, ...] = ("zero_to_weights", str(files.folder.parent), files.folder.name)
        elif sharded is not None:
            size = shard = largest = sum(size_of(path) for path in sharded.iterdir() if not path.is_dir())
            task = ("sharded_to_weights", str(sharded))
        else:
            raise InputError(
                f"{checkpoint}: neither ZeRO nor FSDP divided it; from_pretrained loads a Trainer's as it is"
            )
        needs = Needs(disk_bytes=size, kept_bytes=size, host_bytes=_PROCESS_BYTES + shard + largest)
        return cls(checkpoint=checkpoint, task=task, needs=needs)

    def write(self, out: Path, *, dry_run: bool = False) -> list[str]:
        """Write them, with the checkpoint's configuration and tokenizer; returns the names of the files, none
        of a dry run. Raises InputError: the folder is not empty, the model's configuration is missing, or the
        tool failed. Raises NothingFits: there is no room."""
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"⟨out⟩ {out}: not empty; name a new folder")
        beside = [path for path in self.checkpoint.iterdir() if path.suffix in _BESIDE_WEIGHTS]
        if not any(path.name == "config.json" for path in beside):
            raise InputError(
                f"{self.checkpoint} holds no config.json, without which nothing loads the weights: put the "
                "model's there"
            )
        self.needs.check("writing the weights", out)
        if dry_run:
            return []
        existed = out.exists()
        try:
            _in_torch(*self.task, str(out))
            for path in beside:
                if not path.name.endswith(_NOT_BESIDE):
                    shutil.copy2(path, out)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            if existed:
                out.mkdir(exist_ok=True)
            raise
        return sorted(path.name for path in out.iterdir())


_BESIDE_WEIGHTS = (".json", ".jinja", ".model", ".txt")
_NOT_BESIDE = ("trainer_state.json", ".index.json")


_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")


def _in_torch(*task: str) -> Any:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "zerokit.checkpoints.in_torch", *task]
    process = subprocess.Popen(
        command, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = process.communicate()
    finally:  # its workers are in its group: interrupted, they would write on into a folder that is removed
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = (errors.strip() or f"exit code {process.returncode}").splitlines()
        why = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])
        raise InputError(f"{task[1]}: {task[0]} failed: {why}")
    return json.loads(output.strip().splitlines()[-1])
