"""What a run is compared with, and why not with its plan: for the terminal and the page."""

from __future__ import annotations

from zerokit.report.bare_loop import MOST_FRACTION, is_far, is_off
from zerokit.report.figure_text import percent, seconds, size
from zerokit.report.schema import BareLoop, Predicted


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
    if is_off(predicted.model_dump()):
        end = f"the rehearsal is off by more than {MOST_FRACTION:.0%} too"
    else:
        end = "the script allocates otherwise"
    head = f"predicted by a rehearsal of the command: {why_bare(loop)}; {end}. The plan's figures:"
    return [head, *_plan_rows(loop)]


def _of_script(predicted: Predicted) -> list[str]:
    """Why no rehearsal predicts the script, and the command that would; empty where one does."""
    lines = [f"the script was not predicted: {predicted.not_predicted}"] if predicted.not_predicted else []
    return [*lines, *([f"to predict it: {predicted.rehearse_command}"] if predicted.rehearse_command else [])]


def _plan_rows(loop: BareLoop) -> list[str]:
    """The plan's peak and step time, and the phases in which it was off."""
    phases = {name: pair for name, pair in loop.phases.items() if is_far(pair.model_dump())}
    pairs = [*phases.items(), *([("peak", loop.peak_bytes)] if loop.peak_bytes else [])]
    rows = [(name, size(pair.predicted), size(pair.measured), pair) for name, pair in pairs]
    if loop.step_seconds and loop.step_seconds.predicted:
        step = loop.step_seconds
        rows.append(("step time", seconds(step.predicted), seconds(step.measured), step))
    return [
        f"  {name} {planned}, measured {observed} ({percent(pair.error_fraction)})"
        for name, planned, observed, pair in rows
    ]
