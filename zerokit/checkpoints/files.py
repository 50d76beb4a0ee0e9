"""What a checkpoint's files are, as their names and sizes tell. Nothing of them is run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zerokit.errors import InputError
from zerokit.files import open_regular
from zerokit.units import counted
from zerokit.values import frozen_dataclass

_STATES = re.compile(r"(?:bf16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")
_SHARDED_MODEL = "pytorch_model_fsdp_"
UNIVERSAL = "_universal"
"""Ends the name of a converted folder, as DeepSpeed's own examples have it."""


@frozen_dataclass
class ZeroFiles:
    """One that ZeRO divided: ``folder`` holds its files, of ``ranks`` ranks.

    Attributes:
        states: bytes of each rank's optimizer states, with the fp32 weights.
        models: bytes of the other files that a conversion copies.
        unsupported: what its file names tell that is neither converted nor tested; empty: nothing.
    """

    folder: Path
    ranks: int
    states: tuple[int, ...]
    models: tuple[int, ...]
    unsupported: str = ""

    @property
    def universal(self) -> Path:
        """Where the same is, as a universal checkpoint."""
        return self.folder.with_name(f"{self.folder.name}{UNIVERSAL}")

    @property
    def is_converted(self) -> bool:
        """Whether the universal one was made of these files: a later run may have written them anew."""
        written = max(path.stat().st_mtime for path in self.folder.iterdir())
        return self.universal.is_dir() and self.universal.stat().st_mtime >= written


def zero_files(checkpoint: Path) -> ZeroFiles | None:
    """ZeRO's files in a checkpoint's folder or one below it (DeepSpeed 0.19.8, runtime/engine.py:4302); None:
    there are none. Raises InputError: several engines', a rank's are missing, or one is no regular file."""
    found = [
        (path, match)
        for path in sorted(checkpoint.rglob("*_optim_states.pt"))
        if (match := _STATES.fullmatch(path.name))
    ]
    if not found:
        return None
    folders = sorted({path.parent for path, _ in found})
    if len(folders) > 1:
        named = list(dict.fromkeys(one if one.parent == checkpoint else one.parent for one in folders))
        first = ", ".join(map(str, named[:3]))  # the configuration lies beside a Trainer's
        raise InputError(
            f"{checkpoint} holds {len(folders)} folders of ZeRO's files: name one ({first}"
            f"{', …' if len(named) > 3 else ''})"
        )
    folder, numbers = folders[0], sorted({int(match["rank"]) for _, match in found})
    ranks = len(numbers)
    if numbers != list(range(ranks)):
        raise InputError(
            f"{folder}: files of {counted(ranks, 'rank')} are here, and the last is of rank {numbers[-1]}: "
            "bring those of the other machines into the same folder"
        )
    models = folder.glob("*_model_states.pt")
    return ZeroFiles(
        folder=folder,
        ranks=ranks,
        states=tuple(size_of(path) for path, _ in found),
        models=tuple(map(size_of, models)),
        unsupported=_unsupported(folder, {int(match["mp"]) for _, match in found}),
    )


def size_of(path: Path) -> int:
    """Read how many bytes a file has that PyTorch is to read. Raises InputError: a pipe, say, in its place,
    of which PyTorch would wait for the end."""
    try:
        with open_regular(path, os.sep) as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _unsupported(folder: Path, model_parallel: set[int]) -> str:
    if any(folder.glob("layer_*_expert_*")) or any(folder.glob("expp_rank_*")):
        return "experts that DeepSpeed's MoE divides"
    if any(folder.glob("layer_*-model_states.pt")) or any(folder.glob("layer_*_model_*.pt")):
        return "stages of a pipeline"
    if len(model_parallel) > 1:
        return f"weights that {len(model_parallel)} tensor parallel ranks divide"
    return "states offloaded to NVMe" if (folder / "offloaded_tensors").exists() else ""


def sharded_model(checkpoint: Path) -> Path | None:
    """Where FSDP's sharded weights are (Accelerate 1.15, utils/fsdp_utils.py:174); None: there are none."""
    return next((path for path in sorted(checkpoint.glob(f"{_SHARDED_MODEL}*")) if path.is_dir()), None)
