"""Models with fewer layers: which there are, and that they are those models."""

from __future__ import annotations

import pytest

from zerokit.catalog import profiles
from zerokit.domain.depth import at_depth

MIXED = {
    # encoders beside decoders
    "bart-large", "t5-base",
    # the first layers are dense (`first_k_dense_replace`)
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "glm-4.5", "glm-4.5-air",
    # all but each n-th see a chunk, or have no positions
    "llama-4-scout-17b-16e", "smollm3-3b",
    # windows, with keys and values shared between layers
    "gemma-3n-e2b", "gemma-3n-e4b", "gemma-4-e2b", "gemma-4-e4b",
    # attention among convolutions, Mamba or linear attention
    "granite-4.0-h-small", "granite-4.0-h-tiny", "lfm2-350m", "lfm2-700m", "lfm2-1.2b", "qwen3.5-9b",
    "qwen3.6-35b-a3b",
}  # fmt: skip
"""Of the catalogue, by their papers and configurations. Where only the window differs (Gemma 2, GPT-OSS),
layers are alike in shorter sequences: a rehearsal asks the configuration (`layer_types`)."""


@pytest.mark.parametrize("name", profiles.names())
def test_a_few_layers_stand_for_all_where_they_are_alike(name: str) -> None:
    profile = profiles.load(name)
    assert profile is not None
    few, (variant, traces) = at_depth(profile, 4), next(iter(profile.traces.items()))
    is_mixed = few is None or len(few.traces[variant]) < len(traces)
    assert is_mixed == (name in MIXED)
    if few is None:
        return
    further = at_depth(profile, 5)
    assert further is not None
    layer = further.parameter_count - few.parameter_count
    of = sum(run.count for run in traces[0].forward if run.stack)
    assert few.parameter_count + (of - 4) * layer == profile.parameter_count


def test_it_is_the_model_that_its_configuration_makes() -> None:
    """Llama 3.1 8B: hidden 4096, 32 heads and 8 of keys of 128, 14336 wide, 128256 words, untied."""
    profile = profiles.load("llama-3.1-8b")
    assert profile is not None
    few = at_depth(profile, 3)
    assert few is not None
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert few.parameter_count == 2 * 128256 * 4096 + 3 * layer + 4096
    for trace in few.traces["sdpa/16/none"]:
        entered = [name for kind, name in trace.marks_forward if kind == "fwd_pre"]
        assert [name for name in entered if name.count(".") == 2] == [f"model.layers.{n}" for n in range(3)]
    assert at_depth(profile, 32) is None and at_depth(few, 3) is None
