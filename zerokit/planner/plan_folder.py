"""The folder of a plan: the DeepSpeed files, accelerate.yaml and plan.yaml."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.commands import DEFAULT_FOLDER
from zerokit.errors import InputError
from zerokit.fields import all_as_options
from zerokit.planner.documents import PlannedStrategy, per_rank


def check_folder(folder: Path) -> None:
    """Refuse an ``--out`` that is no folder and cannot become one, or where a plan's files would replace
    some that no plan wrote; makes nothing.

    Raises:
        InputError: names what is in the way.
    """
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except OSError as error:
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror or error}") from None
    if not existing.is_dir():
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {existing} is read-only here; name another")
    present = os.listdir(folder) if folder.is_dir() else ()  # noqa: PTH208 - names
    if foreign := sorted((_names_of_plans() & frozenset(present)) - _written_by_plan(folder)):
        raise InputError(
            f"⟨out⟩ {folder}: holds {', '.join(foreign)}, which no plan wrote and this one would replace; "
            f"move {'it' if len(foreign) == 1 else 'them'} away, or name another folder"
        )


def _names_of_plans() -> frozenset[str]:
    from zerokit.emit import plan_file
    from zerokit.emit.files import ACCELERATE_NAME, DEEPSPEED_NAMES

    return frozenset((*DEEPSPEED_NAMES.values(), ACCELERATE_NAME, plan_file.FILE_NAME))


def _written_by_plan(folder: Path) -> frozenset[str]:
    """Names of the files that the plan in a folder wrote; of one that is damaged, all that a plan may."""
    from zerokit.emit import plan_file

    if not (folder / plan_file.FILE_NAME).is_file():
        return frozenset()
    try:
        return _names_of_plans() & frozenset(map(str, plan_file.read(folder).files.values()))
    except InputError:
        is_other = plan_file.is_of_something_else(folder / plan_file.FILE_NAME)
        return frozenset() if is_other else _names_of_plans()


def replaced(folder: Path, request: Mapping[str, Any]) -> str | None:
    """What to say before a plan is written into a folder: which other one it replaces; None: none.

    Args:
        request: of the new plan, as :func:`write_plan` takes it.
    """
    from zerokit.emit import plan_file

    if not (folder / plan_file.FILE_NAME).is_file():
        return None
    try:
        older = plan_file.read(folder)
    except InputError:
        return f"{folder}: replaces a plan that cannot be read"
    return f"{folder}: replaces {older.title}" if older.request != dict(request) else None


def still_there(folder: Path) -> str:
    """What to say after a plan that failed: which older one a launch would take; empty: none."""
    from zerokit.emit import plan_file

    title = plan_file.title_of(folder)
    option = "" if str(folder) == DEFAULT_FOLDER else f" --plan {shlex.quote(str(folder))}"
    return f"{folder} still holds {title}, which `zerokit launch{option}` would take" if title else ""


def write_plan(
    folder: Path,
    planned: PlannedStrategy,
    request: Mapping[str, Any],
    *,
    assumptions: Sequence[str],
    measured: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Write the DeepSpeed files, accelerate.yaml and plan.yaml; returns kind → path.

    Args:
        request: the arguments that it was planned from, by option without dashes in front.
        assumptions: for people, in ``plan.yaml``.
        measured: what a trial of it measured, where one did.

    Raises:
        InputError: the folder cannot be written.
    """
    from zerokit.emit import plan_file
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.emit.files import plan_files
    from zerokit.files import write_whole
    from zerokit.linter.emitted import verify

    strategy, job, cluster = planned.strategy, planned.job, planned.cluster
    emitted = plan_files(strategy, job, nodes=cluster.nodes, folder=folder)
    verify(
        emitted.texts,
        ranks=strategy.world_size // strategy.pipeline_parallel,
        gpus_per_node=cluster.gpus_per_node,
        readers=emitted.readers(),
    )
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _written_by_plan(folder) - {*emitted.texts, plan_file.FILE_NAME}:
            (folder / name).unlink(missing_ok=True)  # of the plan that this one replaces
        for name, text in emitted.texts.items():
            write_whole(folder / name, text, through_links=True)
    except OSError as error:
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror or error}") from None
    files = {**emitted.names, "plan": plan_file.FILE_NAME}
    chosen = planned.to_dict()
    # ranks alike once: the file is read by people
    ranks = per_rank(planned.candidate.memory.ranks, world_size=0)
    chosen["estimate"]["per_rank"] = [rank.to_dict() for rank in ranks]
    if measured is not None:
        chosen["measured"] = dict(measured)
    plan_file.write(
        folder,
        request,
        chosen,
        assumptions=all_as_options(assumptions),
        reasons=emitted.reasons,
        files=files,
        cluster={"nodes": cluster.nodes, "gpu": cluster.gpu.name},
        trainer_arguments=() if job.inference else trainer_arguments(strategy, job.loss),
    )
    return {kind: str(folder / name) for kind, name in files.items()}
