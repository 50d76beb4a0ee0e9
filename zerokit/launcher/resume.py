"""``--resume RUN``: from which checkpoint of another run a launch goes on, and its plan for as many ranks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.checkpoints.files import zero_files
from zerokit.domain.planned import global_batch
from zerokit.emit import plan_file
from zerokit.emit.files import ACCELERATE_NAME, DEEPSPEED_NAMES
from zerokit.errors import FileInputError, InputError, NothingFits, about
from zerokit.fields import Say
from zerokit.launcher.checkpoint import ResumePoint, newest_checkpoint
from zerokit.launcher.locks import is_launch_alive
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank_file import find_rank_files, read_rank_file
from zerokit.launcher.restarts import NoRestart, resumed
from zerokit.launcher.run_folder import COMMAND_FILE
from zerokit.script import reader
from zerokit.strictload import load_json, load_yaml
from zerokit.temporary import make_folder
from zerokit.units import counted

_ATTEMPT = re.compile(r"(?:retry|restart)-(\d+)")


def is_run(folder: Path) -> bool:
    """Whether `zerokit launch` wrote this folder."""
    return (folder / COMMAND_FILE).is_file()


def point_of(run: Path) -> ResumePoint:
    """The newest whole checkpoint of a run that is over, or of its last attempt that wrote one. Raises
    InputError: it still runs, is no run, or has none."""
    if not is_run(run):
        raise InputError(f"{run}: not a run folder, as `zerokit launch` writes them")
    if is_launch_alive(run):
        raise InputError(f"{run}: this run is not over; `zerokit watch` shows it")
    for folder in _attempts(run):
        ranks = _expected_ranks(folder)
        logs = {log.rank: log for log in map(read_rank_file, find_rank_files(folder))}
        checkpoint = newest_checkpoint(logs, ranks)
        if checkpoint is not None:
            return ResumePoint(checkpoint=checkpoint, ranks=ranks, zero=zero_files(checkpoint.path))
    raise InputError(f"{run}: no checkpoint there that every rank finished writing")


def _attempts(run: Path) -> Iterator[Path]:
    """The run's folders, the last attempt's first."""
    numbered = [(int(match[1]), path) for path in run.iterdir() if (match := _ATTEMPT.fullmatch(path.name))]
    yield from (path for _, path in sorted(numbered, reverse=True))
    yield run


def _expected_ranks(folder: Path) -> int:
    with suppress(OSError, ValueError, TypeError, KeyError):
        return int(json.loads((folder / COMMAND_FILE).read_bytes())["expected_ranks"])
    return 0


def plan_for_ranks(
    folder: str, ranks: int | None, plan_into: Callable[[Mapping[str, Any], Path], None], say: Say
) -> str:
    """The plan, made again for so many ranks where it is for others: the same strategy and global batch, and
    the batch size per GPU, too, where that fits. Raises InputError: its file was edited. NothingFits: the
    strategy does not fit so many."""
    with about("plan"):
        plan = plan_file.read(folder)
    if ranks is None or ranks == plan.world_size:
        return folder
    is_fsdp2 = plan.engine == "fsdp2"
    own = plan.folder / (ACCELERATE_NAME if is_fsdp2 else DEEPSPEED_NAMES["raw"])
    planned = plan.chosen.get("accelerate_config" if is_fsdp2 else "deepspeed_config")
    if own.is_file() and (load_yaml if is_fsdp2 else load_json)(own).value != planned:
        raise FileInputError(
            own,
            f"was changed after the plan was made, for {counted(plan.world_size, 'rank')}: plan again for "
            f"⟨gpus⟩ {ranks}, with ⟨global_batch⟩ {global_batch(plan.chosen)}",
        )
    chosen, batch = plan.chosen, global_batch(plan.chosen)
    shared = plan.world_size // chosen["data_parallel"]  # ranks that train on the same sequences
    if batch * shared % ranks:
        able = [number for number in range(shared, batch * shared + 1, shared) if not batch * shared % number]
        near = [*[one for one in able if one < ranks][-1:], *[one for one in able if one > ranks][:1]]
        raise InputError(
            f"⟨gpus⟩ {ranks}: a run goes on with the global batch that it had, and {batch} cannot be divided "
            f"evenly over so many; use ⟨gpus⟩ {' or '.join(map(str, near))}"
        )
    kept = {
        "gpus": ranks,
        "global-batch": batch,
        "checkpointing": chosen.get("activation_checkpointing"),
        "precision": chosen["precision"],
        "zero": chosen.get("zero_stage"),
        "offload-optimizer": chosen.get("offload_optimizer") if chosen.get("zero_stage") else None,
        "offload-param": chosen.get("offload_param") if chosen.get("zero_stage") else None,
    }
    request = {
        name.replace("-", "_"): value
        for name, value in plan.request.items()
        if name not in ("nodes", "gradient-accumulation", "micro-batch")
    }
    request |= {name.replace("-", "_"): str(value) for name, value in kept.items() if value is not None}
    again = make_folder("plan")
    try:
        plan_into({**request, "micro_batch": str(chosen["micro_batch"])}, again)
    except NothingFits:
        plan_into(request, again)
    made = plan_file.read(again).chosen
    say(
        f"{folder} was made for {counted(plan.world_size, 'rank')}; made again for {ranks}: batch size per "
        f"GPU {made['micro_batch']}, gradient accumulation {made['gradient_accumulation']}, global batch "
        f"{global_batch(made)} as before"
    )
    return str(again)


def resuming(
    options: LaunchOptions, plan_into: Callable[[Mapping[str, Any], Path], None], say: Say
) -> LaunchOptions:
    """The launch that goes on where the run that ``resume`` names has its newest checkpoint. Raises
    InputError: there is none, or it is not known how the script takes it. NothingFits: the plan's strategy
    does not fit so many ranks."""
    point = point_of(Path(os.fspath(options.resume or "")))
    script_options = reader.read_target(options.target).options
    try:
        told = resumed(options, point.checkpoint, script_options)
    except NoRestart as error:
        raise InputError(f"⟨resume⟩: {error}") from None
    plan = told.plan and plan_for_ranks(told.plan, told.ranks, plan_into, say)
    return replace(told, plan=plan, point=point)
