"""What somebody runs today beside a plan for the same job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.domain.strategy import Candidate, label
from zerokit.errors import FileInputError, InputError
from zerokit.planner.documents import Document, Estimate, PlannedStrategy
from zerokit.planner.options import BY_NAME
from zerokit.search.explain import NOISE
from zerokit.units import format_gib, format_seconds
from zerokit.values import frozen_dataclass, replace

if TYPE_CHECKING:
    from zerokit.planner.memory_source import Say
    from zerokit.trainer_files.reading import TrainerFile

_MOST_CAUSES = 3
_TIMES = 2
"""From where on a ratio is told as such, not as a share."""


@frozen_dataclass(slots=False)
class Against(Document):
    """A configuration of the user's beside the plan.

    Attributes:
        path: of the file that says it.
        theirs: what it takes as it stands.
        chosen: the plan's choice.
    """

    path: str
    theirs: Estimate
    chosen: PlannedStrategy

    @property
    def fits(self) -> bool:
        """Whether the GPUs hold it, the assumed ones where none were named."""
        planned = self.theirs.planned
        if planned.fits is not None:
            return planned.fits
        return self.theirs.min_vram_bytes <= planned.cluster.gpu.driver_vram_bytes

    @property
    def step_seconds(self) -> float | None:
        """Its seconds for as many tokens as a step of the plan has; None where none are predicted."""
        seconds = self.theirs.step_seconds
        return None if seconds is None else seconds * self._scale

    @property
    def times_as_fast(self) -> float | None:
        """Seconds of the configuration over those of the plan; None where none are predicted."""
        seconds, own = self.step_seconds, self.chosen.estimate.step_seconds
        return seconds / own if seconds is not None and own else None

    def measured(self, seconds: float, candidate: Candidate, own_seconds: float) -> float:
        """How many times as fast a plan is for as many tokens, by the seconds that a step of each took."""
        return replace(self, chosen=replace(self.chosen, candidate=candidate))._scale * seconds / own_seconds

    @property
    def more_seconds(self) -> dict[str, float]:
        """What its step spends more, by what it is spent on; less than the plan's is negative."""
        own = self.chosen.estimate.time_parts
        parts = {name: self._scale * seconds for name, seconds in self.theirs.time_parts.items()}
        return {name: parts.get(name, 0.0) - own.get(name, 0.0) for name in {**own, **parts}}

    @property
    def words(self) -> str:
        """Say it in a line: ``2.3 times as fast as FILE, which takes 10.1 s for it: kernel launches 5.0 s
        more``."""
        if not self.fits:
            required = format_gib(self.theirs.min_vram_bytes, 1)
            return f"{self.path} does not fit as it is: {required} required per {self.chosen.device}"
        times, seconds = self.times_as_fast, self.step_seconds
        if times is None or seconds is None:
            return ""
        if abs(times - 1) < NOISE:
            return f"As fast as {self.path}"
        more = sorted(self.more_seconds.items(), key=lambda part: -part[1])[:_MOST_CAUSES]
        causes = [f"{label(name)} {format_seconds(took)}" for name, took in more if took > NOISE * seconds]
        because = f": {', '.join(causes)} more" if causes else ""
        share = f"{abs(times - 1):.0%} {'faster' if times > 1 else 'slower'} than"
        faster = f"{times:.1f} times as fast as" if times >= _TIMES else share
        return f"{faster} {self.path}, which takes {format_seconds(seconds)} for as many tokens{because}"

    PUBLISHED = ("path", "fits", "step_seconds", "times_as_fast", "more_seconds")

    def _more(self) -> dict[str, Any]:
        return {"estimate": self.theirs.to_dict()}

    @property
    def _scale(self) -> float:
        return _tokens(self.chosen) / _tokens(self.theirs.planned)


def _tokens(planned: PlannedStrategy) -> int:
    """Count those of a step."""
    return planned.strategy.global_batch * planned.job.seq_len


def compared(
    path: str | Path | None,
    file: TrainerFile | None,
    typed: Mapping[str, Any],
    planned_for: Mapping[str, Any],
    chosen: PlannedStrategy,
    model_name: str,
    say: Say | None,
) -> Against | None:
    """Estimate a configuration for a plan's job; None: the trainer's file of the plan is not modelled as it
    stands.

    Args:
        path: a DeepSpeed JSON, an accelerate YAML or another trainer's file; None: ``file`` itself.
        typed: the options that were given, by a recipe too.
        planned_for: the options of the plan, with what its trainer's file says.

    Raises:
        InputError: it cannot be read, is of another kind, trains something else, or is not modelled.
    """
    from zerokit import planner
    from zerokit.linter.files import load_deepspeed
    from zerokit.planner.trainer_file import left_beside
    from zerokit.trainer_files.reading import read_trainer_file

    if path is None and file is not None:
        try:
            traces = chosen.engine == "ddp"  # as the plan was
            found = planner.estimate(_job(typed, "global_batch"), file=file, traces=traces, say=say)
        except InputError:
            return None
        return Against(path=file.path, theirs=found, chosen=chosen)
    path, job = str(path), _job(planned_for)
    kind = kind_of(path)
    if kind == "deepspeed":
        job = left_beside(job, load_deepspeed(Path(path), strict=False).value)
        found = planner.estimate(job, deepspeed=path, say=say)
    elif kind == "accelerate":
        found = planner.estimate(job, accelerate=path, say=say)
    elif kind == "arguments":
        found = planner.estimate(_job(typed, "global_batch"), file=read_trainer_file(path), say=say)
    else:
        raise InputError(f"⟨against⟩ {path}: name a DeepSpeed JSON, an accelerate YAML or a trainer's file")
    trained = [(found.model_name, found.planned.job.method), (model_name, chosen.job.method)]
    for name, theirs, own in zip(("model", "method"), *trained, strict=True):
        if theirs != own:
            raise InputError(f"⟨against⟩ {path}: its ⟨{name}⟩ is {theirs}, the plan's {own}")
    return Against(path=path, theirs=found, chosen=chosen)


def kind_of(path: str) -> str:
    """What a file is, as ``check`` calls it; empty: nothing that it knows."""
    from zerokit.linter.files import UNKNOWN, detect_kind
    from zerokit.strictload.document import read_text

    if path.endswith(".sh"):
        return "arguments"
    try:
        return detect_kind(path, read_text(path))
    except FileInputError as error:
        if error.message != UNKNOWN:
            raise
        return ""


def _job(options: Mapping[str, Any], *said: str) -> dict[str, Any]:
    """Options without those of a strategy, and those that a file says."""
    return {
        name: value
        for name, value in options.items()
        if BY_NAME[name].group != "Strategy" and name not in ("micro_batch", "gradient_accumulation", *said)
    }
