"""A report in words, for terminal and page: figures, what a run is compared with, its first failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.memory.components import label
from zerokit.report.measured import MOST_FRACTION, is_far, is_off
from zerokit.report.schema import BareLoop, Failure, LiveBlock, OutOfMemory, Predicted, RunReport
from zerokit.units import MIB, counted, format_gib, format_seconds
from zerokit.values import frozen_dataclass

TO_NEED_LESS = "to need less"
"""Stands before each way in the terminal and on the page."""


def size(value: int | float | None) -> str:
    """A size for people; a dash where it is unknown."""
    return "–" if value is None else format_gib(value)


def percent(value: float | None) -> str:
    """A signed error such as ``+1.3 %``."""
    return "–" if value is None else f"{value * 100:+.1f} %"


def seconds(value: float | None) -> str:
    """A duration for people; a dash where it is unknown."""
    return "–" if value is None else format_seconds(value)


_SOMETHING_BYTES = MIB
"""Of GPU memory: less is the process group's own (1 KiB on an H200), not the script's."""

_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")
_MOST_ROWS = 6
_MOST_LINES, _FIRST_LINES, _LAST_LINES = 14, 6, 6
"""Of an exception's message that is shown without its traceback."""


def failure_place(failure: Failure) -> str:
    """``rank 3 on node-1, in backward of step 12``; ``…, in eval after step 12``."""
    location = f"rank {failure.rank} on {failure.host}"
    if failure.phase is None:
        return location
    location += f", in {failure.phase}"
    if failure.phase in TRAINING_PHASES:
        return location if failure.step is None else f"{location} of step {failure.step}"
    return f"{location} after step {failure.step}" if failure.step else location


def raised_at(failure: Failure) -> str | None:
    """``raised at /home/me/train.py:25, in main``: the innermost line of code that no library holds. Of an
    exception that was raised while another was handled, the one that ended the rank counts."""
    _, _, last = (failure.traceback or "").rpartition("Traceback (most recent call last)")
    frames = [match for line in last.splitlines() if (match := _FRAME.match(line))]
    own = [frame for frame in frames if not _LIBRARIES.search(frame["path"])]
    if not own:
        return None
    word = "raised at" if own[-1] is frames[-1] else "raised in a library, called from"
    name = "" if own[-1]["name"] == "<module>" else f", in {own[-1]['name']}"
    return f"{word} {own[-1]['path']}:{own[-1]['line']}{name}"


@frozen_dataclass
class Said:
    """A line about a failure; with ``rows``, the heading above them."""

    text: str
    rows: tuple[str, ...] = ()


def failure_lines(failure: Failure) -> list[Said]:
    """What held memory, beside its :func:`sizes` and the :func:`next_plan`; of an exit code the rank's last
    line."""
    oom = failure.oom
    if oom is None:
        said = failure.last_line
        return [Said(text=f"the last line of its standard error: {said}")] if said else []
    lines = []
    if oom.predicted_peak_allocated_bytes is not None and oom.memory == "gpu":
        parts = sorted(oom.predicted_components.items(), key=lambda item: -item[1])[:_MOST_ROWS]
        lines += _under("predicted at the peak", [f"{label(name)} {size(value)}" for name, value in parts])
    blocks = Counter(map(_block, oom.biggest_blocks)).items()
    repeated = [text if count == 1 else f"{count} × {text}" for text, count in blocks]
    lines += _under("largest live blocks", repeated[:_MOST_ROWS])
    if oom.killer:
        killer = "the kernel's out-of-memory killer ended it: the host's memory ran out, not the GPU's"
        lines.append(Said(text=killer))
    lines += [Said(text=text) for text in _rehearsed_lines(failure)]
    return lines + _under(TO_NEED_LESS, failure.try_next)


def _under(heading: str, rows: Sequence[str]) -> list[Said]:
    return [Said(text=f"{heading}:", rows=tuple(rows))] if rows else []


def sizes(failure: Failure) -> list[str]:
    """How much was asked for, free and taken; of the host's memory what the rank's process held."""
    oom, lines = failure.oom or OutOfMemory(memory="gpu"), list[str]()
    if oom.memory == "host" and oom.measured_peak_host_rss_bytes:
        lines.append(f"its process held {size(oom.measured_peak_host_rss_bytes)}")
    if oom.asked_bytes is not None:
        free, total = oom.device_free_bytes, oom.device_total_bytes
        of = f" of {size(total)}" if total else ""
        left = f"; {size(free)}{of} were free on the device" if free is not None else ""
        lines.append(f"asked for {size(oom.asked_bytes)}{left}")
    if oom.allocated_bytes is not None:
        lines.append(
            f"allocated {size(oom.allocated_bytes)}, reserved {size(oom.reserved_bytes)}, "
            f"of that fragmentation {size(oom.fragmentation_bytes)}"
        )
    if oom.predicted_peak_allocated_bytes is not None and oom.memory == "gpu":
        lines.append(
            f"predicted peak {size(oom.predicted_peak_allocated_bytes)}, "
            f"measured until then {size(oom.measured_peak_allocated_bytes)}"
        )
    return lines


def _block(block: LiveBlock) -> str:
    about = [block.name, block.dtype, str(block.shape) if block.shape is not None else None]
    return " ".join([size(block.bytes), *(text for text in about if text)])


def next_plan(failure: Failure) -> list[str]:
    """The plan that would fit, where it lies and what it asks of the script; or why there is none."""
    following = failure.next_plan
    if following is None:
        return [f"no next plan: {failure.no_next_plan}"] if failure.no_next_plan else []
    lines = [f"next plan that would fit, needing {size(following.min_vram_bytes)}: {following.why}"]
    if following.folder:
        lines.append(f"it is in {following.folder}/ of the run folder, for `zerokit launch --plan`")
    if following.to_give:
        lines.append(f"give the script, which fixes its own batch: {following.to_give}")
    return lines


def _rehearsed_lines(failure: Failure) -> list[str]:
    """What a rehearsal of the command says."""
    rehearsed = failure.rehearsed
    if rehearsed is None:
        return []
    if rehearsed.peak_allocated_bytes is None:
        return [f"a rehearsal of this command has no answer: {rehearsed.stopped}"]
    verdict = {True: "it would fit", False: "it does not fit", None: "not known whether it fits"}[
        rehearsed.fits
    ]
    part = f" until it stopped ({rehearsed.stopped})" if rehearsed.stopped else ""
    return [
        f"a rehearsal of this command: peak allocated {size(rehearsed.peak_allocated_bytes)} in "
        f"{rehearsed.peak_phase}{part}, {size(rehearsed.min_vram_bytes)} required, {verdict}"
        + ("; another process, or fragmentation, took the rest" if rehearsed.fits else "")
    ]


def shortened(message: str) -> str:
    """An exception's message, indented; of a very long one its beginning and its end."""
    lines = message.splitlines()
    if len(lines) > _MOST_LINES:
        omitted = len(lines) - _FIRST_LINES - _LAST_LINES
        lines[_FIRST_LINES:-_LAST_LINES] = [
            f"… ({counted(omitted, 'more line')} in report.json and in its output)"
        ]
    return "\n".join("  " + line for line in lines)


def failed_in_load(run: RunReport) -> bool:
    """Whether a script's error ended the run before there was anything to measure. What was killed, or ran
    out of memory, may have done so by what it loaded."""
    failure = run.first_failure
    if failure is None or failure.oom is not None or failure.kind not in ("exception", "exit"):
        return False
    return not any(
        rank.steps or (rank.peak_allocated_bytes or 0) >= _SOMETHING_BYTES or set(rank.phases) - {"load"}
        for rank in run.ranks
    )


def difference_lines(predicted: Predicted) -> list[str]:
    """What ran otherwise than planned, and what that means for the comparison; empty where nothing did."""
    if not predicted.differences:
        return _bare_loop_lines(predicted, predicted.bare_loop) if predicted.bare_loop else []
    texts = [difference.text for difference in predicted.differences]
    if predicted.rehearsed_with:
        texts.append(_with_another_command(predicted.rehearsed_with))
    if predicted.predicted_for == "what ran":
        by = ", by a rehearsal of the command" if predicted.predicted_by == "rehearsal" else ""
        return [
            f"predicted again for what ran, which is not the plan's job{by}:",
            *(f"  {text}" for text in texts),
            *_of_script(predicted),
        ]
    lines = ["not compared with the plan, whose prediction is of another job:", *(f"  {t}" for t in texts)]
    if predicted.not_predicted:
        lines.append(f"what ran was not predicted again: {predicted.not_predicted}")
    if predicted.rehearse_command:
        lines.append(f"to predict it as it ran, otherwise than the plan: {predicted.rehearse_command}")
    return lines


def why_bare(loop: BareLoop) -> str:
    """Why a plan's figures are not those of the run's script, in a sentence without its full stop."""
    if loop.rehearsed_with:
        return _with_another_command(loop.rehearsed_with)
    form = ", in closed form" if loop.basis == "analytic" else ""
    return f"the plan was not rehearsed with this script, and describes a bare training loop{form}"


def _with_another_command(rehearsed_with: str) -> str:
    return f"the plan was rehearsed with another command ({rehearsed_with})"


def _bare_loop_lines(predicted: Predicted, loop: BareLoop) -> list[str]:
    if predicted.predicted_by != "rehearsal":
        return [f"{why_bare(loop)}: the script allocates otherwise", *_of_script(predicted)]
    is_far_off = is_off(predicted.model_dump())
    end = (
        f"the rehearsal is off by more than {MOST_FRACTION:.0%} too"
        if is_far_off
        else "the script allocates otherwise"
    )
    phases = {name: pair for name, pair in loop.phases.items() if is_far(pair.model_dump())}
    pairs = [*phases.items(), *([("peak", loop.peak_bytes)] if loop.peak_bytes else [])]
    rows = [(name, size(pair.predicted), size(pair.measured), pair) for name, pair in pairs]
    if (step := loop.step_seconds) and step.predicted:
        rows.append(("step time", seconds(step.predicted), seconds(step.measured), step))
    return [
        f"predicted by a rehearsal of the command: {why_bare(loop)}; {end}. The plan's figures:",
        *(
            f"  {name} {planned}, measured {observed} ({percent(pair.error_fraction)})"
            for name, planned, observed, pair in rows
        ),
    ]


def _of_script(predicted: Predicted) -> list[str]:
    """Why no rehearsal predicts the script, and the command that would; empty where one does."""
    lines = [f"the script was not predicted: {predicted.not_predicted}"] if predicted.not_predicted else []
    return [*lines, *([f"to predict it: {predicted.rehearse_command}"] if predicted.rehearse_command else [])]
