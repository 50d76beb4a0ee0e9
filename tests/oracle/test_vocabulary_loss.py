"""The loss of a head cut along the vocabulary, as traced, beside DeepSpeed's own."""

from __future__ import annotations

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("deepspeed")

from tests.oracle.ranks import live_bytes  # noqa: E402
from zerokit.trace.building.tensor_parallel import _vocabulary_loss  # noqa: E402

BATCH, LENGTH, VOCABULARY = 2, 33, 512
SMALL = 64 * BATCH * LENGTH
"""Bytes of vectors over tokens, a few of which DeepSpeed holds for its checks."""


def run(function):  # type: ignore[no-untyped-def]
    """Loss, gradient, and the levels and peaks of forward and backward."""
    torch.manual_seed(1)
    logits = torch.randn(BATCH, LENGTH, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    labels[0, 5] = -100
    tracker = live_bytes(False)
    tracker.ignore([logits, labels])
    with tracker:
        loss = function(logits=logits, labels=labels, vocab_size=VOCABULARY)
        forward = tracker.phase()
        loss.backward()
        backward = tracker.phase()
    return loss.detach(), logits.grad, forward, backward


def test_loss_gradient_and_memory_are_deepspeeds() -> None:
    from deepspeed.sequence.cross_entropy import VocabParallelCausalLMLoss

    theirs = VocabParallelCausalLMLoss(vocab_start_index=0, vocab_end_index=VOCABULARY)
    expected, gradient, *memory = run(theirs)
    loss, own_gradient, *own_memory = run(_vocabulary_loss)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(own_gradient, gradient)
    for own, other in zip(own_memory, memory, strict=True):
        assert own["level"] == pytest.approx(other["level"], abs=SMALL)
        assert own["peak"] == pytest.approx(other["peak"], abs=SMALL)
