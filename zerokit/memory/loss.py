"""How much of a peak is the loss: logits, the cross-entropy over them and their gradients.

A trace says when the output head runs: what was live before is the layers', and what has come on top is
the loss's until the head's own backward begins.
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.domain.activations import Timeline
from zerokit.memory.rank_model import RankModel
from zerokit.values import frozen_dataclass


@frozen_dataclass
class HeadMarks:
    """When the output head runs.

    Attributes:
        name: of its module.
        forward: mark of forward at which it begins.
        backward: mark of backward at which its outputs' gradient is there.
    """

    name: str
    forward: int
    backward: int


@lru_cache(maxsize=256)
def head_marks(model: RankModel) -> HeadMarks | None:
    """When the output head runs; ``None``: the model, or this stage of a pipeline, ends with no head."""
    weights = {p.name for p in model.parameters} | set(model.profile.ties)
    forward = model.trace.marks_forward
    start, name = max(
        (
            (i, name)
            for i, (kind, name) in enumerate(forward)
            if kind == "fwd_pre" and f"{name}.weight" in weights
        ),
        default=(-1, ""),
    )
    if start < 0 or not model.trace.forward or model.trace.forward[-1].stack:
        return None
    backward = model.trace.marks_backward
    end = next((i for i, (kind, module) in enumerate(backward) if kind == "bwd_pre" and module == name), None)
    return None if end is None else HeadMarks(name=name, forward=start, backward=end)


def loss_bytes(model: RankModel, timeline: Timeline, phase: str, position: int | None, between: bool) -> int:
    """Bytes of the loss at the highest instant of a phase; 0 where it is not alive then, or cannot be told.

    Args:
        position: the mark at or before which the instant is, of ``timeline.forward`` or, in backward, of
            ``timeline.backward`` at stage 3; ``None``: the highest of ``timeline.forward``, or the way to
            the first mark of ``timeline.gradients``.
        between: on the way to the mark instead of at it.
    """
    marks = head_marks(model)
    if marks is None:
        return 0
    # a fused loss works in the head's own backward
    start, end = marks.forward, marks.backward + (model.loss != "standard")
    forward, backward = timeline.forward, timeline.backward
    before = forward.levels[start]
    if phase == "forward":
        if position is None:
            position, between = max(range(len(forward.peaks)), key=forward.peaks.__getitem__), True
        live = (forward.peaks if between else forward.levels)[position] if position > start else before
    elif position is None:
        # up to the first gradient the head's backward may reach higher than the loss: then it is not the loss
        live = timeline.gradients.peaks[0]
        if live > max(backward.peaks[: end + 1]):
            live = before
    else:
        live = (backward.peaks if between else backward.levels)[position] if position <= end else before
    return max(0, round(live - before))
