"""Temporaries of kernels, against PyTorch's CUDA sources and histories of an H200's allocator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from zerokit.catalog import gpus  # noqa: E402
from zerokit.rehearsal.order import FakeGpu  # noqa: E402
from zerokit.rehearsal.process.operators import afterwards, first, in_order_of_allocation  # noqa: E402

H200 = FakeGpu.of(gpus.load("h200"), 1)
A10 = FakeGpu.of(gpus.load("a10g"), 1)
CUDNN = "_scaled_dot_product_cudnn_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


def meta(*shape: int, dtype: str = "float16") -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


@pytest.mark.parametrize(
    ("query", "key_heads", "workspace"),
    [
        ((32, 12, 48, 64), 12, 4_792_576),  # run_swag.py: BERT with a mask and dropout
        ((128, 12, 20, 64), 12, 7_987_456),  # training_nli_v2.py: DistilBERT
        ((128, 12, 3, 64), 12, 1_198_336),
        ((2, 16, 1024, 64), 4, 16_908_544),  # Qwen2-MoE: four groups of heads
    ],
)
def test_cudnn_attention_takes_one_workspace_without_padding(
    query: tuple[int, ...], key_heads: int, workspace: int
) -> None:
    key = meta(query[0], key_heads, *query[2:])
    assert afterwards(f"{CUDNN}_backward", (None, meta(*query), key, key), H200) == ((workspace,),)
    assert afterwards(CUDNN, (meta(*query), key, key), H200) == ((256,),)


@pytest.mark.parametrize(
    ("gpu", "dtype", "accumulated"),
    [(H200, "bfloat16", 4 * 128 * 128 + 16), (A10, "bfloat16", 4 * (4 * 64 * 64 + 16))],
)
def test_memory_efficient_attention_accumulates_the_gradient_of_queries(
    gpu: FakeGpu, dtype: str, accumulated: int
) -> None:
    query = meta(2, 4, 100, 80, dtype=dtype)
    blocks = afterwards(f"{EFFICIENT}_backward", (query, query), gpu)
    assert blocks == ((4 * 2 * 4 * 100, 2 * 4 * accumulated),)


def test_memory_efficient_attention_of_fp32_sums_rows_by_itself_and_accumulates_too() -> None:
    query = meta(8, 24, 36, 32, dtype="float32")  # run_mim.py: windows of Swin
    blocks = afterwards(f"{EFFICIENT}_backward", (query, query), H200)
    assert blocks == ((884_736, 27_648, 27_648), (27_648, 3_148_800))


def test_results_come_in_the_order_of_their_allocation() -> None:
    """As allocators' histories of an H200 have it."""
    assert in_order_of_allocation("native_dropout", (), ("output", "mask")) == ["mask", "output"]
    assert in_order_of_allocation("mm", (), "output") == ["output"]
    cudnn = ("out", "sums", None, None, 1, 1, "seed", "offset", None)
    assert in_order_of_allocation(CUDNN, (), cudnn) == ["seed", "offset", "out", "sums"]
    efficient, without = ("out", "sums", "seed", "offset"), ("q", "k", "v", None, True, 0.0)
    assert in_order_of_allocation(EFFICIENT, without, efficient) == ["out", "sums"]
    assert in_order_of_allocation(EFFICIENT, (*without[:5], 0.1), efficient) == list(efficient)


def test_a_roll_over_two_dimensions_and_a_norm_of_a_gap_make_copies_first() -> None:
    images = meta(8, 48, 48, 96, dtype="float32")
    assert first("roll", (images, [-3, -3], [1, 2])) == (images.numel() * 4,)
    assert first("roll", (images, [-3], [1])) == ()
    assert first("native_layer_norm", (images, [96], None, None, 1e-5)) == ()
    assert first("native_layer_norm", (images.transpose(1, 2), [96], None, None, 1e-5)) == (
        images.numel() * 4,
    )


def test_a_softmax_copies_what_is_not_dense() -> None:
    """LLaMA-Factory's DPO takes log_softmax of all logits but the last of each row (measured on an H200)."""
    logits = meta(4, 460, 1000, dtype="float32")
    sliced, copied = logits[:, :-1], 4 * 459 * 1000 * 4
    assert afterwards("_log_softmax", (logits, -1, False), H200) == ()
    assert afterwards("_log_softmax", (sliced, -1, False), H200) == ((copied,),)
    assert afterwards("_softmax", (sliced, -1, False), H200) == ((copied,),)
    dense = meta(4, 459, 1000, dtype="float32")
    everywhere = meta(1, dtype="float32").expand(4, 459, 1000)  # the gradient of a sum
    assert afterwards("_log_softmax_backward_data", (everywhere, dense, -1, None), H200) == ((copied,),)
    assert afterwards("_log_softmax_backward_data", (dense, dense, -1, None), H200) == ()
    assert afterwards("_softmax_backward_data", (everywhere, dense, -1, None), H200) == ((copied,),)
