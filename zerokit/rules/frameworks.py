"""Rules that hold for the Trainer and Accelerate alone: ``deepspeed.initialize`` takes what they refuse."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.rules.types import FRAMEWORKS, Rule, Setup


def _offload_null(setup: Setup) -> bool:
    zero = setup.get("zero_optimization")
    present = isinstance(zero, Mapping) and "offload_optimizer" in zero and zero["offload_optimizer"] is None
    return present and not setup.has("optimizer")


def keeps_the_scripts_optimizer(setup: Setup) -> bool:
    """Whether both leave torch's optimizer to an offload that only DeepSpeed's can do.

    They replace it where there is an ``offload_optimizer``, and do not know its old name.
    """
    offloads = setup.get("zero_optimization.cpu_offload") is True and setup.settings.zero.stage > 0
    forced = setup.get("zero_force_ds_cpu_optimizer") is not False
    renamed = setup.has("zero_optimization.offload_optimizer")
    return offloads and forced and not renamed and not setup.has("optimizer")


FRAMEWORK_RULES: tuple[Rule, ...] = (
    Rule(
        id="no-zero-optimization",
        missing="zero_optimization",
        source="accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__",
        key="",
        message="there is no zero_optimization: the Trainer and Accelerate refuse the file, deepspeed.initialize runs "
        "stage 0",
        fix='add "zero_optimization": {"stage": 0}, or the stage that is meant',
        # DeepSpeed's autotuner writes the block of every trial (autotuning/autotuner.py:753)
        broken=lambda s: not (s.has("zero_optimization") or s.get("autotuning.enabled") is True),
        readers=FRAMEWORKS,
        otherwise="note",
    ),
    Rule(
        id="zero-not-an-object",
        source="accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__",
        key="zero_optimization",
        message="zero_optimization is true or false: the Trainer and Accelerate fail on it",
        fix='write {"stage": 1}, or the stage that is meant',
        broken=lambda s: isinstance(s.get("zero_optimization"), bool),
        readers=FRAMEWORKS,
        otherwise=None,
    ),
    Rule(
        id="offload-null",
        source="accelerate/accelerator.py, _prepare_deepspeed",
        key="zero_optimization.offload_optimizer",
        message="offload_optimizer is null: the Trainer and Accelerate ask it for a device, and fail where the file "
        "has no optimizer",
        fix="remove it",
        broken=_offload_null,
        readers=FRAMEWORKS,
    ),
    Rule(
        id="cpu-offload-with-scripts-optimizer",
        source="deepspeed/runtime/engine.py:2344",
        key="zero_optimization.cpu_offload",
        message="cpu_offload is the old name: the Trainer and Accelerate look for offload_optimizer, keep torch's "
        "optimizer, and DeepSpeed refuses to offload that",
        fix='write "offload_optimizer": {"device": "cpu"}',
        broken=keeps_the_scripts_optimizer,
        readers=FRAMEWORKS,
        otherwise=None,
    ),
    Rule(
        id="activation-checkpointing-not-read",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/activation_checkpointing/checkpointing.py:1152",
        key="activation_checkpointing",
        message="nobody reads activation_checkpointing: only a script that calls deepspeed.checkpointing.configure "
        "does; the Trainer and Accelerate do not",
        fix="remove it, and turn gradient_checkpointing on in the training arguments or the script",
        broken=lambda s: bool(s.get("activation_checkpointing")),
        readers=FRAMEWORKS,
        otherwise="note",
    ),
)
