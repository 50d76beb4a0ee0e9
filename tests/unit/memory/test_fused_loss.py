"""Losses that never make the logits of all tokens.

The figures here are worked out by hand from the libraries' sources.
`tests/oracle/test_replay_and_rehearsal.py` sets the same losses beside the libraries themselves, rehearsed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import zerokit
from zerokit.errors import InputError
from zerokit.memory.fused_loss import LossSize, fused_loss

LLAMA_1B = LossSize(
    sequences=4, seq_len=2048, hidden=2048, vocabulary=128_256, element_bytes=2, product_bytes=2, trained=True
)
TOKENS, TARGETS = 4 * 2048, 4 * 2047
HIDDEN = TOKENS * 2048 * 2
WEIGHT = 128_256 * 2048 * 2
NEAR = 64 * TOKENS
"""Bytes of vectors over tokens."""


def test_liger_makes_both_gradients_in_forward_and_logits_of_a_chunk() -> None:
    found = fused_loss("liger", LLAMA_1B)
    chunk = 256 * 128_256 * 2  # ceil(128256 / 2048) = 63 parts; ceil(8192 / 63) = 131, up to a power of two
    assert found.forward == pytest.approx(2 * HIDDEN + WEIGHT + chunk, abs=NEAR)
    assert found.kept == found.backward == HIDDEN + WEIGHT


def test_liger_adds_through_copies_on_older_gpus_and_in_fp32() -> None:
    plain = fused_loss("liger", LLAMA_1B).forward
    older = replace(LLAMA_1B, adds_in_place=False)
    assert fused_loss("liger", older).forward - plain == WEIGHT + 2 * WEIGHT  # the product, and it in fp32


def test_trls_chunks_are_made_again_in_backward_and_added_up_in_fp32() -> None:
    found = fused_loss("chunked", LLAMA_1B)
    tile, chosen = 4096 * 32_768 * 2, TARGETS * 2048 * 2
    assert found.forward == pytest.approx(HIDDEN + chosen + tile, abs=NEAR)
    assert found.kept == pytest.approx(chosen, abs=NEAR)
    # fp32 gradients of hidden states and weight, then both in 16 bits; the tile is alive until the end
    assert found.backward == pytest.approx(
        chosen + 2 * chosen + 2 * WEIGHT + tile + chosen + WEIGHT, abs=NEAR
    )


def test_under_autocast_trls_chunks_cast_what_they_multiply() -> None:
    wide = replace(LLAMA_1B, element_bytes=4)
    found = fused_loss("chunked", wide)
    tile, chosen = 4096 * 32_768 * 2, TARGETS * 2048 * 4
    rows, words = 4096 * 2048 * 2, 32_768 * 2048 * 2  # ``hidden_chunk`` and ``w_chunk``, in 16 bits
    assert found.forward == pytest.approx(2 * HIDDEN + chosen + tile + rows + words, abs=NEAR)
    # the part of the weight before is there until the next is cast; fp32 gradients are what is returned
    summed = chosen + 2 * WEIGHT
    assert found.backward == pytest.approx(chosen + summed + tile + rows + 2 * words, abs=NEAR)


def test_cut_cross_entropy_makes_no_logits() -> None:
    found = fused_loss("cut", LLAMA_1B)
    near = NEAR + 32 * 128_256
    assert found.forward == pytest.approx(HIDDEN, abs=near)
    assert found.backward == pytest.approx(2 * HIDDEN + WEIGHT, abs=near)


WORDS = TOKENS * 128_256


def test_a_value_head_is_beside_the_models_own_loss_and_an_fp32_copy_of_its_logits() -> None:
    found = fused_loss("value", LLAMA_1B)
    # logits in 16 bits; the log-softmax that the model's own loss keeps, and the copy, in fp32; two inputs of
    # heads, and dropout's mask
    assert found.head == WORDS * 2 + 2 * WORDS * 4 + HIDDEN + HIDDEN + HIDDEN // 2
    assert found.kept == HIDDEN + HIDDEN // 2  # no logits: what counts does not depend on them
    in_fp32 = fused_loss("value", replace(LLAMA_1B, element_bytes=4, product_bytes=4))
    assert in_fp32.head == pytest.approx(2 * WORDS * 4, rel=0.05)  # no copy


def test_answers_to_compare_with_are_beside_logits_of_a_first_pass() -> None:
    one = replace(LLAMA_1B, sequences=1)
    found, targets = fused_loss("kto", one), 2047 * 128_256 * 4
    logits = 2048 * 128_256 * 4
    assert found.first_pass == logits
    # those of one sequence are a view; of several, a copy
    assert found.forward == pytest.approx(logits + targets, rel=0.01)
    assert fused_loss("logprobs", LLAMA_1B).forward == pytest.approx(4 * (logits + 2 * targets), rel=0.01)


@pytest.mark.parametrize("loss", ["liger", "chunked", "cut"])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("zero", [2, 3])
def test_an_estimate_with_it_differs_in_forward_and_backward_alone(loss: str, method: str, zero: int) -> None:
    job = {"model": "llama-3.2-1b", "gpus": 1, "gpu": "h200", "micro_batch": 8, "seq_len": 2048,
           "zero": zero, "method": method, "checkpointing": "full"}  # fmt: skip
    own = zerokit.estimate(**job).to_dict()["per_rank"][0]
    fused = zerokit.estimate(**job, loss=loss).to_dict()["per_rank"][0]
    for phase in ("init", "step"):
        assert fused["phases"][phase] == own["phases"][phase]
    for phase in ("forward", "backward"):
        assert fused["phases"][phase] < 0.8 * own["phases"][phase]
    assert sum(fused["components"].values()) == fused["peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "tiled"}, "not modelled"),
        ({"loss": "chunked", "tp": 2}, "⟨tp⟩"),
        ({"loss": "liger", "inference": True}, "⟨inference⟩"),
        ({"loss": "liger", "model": "bert-base", "seq_len": 512}, "'mlm'"),
        ({"loss": "cut", "precision": "fp32"}, "bf16 and fp16 alone"),
        ({"loss": "liger", "device": "cpu", "gpu": None}, "CPU ranks"),
        ({"loss": "fused"}, "use one of standard, chunked, liger, cut"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(options: dict[str, object], said: str) -> None:
    job = {"model": "llama-3.2-1b", "gpus": 2, "gpu": "h200", "seq_len": 2048} | options
    with pytest.raises(InputError) as failure:
        zerokit.estimate(**job)
    assert said in failure.value.marked


def test_a_plan_uses_the_room_that_the_loss_leaves() -> None:
    job = {"model": "llama-3.2-3b", "gpus": 1, "gpu": "h100-sxm-80gb", "global_batch": 64, "seq_len": 4096}
    own, fused = zerokit.plan(**job).chosen, zerokit.plan(**job, loss="chunked").chosen
    assert fused.micro_batch >= own.micro_batch
    assert any("TRL" in note for note in fused.estimate.assumptions)
