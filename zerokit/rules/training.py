"""Rules about optimizer, scheduler and the reduction of gradients, as a DeepSpeed JSON says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.rules.known import SCHEDULERS, TORCH_SCHEDULERS
from zerokit.rules.types import Rule, Setup

_CLIP = "max_grad_norm"


def _unknown_scheduler(setup: Setup) -> bool | Mapping[str, Any]:
    name = setup.get("scheduler.type")
    if not isinstance(name, str) or name in SCHEDULERS:
        return False
    without_zero = setup.settings.zero.stage == 0 and setup.settings.precision == "fp32"
    if name in TORCH_SCHEDULERS and without_zero:  # DeepSpeed's wrappers are no torch optimizers
        return False
    right = next((scheduler for scheduler in SCHEDULERS if scheduler.lower() == name.lower()), None)
    return {"name": name, "instead": f"write {right}" if right else f"use {', '.join(sorted(SCHEDULERS))}"}


def _without_total_steps(setup: Setup) -> bool:
    decays = setup.get("scheduler.type") in ("WarmupDecayLR", "WarmupCosineLR")
    has_params = isinstance(setup.get("scheduler.params"), Mapping)
    return decays and has_params and not setup.has("scheduler.params.total_num_steps")


def _no_parameters(setup: Setup) -> bool:
    kind = setup.get("scheduler.type")
    is_known = isinstance(kind, str) and (kind in SCHEDULERS or kind in TORCH_SCHEDULERS)
    return is_known and setup.get("scheduler.params") is None


def _torch_scheduler(setup: Setup) -> bool | Mapping[str, Any]:
    name, params = setup.get("scheduler.type"), setup.get("scheduler.params")
    without_zero = setup.settings.zero.stage == 0 and setup.settings.precision == "fp32"
    is_torch = isinstance(name, str) and name in TORCH_SCHEDULERS
    if not without_zero or not is_torch or not isinstance(params, Mapping):
        return False
    required, optional = TORCH_SCHEDULERS[name]
    if "lr_lambda" in required or "schedulers" in required or name == "ChainedScheduler":
        return {
            "name": name,
            "why": "needs objects that no JSON can hold",
            "instead": "build it in the script",
        }
    missing = [key for key in required if key not in params]
    if missing:
        listed = " and ".join(missing)
        return {"name": name, "why": f"needs {listed}", "instead": f"add {listed} to params"}
    unknown = next(
        (key for key in params if key not in (*required, *optional, "last_epoch", "verbose")), None
    )
    if unknown is None:
        return False
    accepted = ", ".join((*required, *optional))
    return {"name": name, "why": f"takes no parameter {unknown!r}", "instead": f"use {accepted}"}


_RANDOM_LTD = "data_efficiency.data_routing.random_ltd"
_OF_RANDOM_LTD = (
    "total_layer_num", "random_ltd_layer_num", "random_ltd_schedule", "random_ltd_schedule.min_value",
    "random_ltd_schedule.max_value", "random_ltd_schedule.schedule_config", "random_ltd_schedule.schedule_type",
)  # fmt: skip


def _random_ltd(setup: Setup) -> bool | Mapping[str, Any]:
    """Read whatever ``data_efficiency`` and ``data_routing`` say of being enabled."""
    if setup.get(f"{_RANDOM_LTD}.enabled") is not True:
        return False
    if setup.get(f"{_RANDOM_LTD}.layer_token_lr_schedule.enabled") is True:
        return {"what": "layer_token_lr_schedule is not implemented", "instead": "turn it off"}
    missing = next((key for key in _OF_RANDOM_LTD if not setup.has(f"{_RANDOM_LTD}.{key}")), None)
    return missing is not None and {"what": f"random_ltd needs {missing}", "instead": f"add {missing}"}


def _keep_in_fp32(setup: Setup) -> bool:
    value = setup.get("data_types.keep_in_fp32_modules", "auto")
    return value != "auto" and not (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _cycle_without_limits(setup: Setup) -> bool | Mapping[str, Any]:
    if setup.get("scheduler.type") != "OneCycle" or not isinstance(setup.get("scheduler.params"), Mapping):
        return False
    missing = [name for name in ("cycle_min_lr", "cycle_max_lr") if not setup.has(f"scheduler.params.{name}")]
    return bool(missing) and {"missing": " and ".join(missing)}


def _communication_type(setup: Setup) -> bool | Mapping[str, Any]:
    for name in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = setup.get(name)
        if isinstance(value, str) and value.lower() not in ("fp16", "bf16", "fp32"):
            return {"name": name, "value": value}
    return False


def _warmup_beyond_total(setup: Setup) -> bool | Mapping[str, Any]:
    warmup, total = (setup.get(f"scheduler.params.{name}_num_steps") for name in ("warmup", "total"))
    if setup.get("scheduler.type") not in ("WarmupDecayLR", "WarmupCosineLR"):
        return False
    if not all(isinstance(steps, int) and not isinstance(steps, bool) for steps in (warmup, total)):
        return False
    return warmup > total and {"warmup": warmup, "total": total}


def _warmup(setup: Setup) -> bool:
    steps = setup.get("scheduler.params.warmup_num_steps")
    return isinstance(steps, int | float) and not isinstance(steps, bool) and steps < 1


def _scaled_before_scatter(setup: Setup) -> bool | Mapping[str, Any]:
    zero = setup.settings.zero
    if zero.stage < 2 or not zero.reduce_scatter:
        return False
    if setup.get("prescale_gradients") is True:
        return {"name": "prescale_gradients"}
    if setup.get("gradient_predivide_factor") not in (None, 1, "auto"):
        return {"name": "gradient_predivide_factor"}
    return False


TRAINING_RULES: tuple[Rule, ...] = (
    Rule(
        id="max-grad-norm-in-optimizer",
        source="deepspeed/runtime/engine.py:2483",
        key="optimizer.params.max_grad_norm",
        message="DeepSpeed refuses max_grad_norm in the optimizer",
        fix='write "gradient_clipping" at the top level instead',
        broken=lambda s: s.has(f"optimizer.params.{_CLIP}"),
    ),
    Rule(
        id="unknown-scheduler",
        source="deepspeed/runtime/engine.py:1930",
        key="scheduler.type",
        message="{name} is no DeepSpeed scheduler: the engine fails to start",
        fix="{instead}",
        broken=_unknown_scheduler,
    ),
    Rule(
        id="scheduler-without-params",
        missing="params",
        source="deepspeed/runtime/engine.py:1935",
        key="scheduler",
        message="the scheduler has no params: the engine fails to start, even where every one has a default",
        fix='add "params": {}, with those that the scheduler needs',
        broken=_no_parameters,
    ),
    Rule(
        id="torch-scheduler-parameters",
        source="deepspeed/runtime/engine.py:1935",
        key="scheduler.params",
        message="torch's {name} {why}: the engine fails to start",
        fix="{instead}",
        broken=_torch_scheduler,
    ),
    Rule(
        id="random-ltd",
        source="deepspeed/runtime/data_pipeline/data_routing/scheduler.py:42",
        key=_RANDOM_LTD,
        message="{what}: the engine fails to start",
        fix="{instead}, or disable random_ltd",
        broken=_random_ltd,
    ),
    Rule(
        id="keep-in-fp32-modules",
        since=(0, 19),
        source="deepspeed/runtime/config.py:564",
        key="data_types.keep_in_fp32_modules",
        message="keep_in_fp32_modules is neither auto nor a list of names: DeepSpeed refuses the file",
        fix='write a list of module names, such as ["lm_head"], or "auto"',
        broken=_keep_in_fp32,
    ),
    Rule(
        id="cycle-without-limits",
        missing="cycle_m",
        source="deepspeed/runtime/lr_schedules.py:483",
        key="scheduler.params",
        message="OneCycle needs {missing}: the engine fails to start",
        fix="add it to params",
        broken=_cycle_without_limits,
    ),
    Rule(
        id="scheduler-without-total-steps",
        missing="total_num_steps",
        source="deepspeed/runtime/lr_schedules.py:791",
        key="scheduler.type",
        message="this scheduler needs total_num_steps: the engine fails to start",
        fix='add "total_num_steps" to its params ("auto" with the Trainer)',
        broken=_without_total_steps,
    ),
    Rule(
        id="warmup-not-positive",
        since=(0, 19),
        source="deepspeed/runtime/lr_schedules.py:734",
        key="scheduler.params.warmup_num_steps",
        message="warmup_num_steps must be at least 1 since DeepSpeed 0.19.6: the engine fails to start",
        fix="write 1 for no warm-up, or leave the scheduler out",
        broken=_warmup,
    ),
    Rule(
        id="warmup-beyond-total",
        severity="warning",
        source="deepspeed/runtime/lr_schedules.py:827",
        key="scheduler.params.warmup_num_steps",
        message="warmup_num_steps {warmup} is more than total_num_steps {total}: DeepSpeed only warns, and the "
        "full learning rate is never reached",
        fix="warm up for fewer steps",
        broken=_warmup_beyond_total,
    ),
    Rule(
        id="scaling-with-reduce-scatter",
        source="deepspeed/runtime/zero/stage_1_and_2.py:350",
        key="{name}",
        message="{name} cannot be used with reduce_scatter at stage 2 and 3: the engine fails to start",
        fix='remove it, or set "reduce_scatter": false',
        broken=_scaled_before_scatter,
    ),
    Rule(
        id="allreduce-sum-at-stage-3",
        since=(0, 19),
        source="deepspeed/runtime/config.py:696",
        key="gradient_allreduce_op",
        message="gradient_allreduce_op sum is not supported at stage 3: DeepSpeed refuses the file",
        fix='use "mean"',
        broken=lambda s: (
            s.settings.zero.stage == 3
            and isinstance(s.get("gradient_allreduce_op"), str)
            and s.get("gradient_allreduce_op").lower() == "sum"
        ),
    ),
    Rule(
        id="gradient-allreduce-op",
        since=(0, 19),
        source="deepspeed/runtime/config.py:246",
        key="gradient_allreduce_op",
        message="gradient_allreduce_op {value} is not known: DeepSpeed refuses the file",
        fix='use "mean" or "sum"',
        broken=lambda s: (
            isinstance(s.get("gradient_allreduce_op"), str)
            and s.get("gradient_allreduce_op").lower() not in ("mean", "sum")
            and {"value": s.get("gradient_allreduce_op")}
        ),
    ),
    Rule(
        id="communication-data-type",
        source="deepspeed/runtime/config.py:230",
        key="{name}",
        message="{name} {value} is not known: DeepSpeed refuses the file",
        fix="use fp16, bf16 or fp32",
        broken=_communication_type,
    ),
    Rule(
        id="lamb-static-scale",
        source="deepspeed/runtime/engine.py:2022",
        key="fp16.loss_scale",
        message="Lamb needs dynamic loss scaling: the engine fails to start",
        fix='set "loss_scale": 0',
        broken=lambda s: (
            (s.settings.optimizer or "").lower() == "lamb"
            and s.settings.precision == "fp16"
            and s.get("fp16.loss_scale", 0) not in (0, "auto")
        ),
    ),
)
