"""Strategies over the whole space that a planner may draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.strategy import Strategy


@st.composite
def legal_strategies(draw: st.DrawFn) -> Strategy:
    """Strategies over the whole space that a planner may draw from."""
    stage = draw(st.integers(0, 3))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    devices = {0: ["none"], 1: ["none", "cpu"], 2: ["none", "cpu"], 3: ["none", "cpu", "nvme"]}[stage]
    optimizer_device = draw(st.sampled_from(devices))
    param_device = draw(st.sampled_from(["none", "cpu", "nvme"])) if stage == 3 else "none"
    size = st.integers(10**5, 10**9)
    offload_optimizer, offload_param = Offload(), Offload(buffer_count=5)
    if optimizer_device != "none":
        nvme = optimizer_device == "nvme"
        offload_optimizer = Offload(
            device=optimizer_device,
            pin_memory=draw(st.booleans()),
            nvme_path="/local/nvme" if nvme else None,
            buffer_count=draw(st.integers(4, 9)) if nvme else 4,
            pipeline_read=nvme and draw(st.booleans()),
            pipeline_write=nvme and draw(st.booleans()),
            ratio=draw(st.sampled_from([1.0, 0.5])) if stage == 3 and not nvme else 1.0,
        )
    if param_device != "none":
        nvme = param_device == "nvme"
        offload_param = Offload(
            device=param_device,
            nvme_path="/local/nvme" if nvme else None,
            buffer_count=draw(st.integers(3, 9)) if nvme else 5,
            buffer_size=draw(size) if nvme else 10**8,
            max_in_cpu=draw(size) if nvme else 10**9,
        )
    zero = ZeroSettings(
        stage=stage,
        reduce_bucket_size=draw(size) if stage else 500_000_000,
        allgather_bucket_size=draw(size) if stage in (1, 2) else 500_000_000,
        overlap_comm=draw(st.sampled_from([None, True, False])) if stage else None,
        sub_group_size=draw(size) if stage == 3 else 10**9,
        prefetch_bucket_size=draw(size) if stage == 3 else 50_000_000,
        param_persistence_threshold=draw(st.integers(0, 10**6)) if stage == 3 else 100_000,
        max_live_parameters=draw(size) if stage == 3 else 10**9,
        zero_quantized_weights=stage == 3 and draw(st.booleans()),
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
    )
    tensor_parallel = draw(st.sampled_from([1, 1, 2, 4]))
    optimizer = draw(st.sampled_from(["AdamW", "Adam", "Lion", "SGD", "Adagrad", None]))
    return Strategy(
        settings=DeepSpeedSettings(
            precision=precision,
            micro_batch=draw(st.integers(1, 64)),
            gradient_accumulation=draw(st.integers(1, 64)),
            gradient_clipping=draw(st.sampled_from([0.0, 0.5, 1.0])),
            grad_accum_dtype=draw(st.sampled_from([None, "fp32"])),
            communication_data_type=draw(st.sampled_from([None, "fp32", "bf16"])),
            optimizer=optimizer,
            torch_adam=optimizer in ("Adam", "AdamW") and draw(st.booleans()),
            torch_autocast=draw(st.sampled_from([None, "bfloat16"])) if precision == "fp32" else None,
            autotp_size=tensor_parallel,
            bf16_master_weights_and_grads=precision == "bf16" and stage > 0 and draw(st.booleans()),
            zero_force_ds_cpu_optimizer=draw(st.booleans()),
            zero=zero,
        ),
        data_parallel=draw(st.integers(1, 64)),
        tensor_parallel=tensor_parallel,
    )
