"""What a plan is: the choice and what it was chosen from, typed, as ``zerokit.plan/1``, and as a folder: the
DeepSpeed files, accelerate.yaml and plan.yaml."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.commands import DEFAULT_FOLDER
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError
from zerokit.fields import all_as_options, as_options, plain
from zerokit.notes import Note
from zerokit.planner import answer, documents
from zerokit.planner.documents import (
    Document,
    PlannedStrategy,
    Read,
    Sentence,
    as_json,
    degrees,
    html_facts,
    per_rank,
)
from zerokit.search.explain import cluster_words
from zerokit.search.plan import Plan
from zerokit.units import counted
from zerokit.values import frozen_dataclass, replace

if TYPE_CHECKING:
    from zerokit.domain.script_profile import ScriptProfile
    from zerokit.planner.against import Against
    from zerokit.planner.memory_source import Say
    from zerokit.trainer_files.giving_back import Change
    from zerokit.trainer_files.reading import TrainerFile


@frozen_dataclass
class RehearsalRecord(Document):
    """One rehearsal that a plan for a script made. Bytes; ``seconds``: what it took.

    Attributes:
        stopped: why it did not go to the end; None: it did.
        probe: it was made to learn of the script; its buckets are not those of a plan.
        layers: of the model that were rehearsed, and of how many; None: all.
    """

    strategy: Strategy
    seconds: float
    peak_allocated_bytes: int | None
    min_vram_bytes: int | None
    step_seconds: float | None
    stopped: str | None
    probe: bool = False
    layers: tuple[int, int] | None = None

    PUBLISHED = ("peak_allocated_bytes", "min_vram_bytes", "step_seconds", "stopped", "probe", "layers")

    def _more(self) -> dict[str, Any]:
        return {**degrees(self.strategy), "seconds": round(self.seconds, 1)}


@frozen_dataclass(slots=False)
class PlanResult(Document):
    """The fastest strategy that fits, and what it was chosen from.

    Attributes:
        request: the arguments that were given, by option without dashes in front.
        plan: what the search found.
        job, cluster: what was planned for; the job with the batch that was settled on.
        parameters: the model's.
        files: kind → path of the files that were written.
        script: what was learnt of the script that is planned for; None: there is none.
        rehearsals: those that were made.
        added_arguments: what a launch with this plan adds to the script's own.
        script_words: the script, with its arguments, of the plan that this one was made from without it.
        trainer_file: whose job is planned; None: options alone say it.
        against: what the user runs today beside it; None: nothing was named, or it is not modelled.
        to_fix: the error of the script or its arguments that ended its rehearsal and will end a run, with its
            location; None: there is none.
    """

    request: Mapping[str, Any]
    plan: Plan
    job: Job
    cluster: Cluster
    model_name: str
    parameters: int
    files: Mapping[str, str] = field(default_factory=dict)
    script: ScriptProfile | None = None
    rehearsals: tuple[RehearsalRecord, ...] = ()
    added_arguments: tuple[str, ...] = ()
    script_words: tuple[str, ...] = ()
    trainer_file: TrainerFile | None = None
    against: Against | None = None
    to_fix: str | None = None
    _below: Callable[[PlanResult], str] = field(default=lambda _: "", compare=False, repr=False)
    """What a notebook shows under the table: the page, whose file imports this one."""

    def _planned(self, candidate: Candidate) -> PlannedStrategy:
        return PlannedStrategy(
            candidate=candidate, job=self.job, cluster=self.cluster, notes=self.plan.assumptions,
            script=self.script,
        )  # fmt: skip

    @cached_property
    def chosen(self) -> PlannedStrategy:
        """The fastest that fits."""
        return replace(self._planned(self.plan.chosen), parameters=self.parameters)

    @cached_property
    def alternatives(self) -> tuple[PlannedStrategy, ...]:
        """The next best, fastest first."""
        return tuple(self._planned(candidate) for candidate in self.plan.alternatives)

    @property
    def strategies(self) -> tuple[PlannedStrategy, ...]:
        """All that were kept (``top`` says how many), fastest first: ``chosen``, then ``alternatives``."""
        return (self.chosen, *self.alternatives)

    rejected = Read[Mapping[str, int]]("plan.rejected", "Reason → how many candidates it ruled out.")
    candidates = Read[int]("plan.candidates", "How many strategies were looked at.")
    global_batch = Read[int]("plan.global_batch", "Sequences per optimizer step.")

    assumptions = Sentence[tuple[str, ...]]("plan.assumptions", "What was assumed, in sentences.")
    faster_with = Sentence[tuple[str, ...]](
        "plan.faster_with", "What would be faster, and what it takes, in sentences."
    )
    advice = Sentence[tuple[str, ...]]("plan.advice", "What is worth knowing, in sentences.")

    def __repr__(self) -> str:
        """What a Python prompt shows: the answer in a few lines."""
        chosen = self.chosen
        return "\n".join((
            f"<Plan for {self.model_name} on {cluster_words(self.cluster)}:",
            f"  {answer.strategy(chosen.strategy)}",
            f"  {documents.batch(chosen)}",
            f"  {plain(documents.fits(chosen))}",
            *((f"  {plain(self.plan.left_idle)}",) if self.plan.left_idle else ()),
            f"  {'; '.join((documents.pace(chosen), *documents.pace_notes(chosen)))}>",
        ))  # fmt: skip

    def _repr_html_(self) -> str:
        return html_facts(self.chosen, self.model_name) + self._below(self)

    def write(self, folder: str | Path, say: Say | None = None) -> dict[str, str]:
        """Write ``ds_config.json``, ``accelerate.yaml``, ``plan.yaml`` and variants; returns kind → path.
        ``say``: hears of an older plan for something else, which this one replaces. Raises InputError: the
        folder cannot be written."""
        older = replaced(Path(folder), self.request) if say is not None else None
        if say is not None and older is not None:
            say(older)
        return write_plan(
            Path(folder), self.chosen, self.request, assumptions=self.plan.assumptions, of=self.trainer_file
        )

    @property
    def folder(self) -> str:
        """Where the plan's files are, or would be."""
        return str(Path(self.files["plan"]).parent) if self.files else DEFAULT_FOLDER

    @property
    def changes(self) -> tuple[Change, ...]:
        """What the plan changes in the trainer's file that it was made for."""
        if self.trainer_file is None:
            return ()
        return planned_changes(self.trainer_file, self.chosen, Path(self.folder))

    @property
    def launched_words(self) -> tuple[str, ...]:
        """The script, or what trains with the file that was given back; empty: not known."""
        file = self.trainer_file
        if file is not None and file.is_script:
            from zerokit.trainer_files.giving_back import changed_words

            return changed_words(file.command, self.changes)
        if file is None or "trainer_file" not in self.files:
            return self.script_words
        return tuple(self.files["trainer_file"] if word == file.path else word for word in file.command)

    def run_command(self, folder: str, words: Sequence[str]) -> str:
        """What is typed next, with the plan's folder and a script's words."""
        of_trainer = self.trainer_file is not None
        return answer.run_command(self.chosen.strategy, self.cluster, folder, words, of_trainer=of_trainer)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was assumed and is worth knowing, with arguments marked (:mod:`zerokit.fields`)."""
        return (*self.plan.assumptions, *self.plan.advice)

    @property
    def script_must(self) -> tuple[str, ...]:
        """What the figures count on and only the training script can do, in sentences."""
        if self.trainer_file is not None:  # which says it, or is changed
            return ()
        return answer.script_must(self.plan.chosen.strategy, self.job)

    SCHEMA = "zerokit.plan/1"
    PUBLISHED = (
        "request", "chosen", "alternatives", "global_batch", "assumptions", "faster_with", "advice", "notes",
        "script_must", "files",
    )  # fmt: skip

    def _more(self) -> dict[str, Any]:
        of_script = ("rehearsals", "added_arguments", "to_fix") if self.script is not None else ()
        of_file = {"trainer_file": self._of_file()} if self.trainer_file is not None else {}
        beside = {"against": self.against.to_dict()} if self.against is not None else {}
        return {
            "rejected": {as_options(reason): count for reason, count in self.rejected.items()},
            "search": {"candidates": self.candidates, "seconds": self.plan.seconds},
            **of_file,
            **beside,
            **{name: as_json(getattr(self, name)) for name in of_script},
        }

    def _of_file(self) -> dict[str, Any]:
        assert self.trainer_file is not None
        return {**self.trainer_file.to_dict(), "changes": [change.to_dict() for change in self.changes]}


def check_folder(folder: Path) -> None:
    """Refuse an ``--out`` that is no folder and cannot become one, or where a plan's files would replace some
    that no plan wrote; makes nothing. Raises InputError: names what is in the way."""
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
    from zerokit.emit.files import NAMES

    return NAMES | {plan_file.FILE_NAME}


def _written_by_plan(folder: Path) -> frozenset[str]:
    """Names of the files that the plan in a folder wrote; of one that is damaged, all that a plan may."""
    from zerokit.emit import plan_file

    if not (folder / plan_file.FILE_NAME).is_file():
        return frozenset()
    try:
        files = plan_file.read(folder).files
        own = {str(files["trainer_file"])} if "trainer_file" in files else set()
        return (_names_of_plans() | own) & frozenset(map(str, files.values()))
    except InputError:
        is_other = plan_file.is_of_something_else(folder / plan_file.FILE_NAME)
        return frozenset() if is_other else _names_of_plans()


def planned_changes(file: TrainerFile, planned: PlannedStrategy, folder: Path) -> tuple[Change, ...]:
    """What a plan changes in a trainer's file; ``folder``: where its DeepSpeed file is, as it is typed."""
    from zerokit.emit.files import plan_files
    from zerokit.trainer_files.giving_back import changes

    strategy = planned.strategy
    names = plan_files(strategy, planned.job, nodes=planned.cluster.nodes, folder=folder).names
    name = names.get("deepspeed_trainer") or names.get("deepspeed")
    config = None if name is None else str(folder / name)
    batch = f"{strategy.global_batch} sequences a step on {counted(strategy.world_size, 'GPU')}"
    wanted: dict[str, tuple[Any, str]] = {
        "micro_batch": (strategy.settings.micro_batch, f"the fastest that fits, at {batch}"),
        "gradient_accumulation": (strategy.settings.gradient_accumulation, f"for {batch}"),
        "checkpointing": (strategy.checkpointing, "needed to fit, or faster with the batch that it allows"),
    }
    if strategy.checkpointing == "none":
        wanted["checkpointing"] = ("none", "everything fits without it, which is faster")
    wanted["deepspeed"] = (config, f"{strategy.settings.title}, as planned")
    return changes(file, wanted)


def _refuse_conflicts(file: TrainerFile, changed: Sequence[Change]) -> None:
    """Raise InputError: the trainer refuses a file with these changes, though not as it is."""
    from zerokit.linter.trainer_conflicts import conflicts

    new = dict(file.document.value) | {change.key: change.after for change in changed}
    before = [conflict for conflict, _ in conflicts(file.trainer.name, file.document.value)]
    for conflict, _ in conflicts(file.trainer.name, {k: v for k, v in new.items() if v is not None}):
        if conflict not in before:
            keys = ", ".join(change.key for change in changed)
            raise InputError(
                f"{file.path}: {conflict.what}, once the plan has changed {keys}, and {file.trainer.name} "
                f"refuses that; {conflict.fix}"
            )


def replaced(folder: Path, request: Mapping[str, Any]) -> str | None:
    """What to say before a plan is written into a folder: which other one it replaces; None: none.
    ``request``: of the new plan, as :func:`write_plan` takes it."""
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
    of: TrainerFile | None = None,
) -> dict[str, str]:
    """Write the DeepSpeed files, accelerate.yaml and plan.yaml; returns kind → path.

    Args:
        request: the arguments that it was planned from, by option without dashes in front.
        assumptions: for people, in ``plan.yaml``.
        measured: what a trial of it measured, where one did.
        of: the trainer's file that it was planned from, which is given back with the plan's values.

    Raises:
        InputError: the folder cannot be written, or holds the file itself.
    """
    from zerokit.emit import plan_file
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.emit.files import plan_files
    from zerokit.files import write_whole

    strategy, job, cluster = planned.strategy, planned.job, planned.cluster
    emitted = plan_files(strategy, job, nodes=cluster.nodes, folder=folder)
    check_folder(folder)
    texts, names = dict(emitted.texts), dict(emitted.names)
    if of is not None and not of.is_script:
        from zerokit.trainer_files.giving_back import changed_text

        names["trainer_file"] = name = Path(of.path).name
        if (folder / name).exists() and name not in _written_by_plan(folder):
            raise InputError(f"⟨out⟩ {folder}: holds a {name} that no plan wrote; name another folder")
        changed = planned_changes(of, planned, folder)
        texts[name] = changed_text(of.document, changed)
        _refuse_conflicts(of, changed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _written_by_plan(folder) - {*texts, plan_file.FILE_NAME}:
            (folder / name).unlink(missing_ok=True)  # of the plan that this one replaces
        for name, text in texts.items():
            write_whole(folder / name, text, through_links=True)
    except OSError as error:
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror or error}") from None
    files = {**names, "plan": plan_file.FILE_NAME}
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
        trainer_arguments=() if job.inference else trainer_arguments(strategy, job),
    )
    return {kind: str(folder / name) for kind, name in files.items()}
