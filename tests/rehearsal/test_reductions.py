"""What reductions take beside their result, against a measured one."""

from __future__ import annotations

import torch

from zerokit.catalog import gpus
from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.process.operators import afterwards
from zerokit.rehearsal.process.temporaries import temporary_blocks

H200 = FakeGpu.of(gpus.load("h200"), 1)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_norm_of_an_embeddings_columns_takes_what_was_measured() -> None:
    # torch.optim.Adafactor on T5's embedding, torch 2.11 on an H200: 138,478,592 bytes at most in its step
    # (benchmarks/measure/data/rehearsed-cases-measured.jsonl, t5.adafactor: step less other)
    embedding = meta(32128, 768)
    results = 32128 * 2 + 256 + 768 * 2  # norms of the rows and of the columns, in blocks of 512 bytes
    (taken,) = afterwards("linalg_vector_norm", (embedding, 2, [-2], True), H200)
    assert sum(-(-size // 512) * 512 for size in taken) + results == 138_478_592


def test_partial_results_and_semaphores_are_blocks_of_their_own() -> None:
    # a bias of 768 and one of 3072 over 1,536 tokens in fp16: the history of run_swag.py on an H200
    assert afterwards("sum", (meta(1536, 768, dtype=torch.float16), [0]), H200) == ((9437184, 24),)
    assert afterwards("sum", (meta(1536, 3072, dtype=torch.float16), [0]), H200) == ((37748736, 96),)


def test_rows_and_few_values_take_nothing() -> None:
    assert temporary_blocks(meta(8192, 4096), [1], 4, H200) == ()  # a warp for each row
    assert temporary_blocks(meta(64, 4096), [0], 4, H200) == ()  # 64 values: not worth a second block
    assert afterwards("add", (meta(32128, 768), [0]), H200) == ()


def test_dimensions_are_joined_and_all_is_one_output() -> None:
    tokens = meta(4, 2048, 2048)
    assert (
        sum(temporary_blocks(tokens, [0, 1], 4, H200))
        == sum(temporary_blocks(meta(8192, 2048), [0], 4, H200))
        > 1 << 26
    )
    (whole,) = afterwards("sum", (tokens,), H200)
    assert 0 < sum(whole) < 1 << 16
    assert (whole,) == afterwards("sum", (tokens, [0, 1, 2]), H200)
