"""The ``deepspeed_config`` block of an accelerate YAML, alone and against the DeepSpeed JSON it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.check.accelerate_keys import (
    ACCELERATE_VERSION,
    LAUNCH,
    PARALLELISM_PREFIX,
    PLUGIN,
    accelerate_finding,
    key_list,
)
from zerokit.check.finding import Finding, nearest
from zerokit.strictload import Document

REFUSED_BESIDE_CONFIG_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
"""``DeepSpeedPlugin._deepspeed_config_checks``; ``mixed_precision`` too, at the top level."""


def lint_pair(document: Document, config: Mapping[str, Any], config_path: str) -> list[Finding]:
    """Conflicts between an accelerate YAML and the DeepSpeed JSON it names."""
    block = document.value.get("deepspeed_config")
    found: list[Finding] = []
    zero = config.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    if not isinstance(zero, Mapping):
        found.append(
            accelerate_finding(
                document,
                ("deepspeed_config", "deepspeed_config_file"),
                "accelerate-config-without-zero",
                f"{config_path} has no zero_optimization: Accelerate refuses it",
                'add "zero_optimization": {"stage": 0} to it, or the stage that is meant',
                source=PLUGIN,
            )
        )
    if isinstance(block, Mapping) and block.get("zero3_init_flag") is True and stage in (0, 1, 2):
        found.append(_init_flag(document, stage, f" in {config_path}"))
    if isinstance(block, Mapping) and block.get("zero3_init_flag") is False and stage == 3:
        found.append(
            accelerate_finding(
                document,
                ("deepspeed_config", "zero3_init_flag"),
                "accelerate-zero3-init-off",
                "at stage 3 with zero3_init_flag off, every rank first builds the whole model",
                "set zero3_init_flag: true, unless the model must be built whole",
                severity="warning",
                source=PLUGIN,
            )
        )
    parallelism = document.value.get("parallelism_config")
    size = parallelism.get(f"{PARALLELISM_PREFIX}sp_size") if isinstance(parallelism, Mapping) else None
    if isinstance(size, int) and size > 1 and isinstance(config.get("train_batch_size"), int):
        found.append(
            accelerate_finding(
                document,
                ("parallelism_config", f"{PARALLELISM_PREFIX}sp_size"),
                "accelerate-sequence-parallel-batch",
                f"with sequence parallel, train_batch_size in {config_path} is checked against all ranks "
                "when the model is built",
                f"leave train_batch_size out of {config_path}",
                severity="warning",
                source="deepspeed/runtime/config.py:475 (0.19.8)",
            )
        )
    return found


def lint_deepspeed_block(document: Document) -> Iterator[Finding]:
    """Findings about the block by itself."""
    block = document.value.get("deepspeed_config")
    if block is None:
        return
    if not isinstance(block, dict):
        yield accelerate_finding(
            document,
            ("deepspeed_config",),
            "accelerate-deepspeed-block",
            f"deepspeed_config is {block!r}: it must be a mapping",
            "name a file as deepspeed_config: {deepspeed_config_file: FILE}",
            source=LAUNCH,
        )
        return
    known = key_list()["deepspeed_config"]
    for key in block:
        if key not in known:
            guess = nearest(str(key), known)
            yield accelerate_finding(
                document,
                ("deepspeed_config", key),
                "accelerate-ignored-key",
                f"Accelerate ignores {key!r} in deepspeed_config",
                f"did you mean {guess!r}?"
                if guess
                else "remove it; what it should do belongs in a DeepSpeed JSON",
                source=LAUNCH,
            )
    if "deepspeed_config_file" in block:
        yield from _beside_config_file(document, block)
    else:
        yield from _plugin_values(document, block)
    yield from _multi_node(document, block)


def _beside_config_file(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    for key in REFUSED_BESIDE_CONFIG_FILE:
        if key in block:
            yield accelerate_finding(
                document,
                ("deepspeed_config", key),
                "accelerate-key-beside-config-file",
                f"Accelerate refuses {key} beside deepspeed_config_file",
                "remove it here, and set it in the DeepSpeed JSON",
                source=PLUGIN,
            )
    precision = document.value.get("mixed_precision")
    if precision is not None:
        yield accelerate_finding(
            document,
            ("mixed_precision",),
            "accelerate-key-beside-config-file",
            "Accelerate refuses mixed_precision beside deepspeed_config_file",
            "remove it here, and enable bf16 or fp16 in the DeepSpeed JSON",
            source=PLUGIN,
        )


def _plugin_values(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    stage = block.get("zero_stage", 2)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        yield accelerate_finding(
            document,
            ("deepspeed_config", "zero_stage"),
            "accelerate-zero-stage",
            f"zero_stage is {stage!r}",
            "use 0, 1, 2 or 3 without quotes",
            source=PLUGIN,
        )
        return
    for name in ("optimizer", "param"):
        yield from _plugin_offload(document, block, name, stage)
    if block.get("zero3_init_flag") is True and stage != 3:
        yield _init_flag(document, stage, "")


def _plugin_offload(document: Document, block: Mapping[str, Any], name: str, stage: int) -> Iterator[Finding]:
    key = f"offload_{name}_device"
    device = block.get(key)
    if device is None:
        return
    path = ("deepspeed_config", key)
    if device not in ("none", "cpu", "nvme"):
        yield accelerate_finding(
            document,
            path,
            "accelerate-offload-device",
            f"{key} is {device!r}",
            "use none, cpu or nvme",
            source=PLUGIN,
        )
    elif device != "none" and (stage == 0 or (name == "param" and stage != 3)):
        yield accelerate_finding(
            document,
            path,
            "accelerate-offload-stage",
            f"{key} needs stage {'3' if name == 'param' else '1, 2 or 3'}; at stage {stage} it is ignored",
            "change zero_stage, or set it to none",
            source="deepspeed/runtime/engine.py:2749 (0.19.8)",
        )
    elif device == "nvme":
        yield accelerate_finding(
            document,
            path,
            "accelerate-nvme-path-dropped",
            "accelerate launch passes on the device and drops the path: DeepSpeed writes to a folder 'none'",
            "give NVMe offload in a DeepSpeed JSON, named by deepspeed_config_file",
            source=f"accelerate/utils/launch.py, prepare_deepspeed_cmd_env ({ACCELERATE_VERSION})",
        )


def _init_flag(document: Document, stage: int, where: str) -> Finding:
    return accelerate_finding(
        document,
        ("deepspeed_config", "zero3_init_flag"),
        "accelerate-zero3-init-unused",
        f"zero3_init_flag does nothing at stage {stage}{where} (Accelerate warns and turns it off)",
        "set it to false",
        severity="note",
        source=PLUGIN,
    )


def _multi_node(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    launcher = block.get("deepspeed_multinode_launcher")
    launchers = key_list()["multinode_launchers"]
    if launcher is not None and launcher not in launchers:
        yield accelerate_finding(
            document,
            ("deepspeed_config", "deepspeed_multinode_launcher"),
            "accelerate-multinode-launcher",
            f"{launcher!r} is no launcher of DeepSpeed",
            f"use one of {', '.join(launchers)}",
            source=LAUNCH,
        )
    machines = document.value.get("num_machines", 1)
    if not isinstance(machines, int) or machines < 2:
        return
    if launcher in (None, "pdsh", "openmpi", "mvapich", "mpich") and not block.get("deepspeed_hostfile"):
        yield accelerate_finding(
            document,
            ("num_machines",),
            "accelerate-no-hostfile",
            f"{machines} machines through {launcher or 'pdsh'} without deepspeed_hostfile: "
            "DeepSpeed only warns, and trains on this machine alone",
            "add deepspeed_hostfile, or deepspeed_multinode_launcher: standard",
            source="deepspeed/launcher/runner.py:214 (0.19.8)",
        )
    if launcher == "standard" and not document.value.get("main_process_ip"):
        yield accelerate_finding(
            document,
            ("num_machines",),
            "accelerate-no-main-process",
            f"{machines} machines, and no main_process_ip: the nodes cannot find each other",
            "add main_process_ip and main_process_port, or pass them to accelerate launch",
            severity="note",
            source=LAUNCH,
        )
