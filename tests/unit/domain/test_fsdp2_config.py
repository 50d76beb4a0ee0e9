"""FSDP2 as files of Accelerate and the Trainer say it, and what of it is not modelled."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zerokit.domain.fsdp2_config import from_accelerate, from_trainer
from zerokit.errors import InputError

# huggingface/trl, examples/accelerate_configs/fsdp2.yaml
TRL: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "FSDP",
    "downcast_bf16": "no",
    "fsdp_config": {
        "fsdp_activation_checkpointing": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_version": 2,
    },
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 8,
}


def trl(**block: Any) -> dict[str, Any]:
    return {**TRL, "fsdp_config": {**TRL["fsdp_config"], **block}}


def test_trls_example_is_read() -> None:
    found = from_accelerate(TRL)
    settings = found.settings
    assert (settings.precision, settings.reshard_after_forward, settings.offload) == ("bf16", True, False)
    assert (settings.replicas, settings.master_bytes, settings.wrapping) == (1, 4, "accelerate")
    assert (found.processes, found.nodes, found.shards, settings.broadcasts) == (8, 1, None, True)
    assert found.names_precision and not found.checkpointing
    assert [remark.partition(":")[0] for remark in found.remarks] == ["fsdp_cpu_ram_efficient_loading"]


def test_values_may_be_words_and_keys_may_lack_their_prefix() -> None:
    block = {"version": "2", "auto_wrap_policy": "transformer_based_wrap", "reshard_after_forward": "No",
             "offload_params": "True", "activation_checkpointing": "yes",
             "cpu_ram_efficient_loading": "off"}  # fmt: skip
    sizes = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    found = from_accelerate({"fsdp_config": block, "mixed_precision": False, "parallelism_config": sizes})
    settings = found.settings
    assert (settings.reshard_after_forward, settings.offload, settings.replicas) == (False, True, 2)
    assert (found.checkpointing, found.shards) == (True, 4)
    assert [remark.partition(":")[0] for remark in found.remarks] == ["fsdp_activation_checkpointing"]
    assert (settings.precision, found.names_precision) == ("fp32", False)


def test_a_trainers_defaults_are_others() -> None:
    """transformers 5.23, training_args.py:2826 to 2861."""
    found = from_trainer({"cpu_offload": True, "fsdp_reshard_after_forward": False}, "bf16")
    settings = found.settings
    assert (settings.offload, settings.reshard_after_forward, settings.precision) == (True, False, "bf16")
    assert found.remarks == () and not found.checkpointing and not settings.broadcasts


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (trl(fsdp_version=1), "FSDP version 1 is not modelled; `zerokit convert`"),
        ({"fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}}, "FSDP version 1 is not modelled"),
        (trl(fsdp_auto_wrap_policy="SIZE_BASED_WRAP"), "auto_wrap_policy SIZE_BASED_WRAP is not modelled"),
        (trl(fsdp_auto_wrap_policy=None), "fsdp_auto_wrap_policy NO_WRAP is not modelled"),
        (trl(fsdp_activation_checkpointing_offload=True), "activation_checkpointing_offload is not modelled"),
        (trl(fsdp_ignored_modules="model.norm"), "fsdp_ignored_modules is not modelled"),
        (trl(fsdp_transformer_layer_cls_to_wrap="LlamaMLP"), "cls_to_wrap LlamaMLP is not modelled"),
        ({**TRL, "mixed_precision": "fp8"}, "mixed_precision fp8 is not modelled"),
        ({**TRL, "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "torch.compile is not modelled"),
        ({**TRL, "parallelism_config": {"parallelism_config_tp_size": 2}}, "tp_size 2 divides no model"),
        ({**TRL, "fsdp_config": "fsdp.yaml"}, "fsdp_config is 'fsdp.yaml': it must be a mapping"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        from_accelerate(config)


def test_classes_of_layers_are_taken() -> None:
    named = trl(fsdp_transformer_layer_cls_to_wrap="LlamaDecoderLayer,GPT2Block")
    assert from_accelerate(named).settings == from_accelerate(TRL).settings
