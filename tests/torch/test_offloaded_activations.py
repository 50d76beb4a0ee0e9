"""Activations that go to the host.

`tests/oracle/test_replay_and_rehearsal.py` (`act`) sets the steps beside TRL's own class, rehearsed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import zerokit
from zerokit.domain.profile import Variant
from zerokit.errors import InputError
from zerokit.memory.host import activation_copies
from zerokit.trace.profile import profile_from_config

HIDDEN, FFN, HEADS, WORDS, LAYERS = 64, 192, 4, 1024, 6
TINY = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": WORDS,
        "tie_word_embeddings": False, "max_position_embeddings": 4096}  # fmt: skip
B, S = 4, 1024


def test_checkpointed_layers_leave_their_inputs_on_the_host() -> None:
    variants = [Variant(checkpointing="full", offloaded=offloaded) for offloaded in (False, True)]
    profile = profile_from_config(TINY, variants, name="tiny", head="causal")
    kept, moved = (profile.trace(variant, S) for variant in variants)
    assert kept is not None and moved is not None
    layer_input = B * S * HIDDEN * 2
    on_gpu = kept.timeline(B, S).after_forward - moved.timeline(B, S).after_forward
    on_host = activation_copies(moved, B, S)
    assert activation_copies(kept, B, S) == 0
    # the inputs of all layers; and the loss's log-probabilities in fp32, which lie outside the head
    log_probabilities = B * S * WORDS * 4
    assert on_host >= LAYERS * layer_input + log_probabilities
    # what left the GPU is on the host, but for the latest tensors, which stay on both
    assert 0 < on_gpu <= on_host
    assert kept.timeline(B, S).forward_peak > moved.timeline(B, S).forward_peak


@pytest.mark.slow
def test_an_estimate_counts_them_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    job = {"model": tmp_path, "gpus": 2, "gpu": "h200", "micro_batch": B, "seq_len": S, "zero": 2}
    own, moved = zerokit.estimate(**job), zerokit.estimate(**job, offload_activations=True)
    assert moved.peak_allocated_bytes <= own.peak_allocated_bytes
    added = moved.host_components["activations"]
    assert moved.host_bytes_per_node - own.host_bytes_per_node == added > 0
    assert added % 2 == 0  # two ranks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 2}, "⟨tp⟩"),
        ({"loss": "chunked"}, "⟨loss⟩ chunked"),
        ({"model": None, "params": "7b"}, "⟨params⟩"),
        ({"inference": True}, "⟨inference⟩"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(options: dict[str, object], said: str) -> None:
    job = {"model": "llama-3.2-1b", "gpus": 2, "gpu": "h200", "offload_activations": True} | options
    with pytest.raises(InputError) as failure:
        zerokit.estimate(**job)
    assert said in failure.value.marked
