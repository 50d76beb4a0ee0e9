"""What Accelerate, here or of another version, makes of a file that is written for FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def launched(path: Path) -> dict[str, str]:
    """The environment that the real ``accelerate launch --config_file`` would give the script."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env

    parser = launch.launch_command_parser()
    args = parser.parse_args(["--config_file", str(path), "--main_process_port", "0", "train.py"])
    args, _, _ = launch._validate_launch_command(args)
    assert args.use_fsdp
    environment: dict[str, str] = prepare_multi_gpu_env(args)
    return environment


def settings_of(plugin: Any, environment: dict[str, str]) -> dict[str, object]:
    return {
        "reshard": plugin.reshard_after_forward,
        "offload": type(plugin.cpu_offload).__name__,
        "checkpointing": plugin.activation_checkpointing,
        "wraps": plugin.auto_wrap_policy.__name__,
        "loading": bool(plugin.cpu_ram_efficient_loading),
        "precision": environment.get("ACCELERATE_MIXED_PRECISION"),
    }
