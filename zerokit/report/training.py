"""What is wrong with a training that goes on, and ends well as processes: by the ranks' own counts."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.domain.settings import SETTINGS, is_equal
from zerokit.report.schema import RunNote
from zerokit.units import counted, format_seconds

_Ticks = Mapping[int, Mapping[str, Any]]

_WARN_SHARE = 0.2  # of the steps; fewer are a loss scale that is being found
_FEWEST = 3
_SAME_LOSSES = 10
_MOST_OF = 0.9  # of a run: what is so in its last steps alone may be a training that has converged


def finding(id: str, text: str, *, is_certain: bool = False) -> RunNote:
    """A note on the training; ``is_certain``: it makes the run no success."""
    level: Literal["error", "warning"] = "error" if is_certain else "warning"
    return RunNote(id=id, level=level, topic="training", text=text)


def findings(ticks: _Ticks, *, is_accepted: bool = False) -> list[RunNote]:
    """What the newest account of each rank says of the training, the certain first. ``is_accepted``: values
    of the code that the run does not have were accepted."""
    found = [
        *_skipped(ticks), *_losses(ticks), *_same_batches(ticks),
        *of_script(ticks, is_accepted=is_accepted),
    ]  # fmt: skip
    return sorted(found, key=lambda note: not note.is_certain)


def _account(tick: Mapping[str, Any], name: str = "learning") -> Mapping[str, Any]:
    account = tick.get(name)
    return account if isinstance(account, dict) else {}


def _count(tick: Mapping[str, Any], name: str) -> int:
    value = _account(tick).get(name)
    return value if isinstance(value, int) else 0


def _most(ticks: _Ticks, name: str) -> tuple[int, int]:
    count, rank = max(((_count(tick, name), -rank) for rank, tick in ticks.items()), default=(0, 0))
    return count, -rank


def _everywhere(ticks: _Ticks, name: str, of: str, fewest: int = _FEWEST) -> bool:
    """Whether it was so on each rank that saw any, and nearly all the time."""
    saw = [tick for tick in ticks.values() if _count(tick, of)]
    return bool(saw) and all(_count(tick, name) >= max(fewest, _MOST_OF * _count(tick, of)) for tick in saw)


def _losses(ticks: _Ticks) -> Iterator[RunNote]:
    """Losses that are unusable, or always the same, and steps that change nothing."""
    count, rank = _most(ticks, "not_finite")
    if count >= _FEWEST:
        text = (
            f"the loss is not finite (rank {rank}, the last {count} backward passes); look for NaN in the "
            "data, a division by zero (labels that are all ignored), or a learning rate that is too high"
        )
        saw = [tick for tick in ticks.values() if _count(tick, "losses")]
        yield finding(
            id="loss-not-finite", text=text,
            is_certain=all(_count(tick, "not_finite") >= _FEWEST for tick in saw),
        )  # fmt: skip
    count, rank = _most(ticks, "zero_gradients")
    zero = count >= _FEWEST
    if zero:
        text = (
            f"the gradients are zero (rank {rank}, the last {count} steps): nothing is learned; look for "
            "labels that are all ignored, a loss cut off from the model (detach, no_grad), or frozen weights"
        )
        certain = _everywhere(ticks, "zero_gradients", "norms")
        yield finding(id="gradients-zero", text=text, is_certain=certain)
    count, rank = _most(ticks, "zero_rates")
    zero_rate = _everywhere(ticks, "zero_rates", "rates") and count == _count(ticks[rank], "rates")
    if zero_rate:
        text = (
            f"the learning rate was 0 in all {count} steps (rank {rank}): the weights never changed; give "
            "the optimizer a learning rate, and step the scheduler that warms it up"
        )
        yield finding(id="learning-rate-zero", text=text, is_certain=True)
    count, rank = _most(ticks, "same")
    if count >= _SAME_LOSSES and not zero:
        text = (
            f"the loss is the same to the last digit (rank {rank}, {count} backward passes): nothing seems "
            "to be learned; look at the learning rate, the optimizer's parameters and skipped steps"
        )
        # a loss may rightly be one number (GRPO's, on its own samples); then gradients and weights are not
        certain = _everywhere(ticks, "same", "losses", _SAME_LOSSES)
        certain = certain and any(
            _everywhere(ticks, f"same_{of}", of, _SAME_LOSSES) for of in ("norms", "weights")
        )
        yield finding(id="loss-constant", text=text, is_certain=certain)


def _same_batches(ticks: _Ticks) -> Iterator[RunNote]:
    """Data-parallel ranks whose first losses are the same; tensor parallel peers rightly have the same."""
    batches = {
        (account.get("first_losses"), account.get("data_parallel"))
        for account in map(_account, ticks.values())
    }
    if len(ticks) < 2 or len(batches) != 1:
        return
    losses, data_parallel = batches.pop()
    if not isinstance(losses, str) or data_parallel != len(ticks):
        return
    yield finding(
        id="same-batches",
        text=f"all {len(ticks)} ranks computed the same losses from the first on: they seem to read the same "
        "batches, which trains no more than one rank would; give each rank its own part of the data "
        "(DistributedSampler, another seed, or training_data of deepspeed.initialize)",
    )


def _skipped(ticks: _Ticks) -> Iterator[RunNote]:
    counts = [
        (int(tick.get("skipped_steps") or 0), int(tick.get("steps") or 0), rank)
        for rank, tick in sorted(ticks.items())
    ]
    skipped, steps, rank = max(counts, default=(0, 0, 0))
    if skipped < _FEWEST or skipped < _WARN_SHARE * steps:
        return
    if skipped >= steps:
        fault = f"all {steps} optimizer steps were skipped (rank {rank}): the weights never changed"
    else:
        fault = f"{skipped} of {steps} optimizer steps were skipped (rank {rank})"
    yield finding(
        id="steps-skipped",
        text=f"{fault}; DeepSpeed skips a step whose gradients are not finite. Use bf16, a lower learning "
        "rate or initial_scale_power, or look for NaN in the data",
        is_certain=skipped >= steps,
    )


# ---- what the script does with its engine


def of_script(ticks: _Ticks, *, is_accepted: bool = False) -> Iterator[RunNote]:
    """What a script does that its engine does otherwise, by the first rank that saw it."""
    for name, tell in _OF_SCRIPT.items():
        facts = next(
            (facts for tick in ticks.values() if (facts := _account(tick, "training").get(name))), None
        )
        note = None
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):  # a damaged file
            note = tell(facts, ticks) if facts else None
        if note is not None:
            accepted = is_accepted and name in ("asked", "clipping")
            yield note if not accepted else finding(note.id, note.text)


def _lost(facts: Mapping[str, Any], _: _Ticks) -> RunNote:
    passes, lost, stage = facts["passes"], facts["lost"], facts["stage"]
    kept = "only the last one's count" if lost == passes - 1 else f"those of {lost} are lost"
    text = (
        f"of the gradients of {passes} backward passes in a step {kept} ({facts['steps']} of "
        f"{counted(facts['of'], 'step')}): DeepSpeed's ZeRO-{stage} overwrites them where the engine "
        "accumulates less than the script; set gradient_accumulation_steps to the passes of a step and call "
        "engine.step() after each, or call engine.set_gradient_accumulation_boundary(is_last) before each"
    )
    return finding(id="gradients-overwritten", text=text, is_certain=True)


def _short(facts: Mapping[str, Any], _: _Ticks) -> RunNote | None:
    passes, accumulation, steps = facts["passes"], facts["accumulation"], facts["steps"]
    if steps < _FEWEST:
        return None
    text = (
        f"each of the {steps} steps took {counted(passes, 'backward pass', 'backward passes')}, and "
        f"DeepSpeed divides each by gradient_accumulation_steps {accumulation}: the gradients are "
        f"{passes}/{accumulation} of what they should be; use `with accelerator.accumulate(model)`, or "
        f"set gradient_accumulation_steps to {passes}"
    )
    return finding(id="gradients-divided", text=text, is_certain=True)


def _unasked(facts: Mapping[str, Any], _: _Ticks) -> RunNote | None:
    steps, asked = facts["steps"], facts["asked"]
    if steps < _FEWEST:
        return None
    text = (
        f"DeepSpeed made {steps} optimizer steps where the script asked for {asked}: accelerator.backward "
        "steps by itself; accumulate with `with accelerator.accumulate(model)`, and set "
        "gradient_accumulation_steps in Accelerator and in the DeepSpeed file"
    )
    return finding(id="steps-unasked", text=text, is_certain=True)


def _asked(asked: Sequence[Mapping[str, Any]], _: _Ticks) -> RunNote | None:
    # an accumulation of one is what Accelerate has where nobody says it, and right for `accumulate`
    said = (one for one in asked if (one["setting"], one["code"]) != ("gradient_accumulation", 1))
    unlike = [one for one in said if not is_equal(one["engine"], one["code"])]
    if not unlike:
        return None
    told = (
        f"{one['location']}: {one['call']}, and the run had {SETTINGS[one['setting']].label} {one['engine']}"
        for one in unlike
    )
    names = {one["setting"] for one in unlike}
    return finding(
        id="accumulation-ignored" if names == {"gradient_accumulation"} else "setting-ignored",
        text=f"{', '.join(told)}: the DeepSpeed configuration counts; give both the same value",
        is_certain=True,
    )


def _clipping(facts: Mapping[str, Any], ticks: _Ticks) -> RunNote:
    limit, ran = facts["limit"], facts["ran"]
    has = f"gradient_clipping {ran:g}" if ran else "no gradient_clipping"
    fix = f"set gradient_clipping to {limit:g} there" if facts["is_norm"] else "set gradient_clipping there"
    text = (
        f"{facts['location']}: {facts['call']} does nothing under DeepSpeed, whose configuration has {has}; "
        f"{fix} (Accelerate makes 'auto', or none in its YAML, 1.0)"
    )
    norms = [
        norm for tick in ticks.values() if isinstance(norm := _account(tick).get("most_norm"), int | float)
    ]
    reached = max(norms, default=0.0) > min(limit, ran or limit)  # else neither would have clipped
    return finding(id="clipping-ignored", text=text, is_certain=reached and not facts.get("by_trainer"))


def _saves(saves: Sequence[Mapping[str, Any]], _: _Ticks) -> RunNote:
    facts = saves[0]
    lacks = (
        f"{facts['empty']:,} of {facts['tensors']:,} tensors are empty"
        if "empty" in facts
        else f"{facts['elements']:,} of the model's {facts['of']:,} values are there"
    )
    more = f", and {counted(len(saves) - 1, 'more file')} alike" if len(saves) > 1 else ""
    text = (
        f"{facts['path']} does not hold the weights: {lacks}{more}, as ZeRO-3 leaves a rank a part of each; "
        "save what accelerator.get_state_dict(model) returns on all ranks, or call engine.save_16bit_model "
        "(stage3_gather_16bit_weights_on_model_save) on all ranks"
    )
    return finding(id="saved-weights-empty", text=text, is_certain=True)


_OF_SCRIPT: Mapping[str, Any] = {
    "lost": _lost, "short": _short, "unasked": _unasked, "asked": _asked,
    "clipping": _clipping, "saves": _saves,
}  # fmt: skip
"""By the name of the facts in a rank's records (``zerokit.instrument.training_facts``)."""


_SHARE = 0.15  # of the time since the first step
_SECONDS_A_STEP = 0.02
_FEWEST_STEPS = 4
_FEWEST_SAMPLES = 3
_OF_SAMPLES = 0.75  # in which that rank must wait least
_Phases = Mapping[str, tuple[float, float]]
_Work = Mapping[int, _Phases]
"""Seconds of each rank's phases, and those of them that it waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """``seconds``: that the others wait for ``rank`` in each step; ``phase``: where its own time goes.
    ``factor``: its own time, without waits, over the others' median; None: theirs is nothing."""

    rank: int
    seconds: float
    share: float
    phase: str
    factor: float | None

    def __str__(self) -> str:
        location = "between steps (data, logging)" if self.phase == "other" else f"in {self.phase}"
        own = f"; its own work takes {self.factor:.1f} times theirs" if self.factor else ""
        return (
            f"the others wait for rank {self.rank}: {format_seconds(self.seconds)} a step "
            f"({self.share:.0%} of their time), which it spends {location}{own}; look at what it alone does, "
            "at its batches, and at other processes on its cores or GPU"
        )


def find_straggler(ticks: Mapping[int, Mapping[str, Any]]) -> Straggler | None:
    """The rank that waits least, where the others wait for it; None where nobody does or nobody tells.

    Each rank's newest record has in ``work`` seconds and waited seconds of each phase since the first step,
    in ``sampled_work`` those of steps by their number (:mod:`zerokit.launcher.rank.waits`). One rank saves
    for all by design: what the others wait for that is none of a step.
    """
    if len(ticks) < 2:
        return None
    samples = {
        rank: {
            str(step): one
            for step, phases in _account(tick, "sampled_work").items()
            if (one := _work(phases))
        }
        for rank, tick in ticks.items()
    }
    if any(samples.values()):
        return _of_samples(samples)
    work = {rank: phase_seconds for rank, tick in ticks.items() if (phase_seconds := _work(tick.get("work")))}
    steps = min((int(ticks[rank].get("steps") or 0) for rank in work), default=0) - 1
    if len(work) < len(ticks) or steps < _FEWEST_STEPS:
        return None
    return _waited_for(work, steps)


def why_unknown(ticks: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why the GPUs did not measure who waits for whom; None where they did, or nothing is known."""
    for rank, tick in sorted(ticks.items()):
        sampling = tick.get("sampling")
        if isinstance(sampling, dict) and (reason := sampling.get("why_not")):
            return f"who waits for whom was not measured: {str(reason)[:200]} (rank {rank})"
    return None


def _of_samples(samples: Mapping[int, Mapping[str, _Phases]]) -> Straggler | None:
    """From the steps that all ranks sampled; one that is slow now and then is none."""
    common = set.intersection(*(set(steps) for steps in samples.values()))
    if len(common) < _FEWEST_SAMPLES:
        return None
    straggler = _waited_for(
        {rank: _sum([steps[step] for step in common]) for rank, steps in samples.items()}, len(common)
    )
    if straggler is None:
        return None
    waited = [
        {rank: sum(w for _, w in steps[step].values()) for rank, steps in samples.items()} for step in common
    ]
    least = sum(min(seconds, key=lambda rank: seconds[rank]) == straggler.rank for seconds in waited)
    return straggler if least >= _OF_SAMPLES * len(common) else None


def _sum(works: list[_Phases]) -> _Phases:
    total: dict[str, tuple[float, float]] = {}
    for work in works:
        for name, (seconds, waited) in work.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = before[0] + seconds, before[1] + waited
    return {name: total[name] for name in sorted(total)}


def _waited_for(work: _Work, steps: int) -> Straggler | None:
    saved = _seconds_longer(work, "save")
    waited = {
        rank: max(0.0, sum(wait for _, wait in phases.values()) - (sum(saved.values()) - saved[rank]))
        for rank, phases in work.items()
    }
    least = min(waited, key=lambda rank: waited[rank])
    rest = [rank for rank in work if rank != least]
    total = statistics.median(sum(seconds for seconds, _ in work[rank].values()) for rank in rest)
    held_up = statistics.median(waited[rank] for rank in rest) - waited[least]
    if total <= 0 or held_up < _SHARE * total or held_up < _SECONDS_A_STEP * steps:
        return None

    phases = [name for name in work[least] if name != "save"]
    phase = max(phases, key=lambda name: _seconds_longer(work, name)[least], default="other")
    own = {
        rank: sum(seconds - wait for name, (seconds, wait) in phases.items() if name != "save")
        for rank, phases in work.items()
    }
    usual = statistics.median(own[rank] for rank in rest)
    return Straggler(
        rank=least, seconds=held_up / steps, share=held_up / total, phase=phase,
        factor=own[least] / usual if usual > 0 else None,
    )  # fmt: skip


def _seconds_longer(work: _Work, phase: str) -> dict[int, float]:
    """How much longer than half of the ranks (of two: than the other) each works in a phase; or 0."""
    own = {rank: seconds - wait for rank in work for seconds, wait in [work[rank].get(phase, (0.0, 0.0))]}
    usual = statistics.median_low(own.values())
    return {rank: max(0.0, seconds - usual) for rank, seconds in own.items()}


def _work(value: object) -> dict[str, tuple[float, float]]:
    if not isinstance(value, dict):
        return {}
    return {
        str(name): (float(pair[0]), float(pair[1]))
        for name, pair in value.items()
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, int | float) for part in pair)
    }
