"""The pass through a reference model, without a graph, while the policy's activations wait for backward.

Under full checkpointing a layer's forward keeps nothing but its input, so that pass is the checkpointed one
without these inputs: TRL's DPO runs it so (trl/trainer/dpo_trainer.py:1327, 1.16, ``torch.no_grad``), and
computes the loss of its log-probabilities in the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.activations import ActivationTrace, Pass, Run, Timeline
from zerokit.domain.partial_sums import Processors
from zerokit.memory.fused_loss import LossSize, fused_loss, head_marks
from zerokit.memory.rank_model import RankModel
from zerokit.values import replace


def with_reference(
    model: RankModel,
    checkpointed: ActivationTrace,
    timeline: Timeline,
    point: tuple[int, int],
    size: LossSize | None,
    processors: Processors | None,
) -> Timeline:
    """The timeline with the pass through a reference model of the same shape.

    Args:
        checkpointed: the trace under full checkpointing.
        point: sequences and tokens of each.
        size: of the loss, where it is not the model's own.
    """
    forward = checkpointed.timeline(*point, processors).forward
    highest = _without_adapters(checkpointed, forward)
    peaks, start = [], None
    for run, first, stop in _blocks(checkpointed):
        level = forward.afters[first - 1] if first else 0.0
        level = forward.afters[stop - 1] - (forward.afters[stop - 1] - level) / (1 + run.jump)
        if run.stack and start is None:
            start = level
        kept = 0.0 if start is None else level - start
        peaks += [peak - kept for peak in highest[first:stop]]
    marks = head_marks(replace(model, trace=checkpointed))
    if size is not None and marks is not None:
        beside = 0.0 if start is None else max(0.0, start - size.hidden_bytes)
        after = len(peaks) - marks.forward - 1
        peaks[marks.forward + 1 :] = [beside + fused_loss(model.loss, size).forward] * after
    if checkpointed.marks_forward != model.trace.marks_forward:
        peaks = [max(peaks)] * len(model.trace.marks_forward)
    held = tuple(peak + timeline.after_forward for peak in peaks)
    return replace(timeline, reference=Pass(peaks=held, levels=held, afters=held))


def _without_adapters(trace: ActivationTrace, forward: Pass) -> list[float]:
    """The peaks of a pass in which no adapter runs: those beside a module's own product are none."""
    peaks, adapted, level = list(forward.peaks), "", 0.0
    for number, (kind, name) in enumerate(trace.marks_forward):
        if adapted:
            peaks[number] = min(peaks[number], level)
            adapted = "" if (kind, name) == ("fwd_post", adapted) else adapted
        elif kind == "fwd_post" and name.endswith(".base_layer"):
            adapted, level = name.removesuffix(".base_layer"), forward.afters[number]
    return peaks


def _blocks(trace: ActivationTrace) -> Iterator[tuple[Run, int, int]]:
    """Of every layer, and of what lies between: its run (with layers left out before the first alone), its
    first mark and the one after its last."""
    position = 0
    for run in trace.forward:
        marks = len(trace.segments[run.segment])
        for number in range(run.count):
            yield run if number == 0 else replace(run, jump=0), position, position + marks
            position += marks
