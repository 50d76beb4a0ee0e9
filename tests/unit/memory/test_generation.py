"""What generation holds: the cache of a public model, and the logits of its last token."""

from __future__ import annotations

import pytest

from zerokit.catalog import profiles
from zerokit.domain.profile import Variant
from zerokit.memory.generation import cache_bytes, cast_bytes, decoding_bytes
from zerokit.memory.rank_model import RankModel, rank_model


@pytest.fixture(scope="module")
def llama() -> RankModel:
    profile = profiles.load("llama-3.1-8b")
    assert profile is not None
    trace = profile.trace(Variant(checkpointing="full"), 2048)
    assert trace is not None
    return rank_model(profile, Variant(checkpointing="full"), trace)


def test_the_cache_of_llama_is_128_kib_a_token(llama: RankModel) -> None:
    # 32 layers of 8 heads of 128 for keys and for values, of 32 that ask for them (arXiv 2407.21783, table 3)
    assert cache_bytes(llama, 2, 2) == (128 * 1024, 2 * 8 * 128)
    # in fp32 keys, scaled keys and values of all 32 heads, and a score of each
    assert cache_bytes(llama, 4, 4) == (256 * 1024, 4 * (3 * 32 * 128 + 32))
    # under autocast copies of both in 16 bits, as large as the keys in fp32
    assert cache_bytes(llama, 4, 2) == (256 * 1024, 4 * 8 * 128)


def test_autocast_keeps_every_product_s_weight(llama: RankModel) -> None:
    hidden, ffn, words = 4096, 14336, 128256
    layer = 2 * hidden * hidden + 2 * hidden * 1024 + 3 * hidden * ffn
    table = words * hidden
    assert cast_bytes(llama, 4, 2, (table, 4)) == 2 * (32 * layer + table)
    assert cast_bytes(llama, 2, 2, (table, 4)) == 2 * table  # a head in fp32 over layers in bf16


def test_the_last_step_holds_logits_probabilities_and_those_before() -> None:
    assert decoding_bytes(0, words=1000, logit_bytes=2, casts=0) == 14 * 1000
    assert decoding_bytes(50_000, words=1000, logit_bytes=2, casts=0) == 50_000 + 8 * 1000
    assert decoding_bytes(0, words=1000, logit_bytes=2, casts=90_000) == 90_000 + 10 * 1000
