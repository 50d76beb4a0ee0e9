"""The ``deepspeed_config`` block of an accelerate YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX
from zerokit.domain.settings import PLUGIN_KEYS, value_at
from zerokit.linter.accelerate.keys import (
    IGNORED_KEY,
    LAUNCH,
    PLUGIN,
    TRUTH_WORDS,
    is_file,
    key_list,
)
from zerokit.linter.deepspeed.clipping import lint_accumulation, lint_clipping
from zerokit.linter.deepspeed.values import quoted
from zerokit.linter.finding import Finding, Row, broken, meant
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document, Path
from zerokit.suggest import nearest

_PRECISIONS = ("bf16", "fp16")
_NONE = ("no", "false")  # without quotes, no is a boolean in YAML
_GENERAL_PRECISION_FIX = "remove it here, and enable bf16 or fp16 in the DeepSpeed JSON"


_KEY_BESIDE_CONFIG_FILE = Row(
    "accelerate-key-beside-config-file", "", "Accelerate refuses {named_path} beside deepspeed_config_file",
    "{fix}", PLUGIN,
)  # fmt: skip
_DEEPSPEED_BLOCK = Row(
    "accelerate-deepspeed-block", "deepspeed_config", "deepspeed_config is {block!r}: it must be a mapping",
    "name a file as deepspeed_config: {deepspeed_config_file: FILE}", LAUNCH,
)  # fmt: skip
_CONFIG_FILE_MISSING = Row(
    "accelerate-config-file-missing", "deepspeed_config.deepspeed_config_file",
    "deepspeed_config_file is {named!r}: Accelerate fails on it", "name a DeepSpeed JSON", PLUGIN,
)  # fmt: skip
_CONFIG_FILE_KIND = Row(
    "accelerate-config-file-kind", "deepspeed_config.deepspeed_config_file",
    "{named} is a YAML by its name: Accelerate reads a DeepSpeed JSON here, and fails on it",
    "name a DeepSpeed JSON", PLUGIN,
)  # fmt: skip
_ZERO_STAGE = Row(
    "accelerate-zero-stage", "deepspeed_config.zero_stage",
    "zero_stage is {stage!r}: accelerate launch fails on it", "use 0, 1, 2 or 3 without quotes", PLUGIN,
)  # fmt: skip
_ZERO_STAGE_AS_TEXT = Row(
    "accelerate-zero-stage", "deepspeed_config.zero_stage",
    "zero_stage is the text {stage!r}: Accelerate reads the number, other tools may not",
    "use 0, 1, 2 or 3 without quotes", PLUGIN, "warning",
)  # fmt: skip
_SAVE_FLAG_AS_TEXT = Row(
    "accelerate-flag-as-text", "deepspeed_config.zero3_save_16bit_model",
    "zero3_save_16bit_model is the text {save!r}: Accelerate takes anything but true as false",
    "write true or false without quotes", PLUGIN,
)  # fmt: skip
_INIT_FLAG_AS_TEXT = Row(
    "accelerate-flag-as-text", "deepspeed_config.zero3_init_flag",
    "zero3_init_flag is {flag!r}: Accelerate fails on it", "write true or false without quotes", PLUGIN,
)  # fmt: skip
_PLUGIN_STEPS = Row(
    "accelerate-plugin-number", "deepspeed_config.gradient_accumulation_steps",
    "gradient_accumulation_steps is {steps!r}: the engine fails to start",
    "use auto, or a whole number of at least 1", PLUGIN,
)  # fmt: skip
_PLUGIN_CLIPPING = Row(
    "accelerate-plugin-number", "deepspeed_config.gradient_clipping",
    "gradient_clipping is {clipping!r}: Accelerate fails on it",
    "use auto, or a number; 0 turns clipping off", PLUGIN,
)  # fmt: skip
_DEEPSPEED_DEFAULTS = Row(
    "accelerate-deepspeed-defaults", "",
    "neither a DeepSpeed JSON nor zero_stage is named: Accelerate runs ZeRO stage 2 with its defaults",
    "name a DeepSpeed JSON as deepspeed_config_file, or write zero_stage", PLUGIN, "warning",
    missing=("zero_stage", "deepspeed_config"),
)  # fmt: skip
_OFFLOAD_DEVICE = Row(
    "accelerate-offload-device", "", "{key} is {device!r}", "use none, cpu or nvme", PLUGIN,
)  # fmt: skip
_OFFLOAD_STAGE = Row(
    "accelerate-offload-stage", "",
    "{key} works at stage {stages} only; at stage {stage} it is ignored, and the {parts} stay on the GPU",
    "{fix}", "DeepSpeed 0.19.8, runtime/engine.py:2749", "warning",
)  # fmt: skip
_NVME_PATH_DROPPED = Row(
    "accelerate-nvme-path-dropped", "",
    "accelerate launch passes on the device, but never a path: DeepSpeed writes to a folder 'none'",
    "{fix}", f"Accelerate {ACCELERATE_VERSION}, utils/launch.py, prepare_deepspeed_cmd_env",
)  # fmt: skip
_OF_ZERO3_INIT = (
    Row(
        "accelerate-zero3-init-unused", "deepspeed_config.zero3_init_flag",
        "zero3_init_flag does nothing at stage {stage}{in_file} (Accelerate warns and turns it off)",
        "set it to false", PLUGIN, "note", lambda at: at["flag"] is True and at["stage"] in (0, 1, 2),
    ),
    Row(
        "accelerate-zero3-init-off", "deepspeed_config.zero3_init_flag",
        "at stage 3 with zero3_init_flag off, every rank first builds the whole model",
        "set zero3_init_flag: true, unless the model must be built whole", PLUGIN, "note",
        lambda at: at["flag"] is False and at["stage"] == 3,
    ),
)  # fmt: skip
_MULTINODE_LAUNCHER = Row(
    "accelerate-multinode-launcher", "deepspeed_config.deepspeed_multinode_launcher",
    "{launcher!r} is no launcher of DeepSpeed", "use one of {launchers}", LAUNCH,
)  # fmt: skip
_MISSING = Row(
    "accelerate-hostfile-missing", "deepspeed_config.deepspeed_hostfile",
    "{hostfile!r} is not here: DeepSpeed then only warns, and trains on one machine alone",
    "correct the path", "DeepSpeed 0.19.8, launcher/runner.py:214", "warning",
)  # fmt: skip
_NO_HOSTFILE = Row(
    "accelerate-no-hostfile", "num_machines",
    "{machines} machines through {launcher} without deepspeed_hostfile: DeepSpeed only warns, and trains "
    "on this machine alone", "add deepspeed_hostfile, or deepspeed_multinode_launcher: standard",
    "DeepSpeed 0.19.8, launcher/runner.py:214", "warning",
)  # fmt: skip
_NO_MAIN_PROCESS = Row(
    "accelerate-no-main-process", "num_machines",
    "{machines} machines, and no main_process_ip: the nodes cannot find each other",
    "add main_process_ip and main_process_port, or pass them to accelerate launch", LAUNCH, "note",
)  # fmt: skip
_OF_PAIR = (
    Row(
        "accelerate-config-without-zero", "deepspeed_config.deepspeed_config_file",
        "{config_path} has no zero_optimization: Accelerate refuses it",
        "add \"zero_optimization\": {\"stage\": 0} to it, or the stage that is meant", PLUGIN,
        broken=lambda at: not isinstance(at["config"].get("zero_optimization"), Mapping),
    ),
    *_OF_ZERO3_INIT,
    Row(
        "accelerate-optimizer-in-file", "deepspeed_config.deepspeed_config_file",
        "{config_path} has an optimizer: Accelerate refuses a second one from the script (a Trainer, or a "
        "script with DummyOptim, has none)",
        "remove the optimizer from {config_path} when the script makes its own",
        f"Accelerate {ACCELERATE_VERSION}, accelerator.py, _prepare_deepspeed", "note",
        lambda at: "optimizer" in at["config"],
    ),
    Row(
        "accelerate-sequence-parallel-batch", f"parallelism_config.{PARALLELISM_PREFIX}sp_size",
        "with sequence parallel, train_batch_size in {config_path} is checked against all ranks when the "
        "model is built", "leave train_batch_size out of {config_path}",
        "DeepSpeed 0.19.8, runtime/config.py:475", "warning",
        lambda at: isinstance(at["size"], int) and at["size"] > 1
        and isinstance(at["config"].get("train_batch_size"), int),
    ),
)  # fmt: skip


def lint_beside_file(
    document: Document, block: Mapping[str, Any], config: Document | None
) -> Iterator[Finding]:
    """A finding for each such key; its fix follows what the JSON has, where ``config`` was read."""
    for key in PLUGIN_KEYS:
        if key in block:
            yield _refused(document, ("deepspeed_config", key), _fix_of(key, block[key], config))
    precision = document.value.get("mixed_precision")
    if precision is not None:
        yield _refused(document, ("mixed_precision",), _fix_of("mixed_precision", precision, config))


def fix_beside_file(
    document: Document, key: str | None, value: object, config: Document | None
) -> str | None:
    """The fix of what was probably meant as ``key``, where that is refused beside the JSON that is named.
    None: Accelerate would take ``key``."""
    block = document.value.get("deepspeed_config")
    is_named = isinstance(block, dict) and block.get("deepspeed_config_file") is not None
    if document.value.get("distributed_type") != "DEEPSPEED" or not is_named:
        return None
    if key is None or key not in (*PLUGIN_KEYS, "mixed_precision"):
        return None
    return f"{_fix_of(key, value, config)} (Accelerate refuses {key}, too, beside deepspeed_config_file)"


def _fix_of(key: str, value: object, config: Document | None) -> str:
    """What to do with a key that is refused; it follows what the JSON has, where that was read."""
    file = config.value if config is not None and isinstance(config.value, dict) else None
    is_precision = key == "mixed_precision"
    if file is None or config is None:
        return _GENERAL_PRECISION_FIX if is_precision else "remove it here, and set it in the DeepSpeed JSON"
    if is_precision:
        return _precision_fix(str(value).lower(), file, config.path)
    dotted, name = PLUGIN_KEYS[key], config.path
    there = value_at(file, dotted)
    if there is None and value in ("none", False):
        return f"remove it here; {name} has no {dotted}, which means the same"
    if there in (None, "auto"):
        return f"remove it here, and set {dotted} to {quoted(value)} in {name}"
    if value == there:
        return f"remove it here; {name} already has {dotted} {quoted(there)}"
    return f"remove it here; {name} has {dotted} {quoted(there)}: write the value that you mean there"


def _refused(document: Document, path: Path, fix: str) -> Finding:
    return _KEY_BESIDE_CONFIG_FILE.at(document, path, named_path=path[-1], fix=fix)


def _precision_fix(here: str, config: Mapping[str, Any], file: str) -> str:
    enabled = {name: value_at(config, f"{name}.enabled") for name in _PRECISIONS}
    there = next((name for name, value in enabled.items() if value is True), None)
    if here == there:
        return f"remove it here; {file} already has {there}"
    if there is not None:
        return f"remove it here; {file} has {there}: enable the one that you mean there"
    if here in _NONE:
        return f"remove it here; {file} enables neither bf16 nor fp16, which means the same"
    if here not in _PRECISIONS:
        return _GENERAL_PRECISION_FIX
    return f"remove it here, and set {here}.enabled to true in {file}"


_NAMED_OTHERWISE = {
    "stage": "zero_stage",
    "offload_optimizer": "offload_optimizer_device",
    "offload_param": "offload_param_device",
    "config_file": "deepspeed_config_file",
    "hostfile": "deepspeed_hostfile",
}
"""Names of DeepSpeed's own JSON, and shorter ones."""


def lint_deepspeed_block(document: Document, config: Document | None = None) -> Iterator[Finding]:
    """Findings about the block; ``config``: the DeepSpeed JSON that it names, where that was read."""
    block = document.value.get("deepspeed_config")
    if block in (None, {}):
        yield _defaults(document)
        return
    if not isinstance(block, dict):
        yield _DEEPSPEED_BLOCK.at(document, block=block)
        return
    known_keys = key_list()["deepspeed_config"]
    for key in block:
        if key not in known_keys:
            guess = _NAMED_OTHERWISE.get(str(key)) or nearest(str(key), known_keys)
            fix = meant(guess, block) if guess else "remove it; what it should do belongs in a DeepSpeed JSON"
            fix = fix_beside_file(document, guess, block[key], config) or fix
            path = ("deepspeed_config", key)
            yield IGNORED_KEY.at(document, path, suggests=guess or str(key), key=key, block=path[0], fix=fix)
    named = block.get("deepspeed_config_file")
    if named is not None and (not isinstance(named, str) or not named):
        yield _CONFIG_FILE_MISSING.at(document, named=named)
    elif named is not None and named.endswith((".yaml", ".yml")):
        yield _CONFIG_FILE_KIND.at(document, named=named[:60])
    elif named is not None:
        yield from lint_beside_file(document, block, config)
        yield from _flags(document, block)
    else:
        yield from _plugin_values(document, block)
    launcher = block.get("deepspeed_multinode_launcher")
    launchers = key_list()["multinode_launchers"]
    if launcher is not None and launcher not in launchers:
        yield _MULTINODE_LAUNCHER.at(document, launcher=launcher, launchers=", ".join(launchers))
    hostfile = block.get("deepspeed_hostfile")
    if isinstance(hostfile, str) and not is_file(hostfile):
        yield _MISSING.at(document, hostfile=hostfile)
    machines = document.value.get("num_machines", 1)
    if not isinstance(machines, int) or machines < 2:
        return
    if launcher in (None, "pdsh", "openmpi", "mvapich", "mpich") and not block.get("deepspeed_hostfile"):
        yield _NO_HOSTFILE.at(document, machines=machines, launcher=launcher or "pdsh")
    if launcher == "standard" and not document.value.get("main_process_ip"):
        yield _NO_MAIN_PROCESS.at(document, machines=machines)


def _plugin_values(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _plugin_numbers(document, block)
    known_keys = key_list()["deepspeed_config"]
    if "zero_stage" not in block:
        yield _defaults(document)
    unknown = (key for key in block if key not in known_keys)
    misspelt = next((key for key in unknown if nearest(str(key), known_keys) == "zero_stage"), None)
    otherwise = document.value.get("zero_stage", 2) if misspelt is None else block[misspelt]
    stage = block.get("zero_stage", otherwise)
    stage = 2 if stage is None else stage
    if isinstance(stage, bool | float) or stage not in (0, 1, 2, 3, "0", "1", "2", "3"):
        yield _ZERO_STAGE.at(document, stage=stage)
        return
    if isinstance(stage, str):
        yield _ZERO_STAGE_AS_TEXT.at(document, stage=stage)
    stage = int(stage)
    for name in ("optimizer", "param"):
        yield from _plugin_offload(document, block, name, stage)
    flag, save = block.get("zero3_init_flag"), block.get("zero3_save_16bit_model")
    yield from broken(_OF_ZERO3_INIT, document, {"flag": flag, "stage": stage}, stage=stage, in_file="")
    yield from _flags(document, block)
    if isinstance(save, str) and save.lower() not in ("true", "false"):
        yield _SAVE_FLAG_AS_TEXT.at(document, save=save)


def _flags(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Accelerate hands ``zero3_init_flag`` on as text, and takes a few words for true or false."""
    flag = block.get("zero3_init_flag")
    if flag is not None and str(flag).lower() not in TRUTH_WORDS:
        yield _INIT_FLAG_AS_TEXT.at(document, flag=flag)


def _plugin_numbers(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Accelerate reads both out of text: ``int`` of digits, ``float`` of anything but auto."""
    steps, clipping = block.get("gradient_accumulation_steps"), block.get("gradient_clipping")
    if steps not in (None, "auto") and (not str(steps).isdecimal() or int(str(steps)) < 1):
        yield _PLUGIN_STEPS.at(document, steps=steps)
    yield from lint_accumulation(document, ("deepspeed_config", "gradient_accumulation_steps"), steps)
    key = ("deepspeed_config", "gradient_clipping")
    yield from lint_clipping(document, key, clipping, frozenset({"accelerate"}))
    try:
        float("0" if clipping in (None, "auto") else str(clipping))
    except ValueError:
        yield _PLUGIN_CLIPPING.at(document, clipping=clipping)


def _defaults(document: Document) -> Finding:
    key = "deepspeed_config" if "deepspeed_config" in document.value else "distributed_type"
    return _DEEPSPEED_DEFAULTS.at(document, (key,))


_NVME_IN_FILE = "give NVMe offload in a DeepSpeed JSON, named by deepspeed_config_file"


def _plugin_offload(document: Document, block: Mapping[str, Any], name: str, stage: int) -> Iterator[Finding]:
    key = f"offload_{name}_device"
    device = block.get(key)
    if device is None:
        return
    path = ("deepspeed_config", key)
    device = str(device).lower()  # as accelerate/utils/launch.py hands it on
    if device not in ("none", "cpu", "nvme"):
        yield _OFFLOAD_DEVICE.at(document, path, key=key, device=device)
    elif device != "none" and (stage == 0 or (name == "param" and stage != 3)):
        stages = "3" if name == "param" else "1, 2 or 3"
        fix = f"set zero_stage to {stages}, or {key} to none"
        if device == "nvme":
            fix = f"set {key} to none, or {_NVME_IN_FILE}, at stage {stages}; "
            fix += "accelerate launch passes on no path"
        parts = "weights" if name == "param" else "optimizer states"
        yield _OFFLOAD_STAGE.at(document, path, key=key, stages=stages, stage=stage, parts=parts, fix=fix)
    elif device == "nvme":
        yield _NVME_PATH_DROPPED.at(document, path, fix=_NVME_IN_FILE)


def lint_pair(document: Document, config: Mapping[str, Any], config_path: str) -> list[Finding]:
    """Conflicts between an accelerate YAML and the DeepSpeed JSON it names."""
    zero = config.get("zero_optimization")
    at = {
        "config": config,
        "stage": zero.get("stage") if isinstance(zero, Mapping) else None,
        "flag": value_at(document.value, "deepspeed_config.zero3_init_flag"),
        "size": value_at(document.value, f"parallelism_config.{PARALLELISM_PREFIX}sp_size"),
    }
    in_file = f" in {config_path}"
    return list(broken(_OF_PAIR, document, at, config_path=config_path, stage=at["stage"], in_file=in_file))
