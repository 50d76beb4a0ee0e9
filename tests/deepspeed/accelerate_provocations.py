"""What breaks each rule about accelerate YAML: a file, and what Accelerate says to it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.linter.deepspeed.deep import DeepCase

HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\n"
ONE = HEAD + "num_processes: 4\n"
TWO = HEAD.replace("num_machines: 1", "num_machines: 2") + "num_processes: 4\n"
FSDP = ONE.replace("DEEPSPEED", "FSDP")
FSDP_2 = FSDP + "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
FILE = "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
STAGE_2 = "deepspeed_config: {zero_stage: 2}\n"
STAGE_3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


@dataclass
class Provocation:
    """A YAML with one mistake.

    Attributes:
        says: part of what Accelerate's loader, launch validation or plugin says; ``None``: it says nothing.
        built: what the plugin has nevertheless, where that is the point.
    """

    text: str
    says: str | None = None
    config: dict[str, Any] = field(default_factory=lambda: STAGE_3)
    built: dict[str, Any] = field(default_factory=dict)


def plugin(*lines: str, head: str = ONE) -> str:
    return head + "deepspeed_config:\n" + "".join(f"  {line}\n" for line in lines)


def layout(**sizes: int | str) -> str:
    keys = {key if key.endswith("_backend") else f"{key}_size": value for key, value in sizes.items()}
    said = ", ".join(f"parallelism_config_{key}: {value}" for key, value in keys.items())
    return f"parallelism_config: {{{said}}}\n"


PROVOCATIONS = {
    "accelerate-not-a-mapping": Provocation("[]\n", "has no attribute 'get'"),
    "accelerate-unknown-key": Provocation(ONE + "num_gpus: 4\n" + STAGE_2, "num_gpus"),
    "accelerate-distributed-type": Provocation(
        "distributed_type: ZERO\nnum_processes: 4\n", "not a valid DistributedType"
    ),
    "accelerate-deepspeed-unused": Provocation(
        "distributed_type: MULTI_GPU\nnum_processes: 4\n" + STAGE_2, built={"deepspeed": False}
    ),
    "accelerate-fsdp-unused": Provocation(ONE + STAGE_2 + "fsdp_config: {fsdp_version: 2}\n"),
    "accelerate-number": Provocation(
        ONE + "deepspeed_config: {zero_stage: 3}\nparallelism_config: {parallelism_config_sp_size: '2'}\n",
        "not supported between instances of 'str' and 'int'",
    ),
    "accelerate-num-processes": Provocation(TWO.replace("num_processes: 4", "num_processes: 3") + STAGE_2),
    "accelerate-one-process": Provocation("distributed_type: 'NO'\nnum_machines: 1\nnum_processes: 4\n"),
    "accelerate-gpu-ids": Provocation(ONE + "gpu_ids: 0,1\n" + STAGE_2),
    "accelerate-machine-rank": Provocation(ONE + "machine_rank: 1\n" + STAGE_2),
    "accelerate-parallelism-product": Provocation(
        FSDP_2 + layout(dp_shard=2), "does not match num_processes"
    ),
    "accelerate-parallelism-exclusive": Provocation(FSDP_2 + layout(cp=2, sp=2), "mutually exclusive"),
    "accelerate-parallelism-replicas": Provocation(
        FSDP_2 + layout(cp=2, dp_replicate=2), "cannot be used with pure data parallelism"
    ),
    "accelerate-parallelism-type": Provocation(FSDP + layout(dp_shard=4), "only compatible"),
    "accelerate-parallelism-no-shard": Provocation(FSDP_2 + layout(tp=4), "no dimension for FSDP to shard"),
    # shown by a rehearsal, tests/rehearsal/test_fsdp2_by_yaml.py: the model is prepared later
    "accelerate-parallelism-tensor-unused": Provocation(FSDP_2 + layout(dp_shard=2, tp=2)),
    "accelerate-parallelism-sp-unused": Provocation(FSDP_2 + layout(dp_shard=2, sp=2)),
    "accelerate-parallelism-value": Provocation(FSDP_2 + layout(dp_shard=4, cp_backend="ring"), "cp_backend"),
    "accelerate-fsdp-version-key": Provocation(
        FSDP + "fsdp_config: {fsdp_reshard_after_forward: SHARD_GRAD_OP}\n",
        built={"sharding_strategy": "ShardingStrategy.FULL_SHARD"},
    ),
    "accelerate-fsdp-no-wrap": Provocation(
        FSDP + "fsdp_config: {fsdp_version: 2}\n", built={"auto_wrap_policy": "None"}
    ),
    # fails when the model is prepared: fsdp2_apply_ac calls the policy that is None
    "accelerate-fsdp-no-wrap-checkpointing": Provocation(
        FSDP + "fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}\n",
        built={"auto_wrap_policy": "None"},
    ),
    "accelerate-fsdp-offload-alone": Provocation(
        FSDP_2.replace("}", ", fsdp_activation_checkpointing_offload: true}"), "requires `activation_checkp"
    ),
    # needs the model, which only the command line names
    "accelerate-fsdp-class": Provocation(FSDP_2.replace("}", ", fsdp_transformer_layer_cls_to_wrap: Layer}")),
    "accelerate-ignored-key": Provocation(plugin("zero_stage: 2", "train_batch_size: 8")),
    "accelerate-precision": Provocation(ONE + "mixed_precision: float16\n" + STAGE_2, "Unknown mixed_prec"),
    "accelerate-precision-unquoted": Provocation(
        ONE + "mixed_precision: no\n" + STAGE_2, "has no attribute 'lower'"
    ),
    "accelerate-deepspeed-block": Provocation(ONE + "deepspeed_config: ds.json\n", built={"zero_stage": 2}),
    "accelerate-deepspeed-defaults": Provocation(plugin("zero3_init_flag: true"), built={"zero_stage": 2}),
    "accelerate-config-file-missing": Provocation(
        plugin("deepspeed_config_file: absent.json"), "existing deepspeed config"
    ),
    "accelerate-config-file-kind": Provocation(ONE + FILE.replace("ds.json", "a.yaml"), "Expecting value"),
    "accelerate-config-without-zero": Provocation(
        ONE + FILE, "specify the ZeRO optimization", config={"train_batch_size": 1}
    ),
    "accelerate-key-beside-config-file": Provocation(ONE + FILE + "  zero_stage: 3\n", "will be ignored"),
    "accelerate-zero-stage": Provocation(plugin("zero_stage: two"), "invalid literal for int"),
    "accelerate-flag-as-text": Provocation(plugin("zero_stage: 3", "zero3_save_16bit_model: 'yes'")),
    "accelerate-plugin-number": Provocation(
        plugin("zero_stage: 2", "gradient_clipping: none"), "could not convert string to float"
    ),
    "accelerate-offload-device": Provocation(plugin("zero_stage: 2", "offload_optimizer_device: gpu")),
    "accelerate-offload-stage": Provocation(plugin("zero_stage: 2", "offload_param_device: cpu")),
    "accelerate-nvme-path-dropped": Provocation(
        plugin("zero_stage: 3", "offload_param_device: nvme", "offload_param_nvme_path: /nvme")
    ),
    "accelerate-zero3-init-unused": Provocation(plugin("zero_stage: 2", "zero3_init_flag: true")),
    "accelerate-zero3-init-off": Provocation(plugin("zero_stage: 3", "zero3_init_flag: false")),
    "accelerate-multinode-launcher": Provocation(
        plugin("zero_stage: 2", "deepspeed_multinode_launcher: torchrun")
    ),
    "accelerate-hostfile-missing": Provocation(
        plugin("zero_stage: 2", "deepspeed_hostfile: absent", head=TWO)
    ),
    "accelerate-no-hostfile": Provocation(plugin("zero_stage: 2", head=TWO)),
    "accelerate-no-main-process": Provocation(
        plugin("zero_stage: 2", "deepspeed_multinode_launcher: standard", head=TWO)
    ),
    "accelerate-sequence-parallel-batch": Provocation(
        ONE + FILE + "parallelism_config: {parallelism_config_sp_size: 4}\n",
        config={**STAGE_3, "train_batch_size": 4},
    ),
    "accelerate-environment": Provocation(ONE.replace("LOCAL_MACHINE", "LOCAL") + STAGE_2, "unknown keys"),
    # both fail later: when torch's launcher starts, and when the script makes its Accelerator
    "accelerate-rdzv-backend": Provocation(ONE + "rdzv_backend: c10\n" + STAGE_2),
    "accelerate-fsdp-value": Provocation(FSDP + "fsdp_config: {fsdp_sharding_strategy: FULL}\n", "FULL"),
    "accelerate-fsdp-block": Provocation(FSDP + "fsdp_config: full_shard\n"),
    "accelerate-fsdp-loading": Provocation(
        FSDP + "fsdp_config: {fsdp_sync_module_states: false}\n", "set `--fsdp_sync_module_states` to `True`"
    ),
    "accelerate-optimizer-in-file": Provocation(
        ONE + FILE, config={**STAGE_3, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    ),
}


def write(folder: Path, name: str) -> Path:
    """The provocation of a rule, in a folder of its own."""
    here = folder / name
    here.mkdir()
    (here / "ds.json").write_text(json.dumps(PROVOCATIONS[name].config))
    (here / "a.yaml").write_text(PROVOCATIONS[name].text)
    return here / "a.yaml"


def cases(folder: Path) -> dict[str, DeepCase]:
    """Every provocation as Accelerate is asked about it."""
    asked = {}
    for rule, provocation in PROVOCATIONS.items():
        path = write(folder, rule)
        # looked for where accelerate is started, which is one place for all
        name = r"deepspeed_config_file: (?=ds.json|a.yaml)"
        path.write_text(re.sub(name, f"deepspeed_config_file: {path.parent}/", provocation.text))
        asked[rule] = DeepCase(mode="accelerate", path=str(path))
    return asked
