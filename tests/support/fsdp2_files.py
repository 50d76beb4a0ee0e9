"""What Accelerate, here or of another version, makes of a file that is written for FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent.parent / "scripts" / "fsdp2_accelerated.py"


def launched(path: Path) -> dict[str, str]:
    """The environment that the real ``accelerate launch --config_file`` would give the script."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    parser = launch.launch_command_parser()
    args = parser.parse_args(["--config_file", str(path), "--main_process_port", "0", "train.py"])
    args, defaults, _ = launch._validate_launch_command(args)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        told: dict[str, str] = prepare_deepspeed_cmd_env(args)[1]
        return told
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


def run(words: list[str], folder: Path) -> dict[str, Any]:
    """What the script saw that is started with ``python -m WORDS`` on CPU ranks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if "SEEN " in line)
    seen: dict[str, Any] = json.loads(line.partition("SEEN ")[2])
    return seen
