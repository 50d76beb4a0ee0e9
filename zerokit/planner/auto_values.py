"""What a Trainer or Accelerate puts where a DeepSpeed file says ``"auto"``.

Sizes as Transformers 5.23 fills them (integrations/deepspeed.py:202); precision follows the Trainer's
arguments, which a file does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import AUTO, DeepSpeedSettings, ZeroSettings, open_precisions
from zerokit.errors import InputError
from zerokit.search.plan import choose_precision
from zerokit.search.request import Request
from zerokit.values import replace


def filled(
    config: Mapping[str, Any], settings: DeepSpeedSettings, request: Request
) -> tuple[DeepSpeedSettings, tuple[str, ...]]:
    """The settings of a file with its ``"auto"`` values filled, and what was assumed of them.

    Raises:
        InputError: a precision that the file does not leave open.
    """
    precision, notes = _precision(config, settings, request)
    zero, more = _sizes(config, settings.zero, request.shape.hidden)
    return replace(settings, precision=precision, zero=zero), (*notes, *more)


def _precision(
    config: Mapping[str, Any], settings: DeepSpeedSettings, request: Request
) -> tuple[str, tuple[str, ...]]:
    names = open_precisions(config)
    if not names:
        return settings.precision, ()
    asked = request.precision  # "auto" where it is not given
    if asked not in ("auto", "fp32", *names):
        raise InputError(
            f"⟨precision⟩ {asked}: the file of ⟨deepspeed⟩ leaves only {' and '.join(names)} open"
        )
    precision, why = choose_precision(asked, request.cluster, request.on_cpu)
    if asked != "auto":
        return precision, (why,)
    if precision not in names:
        precision = "fp32"
    arguments = " or ".join(f"--{name}" for name in names)
    return precision, (
        f'precision {precision}: the file says "auto", so the Trainer\'s {arguments} decides; give '
        "⟨precision⟩",
    )


def _sizes(
    config: Mapping[str, Any], zero: ZeroSettings, hidden: int
) -> tuple[ZeroSettings, tuple[str, ...]]:
    block = config.get("zero_optimization")
    if not isinstance(block, Mapping):
        return zero, ()
    values: dict[str, tuple[str, int]] = {
        "reduce_bucket_size": ("reduce_bucket_size", hidden * hidden),
    }
    if zero.stage == 3:
        values["stage3_prefetch_bucket_size"] = ("prefetch_bucket_size", int(0.9 * hidden * hidden))
        values["stage3_param_persistence_threshold"] = ("param_persistence_threshold", 10 * hidden)
    found = {key: value for key, value in values.items() if block.get(key) == AUTO}
    if not found:
        return zero, ()
    note = f'"auto" for {", ".join(found)}: filled as a Trainer does, from the hidden size {hidden:,}'
    return replace(zero, **dict(found.values())), (note,)
