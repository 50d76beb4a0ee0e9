"""FSDP2 strategies that Accelerate's YAML can say."""

from __future__ import annotations

from hypothesis import strategies as st

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy


@st.composite
def fsdp2_strategies(draw: st.DrawFn) -> Strategy:
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    replicas, shared = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    settings = Fsdp2Settings(
        precision=precision,
        micro_batch=draw(st.integers(1, 8)),
        gradient_accumulation=draw(st.integers(1, 4)),
        reshard_after_forward=draw(st.booleans()),
        replicas=replicas,
        offload=draw(st.booleans()),
        broadcasts=draw(st.booleans()),
        rotation=draw(st.sampled_from(["allgather", "alltoall"])) if shared > 1 else "allgather",
    )
    shards = draw(st.sampled_from([2, 4, 8]))
    checkpointing = draw(st.sampled_from(["none", "full"]))
    return Strategy(
        settings=settings, data_parallel=replicas * shards, sequence_parallel=shared,
        checkpointing=checkpointing,
    )  # fmt: skip
