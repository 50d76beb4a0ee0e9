"""An accelerate YAML against the DeepSpeed JSON that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.linter.accelerate.deepspeed_block import init_flag, init_off
from zerokit.linter.accelerate.keys import PARALLELISM_PREFIX, PLUGIN
from zerokit.linter.finding import Finding, finding_at
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document


def lint_pair(document: Document, config: Mapping[str, Any], config_path: str) -> list[Finding]:
    """Conflicts between an accelerate YAML and the DeepSpeed JSON it names."""
    block = document.value.get("deepspeed_config")
    result: list[Finding] = []
    zero = config.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    if not isinstance(zero, Mapping):
        result.append(
            finding_at(
                document,
                ("deepspeed_config", "deepspeed_config_file"),
                "accelerate-config-without-zero",
                f"{config_path} has no zero_optimization: Accelerate refuses it",
                'add "zero_optimization": {"stage": 0} to it, or the stage that is meant',
                source=PLUGIN,
            )
        )
    if isinstance(block, Mapping) and block.get("zero3_init_flag") is True and stage in (0, 1, 2):
        result.append(init_flag(document, stage, f" in {config_path}"))
    if isinstance(block, Mapping) and block.get("zero3_init_flag") is False and stage == 3:
        result.append(init_off(document))
    if "optimizer" in config:
        result.append(
            finding_at(
                document,
                ("deepspeed_config", "deepspeed_config_file"),
                "accelerate-optimizer-in-file",
                f"{config_path} has an optimizer: Accelerate refuses a second one from the script "
                "(a Trainer, or a script with DummyOptim, has none)",
                f"remove the optimizer from {config_path} when the script makes its own",
                severity="note",
                source=f"Accelerate {ACCELERATE_VERSION}, accelerator.py, _prepare_deepspeed",
            )
        )
    parallelism = document.value.get("parallelism_config")
    size = parallelism.get(f"{PARALLELISM_PREFIX}sp_size") if isinstance(parallelism, Mapping) else None
    if isinstance(size, int) and size > 1 and isinstance(config.get("train_batch_size"), int):
        result.append(
            finding_at(
                document,
                ("parallelism_config", f"{PARALLELISM_PREFIX}sp_size"),
                "accelerate-sequence-parallel-batch",
                f"with sequence parallel, train_batch_size in {config_path} is checked against all ranks "
                "when the model is built",
                f"leave train_batch_size out of {config_path}",
                severity="warning",
                source="DeepSpeed 0.19.8, runtime/config.py:475",
            )
        )
    return result
