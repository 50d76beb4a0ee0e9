"""``--deep``: ask the real ``deepspeed.initialize``, for every rank, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from zerokit.errors import INSTALL_TRAINING, InputError
from zerokit.temporary import temporary_folder

MAX_RANKS = 8
"""Ranks tried per case; of more, the first, the last and some between."""

ENGINE = pathlib.Path(__file__).with_name("deep_engine.py")
"""Reads questions and answers them until there are no more."""
_START_SECONDS = 120
_RANK_SECONDS = 30
_OF_A_LAUNCH = re.compile(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PYTHONPATH|PYTHONSTARTUP)$"
    "|ACCELERATE_|FSDP_|PARALLELISM_CONFIG_|OMPI_"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCase:
    """One configuration and the ranks to build it for.

    Attributes:
        mode: ``initialize`` builds the engine on every rank; ``classes`` only reads the configuration with
            DeepSpeed's classes; ``accelerate`` loads the YAML at ``path`` as ``accelerate launch`` does.
        key_value_heads: of the stand-in model when tensor parallel.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "initialize"
    path: str | None = None
    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: int = 1
    key_value_heads: int | None = None

    @property
    def ranks(self) -> list[int]:
        """Ranks to try."""
        if self.mode != "initialize":
            return [0]
        if self.world_size <= MAX_RANKS:
            return list(range(self.world_size))
        step = (self.world_size - 1) / (MAX_RANKS - 1)
        return sorted({round(index * step) for index in range(MAX_RANKS)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepResult:
    """What DeepSpeed said: an error and the ranks that met it, or what it built."""

    error: str | None
    ranks_failed: tuple[int, ...]
    built: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every rank was built."""
        return self.error is None


def available() -> str | None:
    """Why ``--deep`` cannot run here; ``None`` when it can."""
    for name in ("torch", "deepspeed"):
        if importlib.util.find_spec(name) is None:
            return f"--deep needs {name}; install it with: {INSTALL_TRAINING}"
    if not hasattr(os, "fork"):
        return "--deep needs an operating system with fork"
    return None


def run_deep(cases: Sequence[DeepCase]) -> list[DeepResult]:
    """Build every case's engine for every rank. About 10 s to start, then 1 s per rank. Raises InputError:
    DeepSpeed is not installed, or did not start or answer."""
    reason = available()
    if reason is not None:
        raise InputError(reason)
    limit = _START_SECONDS + _RANK_SECONDS * sum(len(case.ranks) for case in cases)
    with temporary_folder("deep") as folder:
        try:
            done = subprocess.run(
                [sys.executable, str(ENGINE)],
                input=question(cases),
                capture_output=True,
                text=True,
                timeout=limit,
                cwd=folder,
                env=environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"--deep: DeepSpeed did not answer within {limit} s") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(cases):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"--deep: DeepSpeed could not be started: {last}")
    return [answer(line) for line in lines]


def question(cases: Sequence[DeepCase]) -> str:
    """The line that the engine reads for these cases."""
    requests = [
        {
            **asdict(case),
            "path": case.path and str(pathlib.Path(case.path).resolve()),
            "folder": str(pathlib.Path.cwd()),
            "ranks": case.ranks,
        }
        for case in cases
    ]
    return json.dumps(requests) + "\n"


def environment() -> dict[str, str]:
    """This environment without what would turn the stand-in ranks into a real launch."""
    variables = {name: value for name, value in os.environ.items() if not _OF_A_LAUNCH.match(name)}
    return variables | {
        "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


def answer(line: str) -> DeepResult:
    """What the engine's line on a case says."""
    answers: Sequence[Mapping[str, Any]] = json.loads(line)
    failed = [answer for answer in answers if not answer["ok"]]
    error = f"{failed[0]['error']}: {failed[0]['message']}" if failed else None
    ranks_failed = tuple(answer["rank"] for answer in failed)
    return DeepResult(error=error, ranks_failed=ranks_failed, built={} if failed else answers[0])
