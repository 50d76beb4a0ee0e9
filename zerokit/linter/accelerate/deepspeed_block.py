"""The ``deepspeed_config`` block of an accelerate YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.linter.accelerate.beside_file import fix_beside_file, lint_beside_file
from zerokit.linter.accelerate.keys import (
    LAUNCH,
    PLUGIN,
    is_file,
    key_list,
    short,
)
from zerokit.linter.deepspeed.clipping import lint_clipping
from zerokit.linter.finding import Finding, finding_at, meant
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document
from zerokit.suggest import nearest

_NAMED_OTHERWISE = {
    "stage": "zero_stage",
    "offload_optimizer": "offload_optimizer_device",
    "offload_param": "offload_param_device",
    "config_file": "deepspeed_config_file",
    "hostfile": "deepspeed_hostfile",
}
"""Names of DeepSpeed's own JSON, and shorter ones."""


def lint_deepspeed_block(document: Document, config: Document | None = None) -> Iterator[Finding]:
    """Findings about the block.

    Args:
        config: the DeepSpeed JSON that it names, where that was read.
    """
    block = document.value.get("deepspeed_config")
    if block in (None, {}):
        yield _defaults(document)
        return
    if not isinstance(block, dict):
        yield finding_at(
            document,
            ("deepspeed_config",),
            "accelerate-deepspeed-block",
            f"deepspeed_config is {short(block)}: it must be a mapping",
            "name a file as deepspeed_config: {deepspeed_config_file: FILE}",
            source=LAUNCH,
        )
        return
    known_keys = key_list()["deepspeed_config"]
    for key in block:
        if key not in known_keys:
            guess = _NAMED_OTHERWISE.get(str(key)) or nearest(str(key), known_keys)
            fix = meant(guess, block) if guess else "remove it; what it should do belongs in a DeepSpeed JSON"
            yield finding_at(
                document,
                ("deepspeed_config", key),
                "accelerate-ignored-key",
                f"Accelerate ignores {short(key)} in deepspeed_config",
                fix_beside_file(document, guess, block[key], config) or fix,
                suggests=guess or str(key),
                severity="warning",
                source=LAUNCH,
            )
    named = block.get("deepspeed_config_file")
    if named is not None and (not isinstance(named, str) or not named):
        yield finding_at(
            document,
            ("deepspeed_config", "deepspeed_config_file"),
            "accelerate-config-file-missing",
            f"deepspeed_config_file is {short(named)}: Accelerate fails on it",
            "name a DeepSpeed JSON",
            source=PLUGIN,
        )
    elif named is not None and named.endswith((".yaml", ".yml")):
        yield finding_at(
            document,
            ("deepspeed_config", "deepspeed_config_file"),
            "accelerate-config-file-kind",
            f"{named[:60]} is a YAML by its name: Accelerate reads a DeepSpeed JSON here, and fails on it",
            "name a DeepSpeed JSON",
            source=PLUGIN,
        )
    elif named is not None:
        yield from lint_beside_file(document, block, config)
        yield from _flags(document, block)
    else:
        yield from _plugin_values(document, block)
    yield from _multi_node(document, block)


def _plugin_values(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _plugin_numbers(document, block)
    known_keys = key_list()["deepspeed_config"]
    if "zero_stage" not in block:
        yield _defaults(document)
    misspelt = next(
        (key for key in block if key not in known_keys and nearest(str(key), known_keys) == "zero_stage"),
        None,
    )
    stage = block.get(
        "zero_stage", document.value.get("zero_stage", 2) if misspelt is None else block[misspelt]
    )
    if stage is None:
        stage = 2
    if isinstance(stage, bool | float) or stage not in (0, 1, 2, 3, "0", "1", "2", "3"):
        yield finding_at(
            document,
            ("deepspeed_config", "zero_stage"),
            "accelerate-zero-stage",
            f"zero_stage is {short(stage)}: accelerate launch fails on it",
            "use 0, 1, 2 or 3 without quotes",
            source=PLUGIN,
        )
        return
    if isinstance(stage, str):
        yield finding_at(
            document,
            ("deepspeed_config", "zero_stage"),
            "accelerate-zero-stage",
            f"zero_stage is the text {short(stage)}: Accelerate reads the number, other tools may not",
            "use 0, 1, 2 or 3 without quotes",
            severity="warning",
            source=PLUGIN,
        )
    stage = int(stage)
    for name in ("optimizer", "param"):
        yield from _plugin_offload(document, block, name, stage)
    flag, save = block.get("zero3_init_flag"), block.get("zero3_save_16bit_model")
    if flag is True and stage != 3:
        yield init_flag(document, stage, "")
    if flag is False and stage == 3:
        yield init_off(document)
    yield from _flags(document, block)
    if isinstance(save, str) and save.lower() not in ("true", "false"):
        yield finding_at(
            document,
            ("deepspeed_config", "zero3_save_16bit_model"),
            "accelerate-flag-as-text",
            f"zero3_save_16bit_model is the text {short(save)}: Accelerate takes anything but true as false",
            "write true or false without quotes",
            source=PLUGIN,
        )


_TRUTH_WORDS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")


def _flags(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Accelerate hands ``zero3_init_flag`` on as text, and takes a few words for true or false."""
    flag = block.get("zero3_init_flag")
    if flag is None or str(flag).lower() in _TRUTH_WORDS:
        return
    yield finding_at(
        document,
        ("deepspeed_config", "zero3_init_flag"),
        "accelerate-flag-as-text",
        f"zero3_init_flag is {short(flag)}: Accelerate fails on it",
        "write true or false without quotes",
        source=PLUGIN,
    )


def _plugin_numbers(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Accelerate reads both out of text: ``int`` of digits, ``float`` of anything but auto."""
    steps, clipping = block.get("gradient_accumulation_steps"), block.get("gradient_clipping")
    if steps not in (None, "auto") and (not str(steps).isdecimal() or int(str(steps)) < 1):
        yield finding_at(
            document,
            ("deepspeed_config", "gradient_accumulation_steps"),
            "accelerate-plugin-number",
            f"gradient_accumulation_steps is {short(steps)}: the engine fails to start",
            "use auto, or a whole number of at least 1",
            source=PLUGIN,
        )
    key = ("deepspeed_config", "gradient_clipping")
    yield from lint_clipping(document, key, clipping, frozenset({"accelerate"}))
    try:
        float("0" if clipping in (None, "auto") else str(clipping))
    except ValueError:
        yield finding_at(
            document,
            key,
            "accelerate-plugin-number",
            f"gradient_clipping is {short(clipping)}: Accelerate fails on it",
            "use auto, or a number; 0 turns clipping off",
            source=PLUGIN,
        )


def _defaults(document: Document) -> Finding:
    return finding_at(
        document,
        ("deepspeed_config",) if "deepspeed_config" in document.value else ("distributed_type",),
        "accelerate-deepspeed-defaults",
        "neither a DeepSpeed JSON nor zero_stage is named: Accelerate runs ZeRO stage 2 with its defaults",
        "name a DeepSpeed JSON as deepspeed_config_file, or write zero_stage",
        missing=("zero_stage", "deepspeed_config"),
        severity="warning",
        source=PLUGIN,
    )


_NVME_IN_FILE = "give NVMe offload in a DeepSpeed JSON, named by deepspeed_config_file"


def _plugin_offload(document: Document, block: Mapping[str, Any], name: str, stage: int) -> Iterator[Finding]:
    key = f"offload_{name}_device"
    device = block.get(key)
    if device is None:
        return
    path = ("deepspeed_config", key)
    device = str(device).lower()  # as accelerate/utils/launch.py hands it on
    if device not in ("none", "cpu", "nvme"):
        yield finding_at(
            document,
            path,
            "accelerate-offload-device",
            f"{key} is {short(device)}",
            "use none, cpu or nvme",
            source=PLUGIN,
        )
    elif device != "none" and (stage == 0 or (name == "param" and stage != 3)):
        stages = "3" if name == "param" else "1, 2 or 3"
        fix = f"set zero_stage to {stages}, or {key} to none"
        if device == "nvme":
            fix = (
                f"set {key} to none, or {_NVME_IN_FILE}, at stage {stages}; "
                "accelerate launch passes on no path"
            )
        yield finding_at(
            document,
            path,
            "accelerate-offload-stage",
            f"{key} works at stage {stages} only; at stage {stage} it is "
            f"ignored, and the {'weights' if name == 'param' else 'optimizer states'} stay on the GPU",
            fix,
            severity="warning",
            source="DeepSpeed 0.19.8, runtime/engine.py:2749",
        )
    elif device == "nvme":
        yield finding_at(
            document,
            path,
            "accelerate-nvme-path-dropped",
            "accelerate launch passes on the device, but never a path: DeepSpeed writes to a folder 'none'",
            _NVME_IN_FILE,
            source=f"Accelerate {ACCELERATE_VERSION}, utils/launch.py, prepare_deepspeed_cmd_env",
        )


def init_off(document: Document) -> Finding:
    """Stage 3 without building the model divided."""
    return finding_at(
        document,
        ("deepspeed_config", "zero3_init_flag"),
        "accelerate-zero3-init-off",
        "at stage 3 with zero3_init_flag off, every rank first builds the whole model",
        "set zero3_init_flag: true, unless the model must be built whole",
        severity="note",
        source=PLUGIN,
    )


def init_flag(document: Document, stage: int, key: str) -> Finding:
    """Building divided, asked for below stage 3."""
    return finding_at(
        document,
        ("deepspeed_config", "zero3_init_flag"),
        "accelerate-zero3-init-unused",
        f"zero3_init_flag does nothing at stage {stage}{key} (Accelerate warns and turns it off)",
        "set it to false",
        severity="note",
        source=PLUGIN,
    )


def _multi_node(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    launcher = block.get("deepspeed_multinode_launcher")
    launchers = key_list()["multinode_launchers"]
    if launcher is not None and launcher not in launchers:
        yield finding_at(
            document,
            ("deepspeed_config", "deepspeed_multinode_launcher"),
            "accelerate-multinode-launcher",
            f"{short(launcher)} is no launcher of DeepSpeed",
            f"use one of {', '.join(launchers)}",
            source=LAUNCH,
        )
    hostfile = block.get("deepspeed_hostfile")
    if isinstance(hostfile, str) and not is_file(hostfile):
        yield finding_at(
            document,
            ("deepspeed_config", "deepspeed_hostfile"),
            "accelerate-hostfile-missing",
            f"{short(hostfile)} is not here: DeepSpeed then only warns, and trains on one machine alone",
            "correct the path",
            severity="warning",
            source="DeepSpeed 0.19.8, launcher/runner.py:214",
        )
    machines = document.value.get("num_machines", 1)
    if not isinstance(machines, int) or machines < 2:
        return
    if launcher in (None, "pdsh", "openmpi", "mvapich", "mpich") and not block.get("deepspeed_hostfile"):
        yield finding_at(
            document,
            ("num_machines",),
            "accelerate-no-hostfile",
            f"{machines} machines through {launcher or 'pdsh'} without deepspeed_hostfile: "
            "DeepSpeed only warns, and trains on this machine alone",
            "add deepspeed_hostfile, or deepspeed_multinode_launcher: standard",
            severity="warning",
            source="DeepSpeed 0.19.8, launcher/runner.py:214",
        )
    if launcher == "standard" and not document.value.get("main_process_ip"):
        yield finding_at(
            document,
            ("num_machines",),
            "accelerate-no-main-process",
            f"{machines} machines, and no main_process_ip: the nodes cannot find each other",
            "add main_process_ip and main_process_port, or pass them to accelerate launch",
            severity="note",
            source=LAUNCH,
        )
