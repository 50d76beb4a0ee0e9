"""What is live at the peak of each phase, by what it is."""

from __future__ import annotations

import pytest

import zerokit
from zerokit.report import component_parts


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_components_sum_to_the_peak_of_their_phase(zero, checkpointing):
    found = zerokit.estimate(
        model="llama-3.2-1b", gpus=4, gpu="h200", zero=zero, micro_batch=2, checkpointing=checkpointing
    )
    worst = found.worst_rank
    by_phase = found.components_by_phase
    assert {phase: sum(parts.values()) for phase, parts in by_phase.items()} == worst.phases
    assert by_phase[worst.peak_phase] == worst.components
    # the activations are gone when the optimizer steps, and its states are there before the first forward
    assert "activations" not in by_phase["step"] and by_phase["forward"]["optimizer_states"] > 0


def test_the_largest_have_colours_of_their_own_and_the_rest_share_one():
    phases = {"forward": {f"part {n}": 10 - n for n in range(9)}, "step": {"part 8": 99, "part 0": 1}}
    styles = component_parts.styles(phases)
    assert styles["part 8"] == "c0" and len(styles) == 6
    shown = component_parts.stacked(phases["forward"], styles)
    assert sum(size for _, size, _ in shown) == sum(phases["forward"].values())
    assert shown[-1][0] == "predicted: others" and shown[-1][2] == "c6"
    assert len(component_parts.stacked(phases["step"], styles)) == 2
