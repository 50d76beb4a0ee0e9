"""Features that DeepSpeed 0.19 removed, whose keys raise even when the feature is off; and what older versions
refuse that it takes."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.rules.known import ONE_BIT_OPTIMIZERS
from zerokit.rules.strategy import autocast_with_precision, optimizer_kind
from zerokit.rules.types import Edit, Rule, Setup

_TOP_LEVEL: Mapping[str, tuple[str, str]] = {
    "amp": ("NVIDIA Apex AMP", 'use "bf16", "fp16" or "torch_autocast"'),
    "compression_training": ("the compression library", "remove the block"),
    "curriculum_learning": (
        "the top-level curriculum_learning block",
        "move it to data_efficiency.data_sampling.curriculum_learning",
    ),
    "eigenvalue": ("eigenvalue-based mixture of quantisation", "remove the block"),
    "elasticity": ("elastic training", "remove the block and give the batch sizes"),
    "graph_harvesting": ("graph harvesting", "remove the key"),
    "nebula": ("Nebula checkpointing", "remove the block"),
    "progressive_layer_drop": ("progressive layer dropping", "remove the block"),
    "quantize_training": ("mixture of quantisation", "remove the block"),
    "sparse_attention": ("sparse attention", "remove the block"),
    "sparse_gradients": (
        "sparse gradients of dense embeddings",
        "remove the key; an embedding made with sparse=True needs none",
    ),
}
_ZERO: Mapping[str, tuple[str, str]] = {
    "mics_shard_size": ("MiCS", "remove the key; zero_hpz_partition_size keeps a copy per node"),
    "mics_hierarchical_params_gather": ("MiCS", "remove the key"),
    "zeropp_loco_param": ("LoCo error feedback of ZeRO++", "remove the key"),
}


def _present(key: str, change: str, fix: str, source: str) -> Rule:
    return Rule(
        id=f"removed-{key.rpartition('.')[2].replace('_', '-')}",
        since=(0, 19),
        source=source,
        key=key,
        message=f"{change} was removed from DeepSpeed: the key is refused, even when the feature is off",
        fix=fix,
        broken=lambda setup: setup.has(key),
        edits=(Edit(kind="remove", key=key),),
    )


REMOVED_RULES: tuple[Rule, ...] = (
    *(_present(key, what, fix, "deepspeed/runtime/config.py:134") for key, (what, fix) in _TOP_LEVEL.items()),
    *(
        _present(f"zero_optimization.{key}", what, fix, "deepspeed/runtime/config.py:139")
        for key, (what, fix) in _ZERO.items()
    ),
    Rule(
        id="removed-one-bit-optimizer",
        since=(0, 19),
        source="deepspeed/runtime/engine.py:2019",
        key="optimizer.type",
        message="the 1-bit optimizers were removed from DeepSpeed: the engine fails to start",
        fix="use AdamW or Lamb; zero_quantized_gradients saves traffic at stage 3",
        broken=lambda s: (
            isinstance(s.get("optimizer.type"), str) and s.get("optimizer.type").lower() in ONE_BIT_OPTIMIZERS
        ),
    ),
    Rule(
        id="removed-legacy-stage-1",
        source="deepspeed/runtime/engine.py:2651",
        key="zero_optimization.legacy_stage1",
        message="the old stage 1 was removed from DeepSpeed: the engine fails to start",
        fix="remove the key",
        broken=lambda s: s.get("zero_optimization.legacy_stage1") is True and s.settings.zero.stage > 0,
        edits=(Edit(kind="remove", key="zero_optimization.legacy_stage1"),),
    ),
)


def _fp16_master_weights(setup: Setup) -> bool | dict[str, str]:
    settings = setup.settings
    if not settings.fp16_master_weights_and_grads:
        return False
    if settings.zero.stage != 2:
        return {"why": f"stage 2, and the stage is {settings.zero.stage}"}
    if settings.zero.offload_optimizer.device == "none":
        return {"why": "the optimizer offloaded to the CPU"}
    return False


OLDER_RULES: tuple[Rule, ...] = (
    Rule(
        id="older-fp16-master-weights",
        until=(0, 17),
        source="deepspeed-0.17.6/runtime/config.py:977",
        key="fp16.fp16_master_weights_and_grads",
        message="fp16_master_weights_and_grads needs {why}: this DeepSpeed refuses the file",
        fix='set "stage": 2 and "offload_optimizer": {"device": "cpu"}, or use DeepSpeed 0.18 or later',
        broken=_fp16_master_weights,
    ),
    Rule(
        id="older-autocast-with-precision",
        since=(0, 17),
        until=(0, 17),
        source="deepspeed-0.17.6/runtime/torch_autocast.py:32",
        key="torch_autocast.enabled",
        message="torch_autocast together with {precision}: this DeepSpeed refuses the file",
        fix="enable one of the two",
        broken=autocast_with_precision,
    ),
    Rule(
        id="older-muon-at-stage-3",
        since=(0, 17),
        until=(0, 17),
        source="deepspeed-0.17.6/runtime/engine.py:1576",
        key="optimizer.type",
        message="Muon cannot run at stage 3 before DeepSpeed 0.18: the engine fails to start",
        fix="use stage 0, or DeepSpeed 0.18 or later",
        broken=lambda s: s.settings.zero.stage == 3 and optimizer_kind(s) == "muon",
    ),
    Rule(
        id="older-muon-untested",
        since=(0, 17),
        until=(0, 17),
        source="deepspeed-0.17.6/runtime/engine.py:1385",
        key="optimizer.type",
        message="Muon is not on the list of optimizers that ZeRO takes before DeepSpeed 0.18: the engine fails to start",
        fix='add "zero_allow_untested_optimizer": true, or use DeepSpeed 0.18 or later',
        broken=lambda s: (
            s.settings.zero.stage in (1, 2)
            and optimizer_kind(s) == "muon"
            and s.get("zero_allow_untested_optimizer") is not True
        ),
    ),
    Rule(
        id="older-muon",
        until=(0, 16),
        source="deepspeed-0.16.9/runtime/engine.py:1522",
        key="optimizer.type",
        message="DeepSpeed before 0.17 has no Muon: it takes torch's, where torch has one, and that refuses every "
        "parameter which is not a matrix",
        fix="use AdamW, or DeepSpeed 0.17 or later",
        broken=lambda s: optimizer_kind(s) == "muon",
    ),
)
