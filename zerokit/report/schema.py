"""``report.json``: the types that it is written from and read back into, and the words for how runs and
ranks ended."""

from __future__ import annotations

import json
import math
import signal as signals
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from zerokit.domain.job import Lora
from zerokit.errors import ExitCode, FileInputError
from zerokit.files import read_regular
from zerokit.messages import printable


class Outcome(str, Enum):
    """``report.json``'s ``outcome``. Each row: its name, what it means for people, and the exit code of the
    command (an interrupted run ends with 128 and the signal's number instead)."""

    text: str
    exit_code: int

    OK = "ok", "every rank finished"
    NOT_AS_PLANNED = (
        "not_as_planned", "the script ended well, but did not do what the plan says", ExitCode.NOT_AS_PLANNED,
    )  # fmt: skip
    TRAINED_OTHERWISE = (
        "trained_otherwise", "the script ended well, but trained nothing, or otherwise than its code says",
        ExitCode.NOT_AS_PLANNED,
    )  # fmt: skip
    RANK_FAILED = "rank_failed", "a rank failed", ExitCode.RANK_FAILED
    OOM = "oom", "out of memory", ExitCode.RANK_FAILED
    HUNG = "hung", "no progress within the heartbeat", ExitCode.HUNG
    LAUNCHER_LOST = (
        "launcher_lost", "the launcher was lost, or a rank left no complete report", ExitCode.LAUNCHER_LOST,
    )  # fmt: skip
    INTERRUPTED = "interrupted", "interrupted"
    # after the number of steps that was ordered: no failure, and no finished training
    STOPPED = "stopped", "stopped at its step limit"
    TIMED_OUT = "timed_out", "ended at its time limit", ExitCode.HUNG
    RUNNING = "running", "still running"  # never written to a file

    def __new__(cls, name: str, text: str = "", exit_code: int = ExitCode.DONE) -> Outcome:
        member = str.__new__(cls, name)
        member._value_, member.text, member.exit_code = name, text, exit_code
        return member

    def __str__(self) -> str:
        return str(self.value)

    @property
    def words(self) -> str:
        """Its name, for people: ``not as planned``."""
        return str(self).replace("_", " ")

    @property
    def is_whole(self) -> bool:
        """Whether the script ended as it meant to, or where it was told to stop."""
        return self in (
            Outcome.OK, Outcome.NOT_AS_PLANNED, Outcome.TRAINED_OTHERWISE, Outcome.STOPPED, Outcome.RUNNING,
        )  # fmt: skip

    def because(self, why: str | None) -> str:
        """Its name and the reason, in one sentence that says nothing twice: ``rank failed: rank 1 …``."""
        if not why:
            return self.words
        return why if why.startswith(self.words) else f"{self.words}: {why}"


class RankState(str, Enum):
    """``report.json``'s ``state`` of a rank."""

    FINISHED = "finished"
    STOPPED = "stopped"  # at the step limit
    FAILED = "failed"
    TERMINATED = "terminated"  # by zerokit, or by a peer's failure
    LOST = "lost"  # nothing says how it ended
    RUNNING = "running"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_good(self) -> bool:
        """Whether the rank did all that it was to do."""
        return self in (RankState.FINISHED, RankState.STOPPED)


def signal_name(number: int | None) -> str:
    """``SIGKILL``; ``signal 70`` for those without a name; empty for none."""
    if number is None:
        return ""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


SCHEMA: Final = "zerokit.report/1"
_MOST_BYTES = 256 << 20

Bytes = Annotated[int, Field(ge=0, le=1 << 62)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
OutcomeName = Annotated[Outcome, Field(strict=False)]  # a string in JSON
StateName = Annotated[RankState, Field(strict=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in ``report.json``: what was given, and nothing for what was not."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Pair(_Part):
    """A prediction, what was measured, and the error as a fraction of what was measured."""

    predicted: Number | None = None
    measured: Number | None = None
    error_fraction: Number | None = None


class RankPair(Pair):
    """The peak of one rank."""

    rank: Count


class Difference(_Part):
    """One thing that ran otherwise than planned: ``text`` says both values, ``option`` is that of ``zerokit
    plan`` and ``estimate``, if any, and ``lora`` the adapters that ran, where they are the difference."""

    what: str
    planned: str
    ran: str
    option: str | None = None
    text: str
    lora: SkipValidation[Lora | None] = Field(default=None, exclude=True)


class BareLoop(_Part):
    """Figures of a plan that was not rehearsed with the run's script, beside what its fullest rank measured.

    ``basis``: of the plan's memory figures. ``rehearsed_with``: the script that the plan was rehearsed with,
    where that was another command.
    """

    peak_bytes: Pair | None = None
    phases: dict[str, Pair] = {}
    step_seconds: Pair | None = None
    basis: str | None = None
    rehearsed_with: str | None = None


class Predicted(_Part):
    """Predicted beside measured, for the fullest rank.

    ``predicted_for``: ``plan``, ``what ran`` (predicted again), or None where the run was not what the
    plan predicts, so that nothing is compared. Reports of older versions compare with the plan.
    ``predicted_by``: what that rests on: the ``plan``, the ``estimate`` of a plan for what ran, or a
    ``rehearsal`` of the command. ``not_predicted``: why there is neither, and ``rehearse_command`` the
    command that would predict it. ``bare_loop``: the plan's figures, where they are of a bare training loop
    and the run's script allocated otherwise: what is compared is then a rehearsal, where there is one.
    ``components``: predicted bytes at the peak of each phase, by what they are. ``plan_options``:
    words of the options that plan for what ran, beside ``--recipe`` and the run's ``plan.yaml``.
    ``plan_folder``: of the plan that ran, as it was named; None where it does not last or is not known.
    ``rehearsed_with``: the command that the plan was rehearsed with, where another ran.
    """

    kind: Literal["gpu_memory", "host_memory"]
    rank: Count
    peak_bytes: Pair | None = None
    baseline_bytes: Bytes | None = None
    phases: dict[str, Pair] = {}
    components: dict[str, dict[str, Bytes]] = {}
    step_seconds: Pair | None = None
    min_vram_bytes: Bytes | None = None
    per_rank: list[RankPair] = []
    note: str | None = None
    differences: list[Difference] = []
    predicted_for: Literal["plan", "what ran"] | None = "plan"
    predicted_by: Literal["plan", "estimate", "rehearsal"] | None = None
    not_predicted: str | None = None
    rehearse_command: str | None = None
    bare_loop: BareLoop | None = None
    plan_options: list[str] = []
    plan_folder: str | None = None
    rehearsed_with: str | None = None


class Leak(_Part):
    """Memory that grew from step to step."""

    memory: Literal["gpu", "host"]
    bytes_per_step: Number
    growth_bytes: Bytes
    first_step: Count
    last_step: Count


class LiveBlock(_Part):
    """One live block of the GPU allocator when memory ran out."""

    bytes: Bytes
    name: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None


class OutOfMemory(_Part):
    """An allocation that failed and ended its rank."""

    memory: str = "gpu"
    asked_bytes: Bytes | None = None
    device_free_bytes: Bytes | None = None
    device_total_bytes: Bytes | None = None
    allocated_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    fragmentation_bytes: int | None = None
    predicted_peak_allocated_bytes: Bytes | None = None
    measured_peak_allocated_bytes: Bytes | None = None
    measured_peak_host_rss_bytes: Bytes | None = None
    predicted_components: dict[str, int] = {}
    biggest_blocks: list[LiveBlock] = []
    killer: bool = False


class NextPlan(_Part):
    """What would fit after an out-of-memory. ``to_give``: the batch, to a script that fixes its own."""

    folder: str | None = None
    to_give: str | None = None
    limit_bytes: int | None = None
    min_vram_bytes: Bytes | None = None
    why: str | None = None
    strategy: dict[str, Any] = {}


class RehearsedRun(_Part):
    """A rehearsal of the command that ran out of memory. ``stopped``: why it has no whole answer."""

    peak_allocated_bytes: Bytes | None = None
    peak_phase: str | None = None
    min_vram_bytes: Bytes | None = None
    fits: bool | None = None
    stopped: str | None = None


class Failure(_Part):
    """The failure that came first.

    ``last_line``: of the rank's standard error, where an exit code is all that it left.
    """

    rank: Count
    host: str
    kind: str
    error: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    phase: str | None = None
    step: Count | None = None
    at: Number | None = None
    traceback: str | None = None
    last_line: str | None = None
    oom: OutOfMemory | None = None
    next_plan: NextPlan | None = None
    no_next_plan: str | None = None
    try_next: list[str] = []
    rehearsed: RehearsedRun | None = None


class Retry(_Part):
    """A further attempt, with a smaller plan or from a checkpoint; its folder is below the first run's."""

    folder: str
    outcome: OutcomeName
    exit_code: int
    changes: str | None = None


class Event(_Part):
    """Something that happened to a rank: ``at`` seconds after its process began, ``times`` in a row.

    ``what``: ``evaluation``, ``generation``, ``save``, ``retry``, ``oom``, ``skipped step``.
    """

    at: Annotated[float, Field(ge=0, le=1e300)]
    what: str
    times: Count = 1


class RankReport(_Part):
    """One rank of a run. Sizes in bytes; None where there is no GPU or nothing is known.

    ``started_at``: Unix seconds, when its process began; the timeline and the events count from then.
    """

    rank: Count
    host: str
    state: StateName
    signal: int | None = None
    exit_code: int | None = None
    error: str | None = None
    reported: bool = True
    device: str | None = None
    not_measured: str | None = None
    not_measured_fix: str | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    peak_device_used_bytes: Bytes | None = None
    device_total_bytes: Bytes | None = None
    device_name: str | None = None
    fragmentation_bytes: int | None = None
    alloc_retries: Count | None = None
    peak_host_rss_bytes: Bytes = 0
    baseline_host_rss_bytes: Bytes | None = None
    peak_phase: str | None = None
    phases: dict[str, Bytes] = {}
    phase_details: dict[str, dict[str, Any]] = {}
    predicted_peak_allocated_bytes: Bytes | None = None
    predicted_peak_phase: str | None = None
    predicted_phases: dict[str, Any] = {}
    predicted_components: dict[str, Any] = {}
    steps: Count = 0
    steps_counted_by: Literal["engine", "optimizer"] = "engine"
    micro_steps: Count = 0
    most_micro_steps: Count = 0
    phase: str | None = None
    median_step_seconds: Number | None = None
    engine: dict[str, Any] | None = None
    timed: dict[str, Any] | None = None
    leaks: list[Leak] = []
    last_heard_at: Number | None = None
    restarts: Count = 0
    notes: list[dict[str, Any]] = []
    timeline: list[list[Any]] = []
    timeline_fields: list[str] = []
    events: list[Event] = []
    started_at: Number | None = None


_MAY_PASS = frozenset({"data_loader", "compilation", "child_process", "lock", "input_output", "storage",
                       "sleep", "elsewhere", "network"})  # fmt: skip


class Hang(_Part):
    """Why a run hung: ``kind`` for programs, ``what`` (ranks, collective, location) and ``fix`` for people,
    and the ranks to blame."""

    kind: str
    what: str
    fix: str
    ranks: Annotated[tuple[Count, ...], Field(strict=False)] = ()

    @property
    def may_pass(self) -> bool:
        """Whether it may be slow, and no hang: a rank waits for something outside the run."""
        return self.kind in _MAY_PASS

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"


class RunNote(_Part):
    """What makes a training doubtful; ``id`` stays, though the figures of ``text`` change, which says
    what was seen, and after a semicolon what to do. An ``error``: the run trained nothing, or something else
    than its code says, and is no success."""

    id: str
    level: Literal["error", "warning"]
    text: str
    topic: str = "training"

    @property
    def is_certain(self) -> bool:
        """Whether it is no success."""
        return self.level == "error"

    @property
    def what(self) -> str:
        """What was seen, without the advice."""
        return self.text.partition("; ")[0]


class RunReport(_Part):
    """One run. ``why``: the outcome in one sentence; ``started_at``: Unix seconds; ``exit_code``: 0 while
    ``outcome`` is ``running``, which says nothing yet; ``resume``: the newest checkpoint of a run that ended
    early, and how to go on from it."""

    schema_: Literal["zerokit.report/1"] = Field(alias="schema")
    zerokit: str | None = None
    outcome: OutcomeName
    exit_code: int
    why: str | None = None
    script: str | None = None
    device: str | None = None
    started_at: Number | None = None
    elapsed_seconds: Number | None = None
    expected_ranks: Count | None = None
    ranks: list[RankReport]
    first_failure: Failure | None = None
    predicted_vs_measured: Predicted | None = None
    problems: list[str] = []
    notes: list[RunNote] = []
    retries: list[Retry] = []
    retry_of: str | None = None
    hang: Hang | None = None
    resume: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether it is GPU memory that the report is of, measured or not."""
        return any(rank.device == "cuda" or rank.peak_allocated_bytes is not None for rank in self.ranks)

    @property
    def gpu_measured(self) -> bool:
        """Whether any rank measured GPU memory."""
        return any(rank.peak_allocated_bytes is not None for rank in self.ranks)

    @property
    def expected_bytes(self) -> dict[int, float | None]:
        """The predicted peak of each rank, of the kind of memory that was measured."""
        predicted = self.predicted_vs_measured
        return {pair.rank: pair.predicted for pair in predicted.per_rank} if predicted else {}


_Model = TypeVar("_Model", bound=_Part)


def checked(model: type[_Model], values: Mapping[str, Any], name: str, problems: list[str]) -> _Model:
    """A part of a report from what a stranger's or a broken file held: a field that cannot be is left out,
    with a sentence in ``problems`` on ``name``. Raises ValidationError: a required field cannot be."""
    clean = plain(values)
    try:
        return model.model_validate(clean)
    except ValidationError as error:
        first = {str(part["loc"][0]): part for part in reversed(error.errors())}
    for part in first.values():
        key = ".".join(str(step) for step in part["loc"])
        problems.append(f"{name}: {key} cannot be used: {part['msg']}")
    return model.model_validate({key: value for key, value in clean.items() if key not in first})


def plain(value: Any) -> Any:
    """``value`` with only what JSON, a terminal and a page can hold.

    Numbers that are not finite become None. Control characters (an escape sequence in an exception's
    text would reach the reader's terminal) and lone surrogates (file names that are not UTF-8) are
    shown as ``\\x1b`` and the like.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def load_report(path: Path) -> RunReport:
    """Read and check a ``report.json``. Raises FileInputError: it is missing, damaged, or not a report."""
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise FileInputError(path, str(error.strerror)) from error
    try:
        report = plain(json.loads(data, parse_float=_finite, parse_constant=_finite))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise FileInputError(path, f"is not JSON: is it damaged? ({error})", line) from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise FileInputError(path, f"is not a zerokit report (schema {SCHEMA})")
    try:
        return RunReport.model_validate(report)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(str(part) for part in first["loc"])
        raise FileInputError(path, f"{key_path}: {first['msg']}") from error
