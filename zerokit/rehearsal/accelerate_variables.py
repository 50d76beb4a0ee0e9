"""Variables by which an Accelerate script gets DeepSpeed without ``accelerate launch``."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit import suggest

SWITCH = "ACCELERATE_USE_DEEPSPEED"
FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
_PREFIX = "ACCELERATE_DEEPSPEED_"
_STAGE = f"{_PREFIX}ZERO_STAGE"
_KNOWN = frozenset((SWITCH, FILE, _STAGE, *(
    f"{_PREFIX}{name}"
    for name in (
        "OFFLOAD_OPTIMIZER_DEVICE", "OFFLOAD_PARAM_DEVICE", "OFFLOAD_OPTIMIZER_NVME_PATH",
        "OFFLOAD_PARAM_NVME_PATH", "ZERO3_SAVE_16BIT_MODEL", "ZERO3_INIT", "MOE_LAYER_CLS_NAMES",
    )
)))  # fmt: skip
"""accelerate/utils/dataclasses.py, DeepSpeedPlugin; accelerate/state.py (Accelerate 1.15.0)."""


def warnings(environment: Mapping[str, str]) -> list[str]:
    """What to say of variables that do less than was meant: misspelt, or one without the other."""
    result = []
    for name in sorted(name for name in environment if name.startswith("ACCELERATE_") and name not in _KNOWN):
        near = suggest.nearest(name, _KNOWN)
        if near is not None or "DEEPSPEED" in name:
            meant = f"; did you mean {near}?" if near is not None else ""
            result.append(f"warning: Accelerate does not read {name}{meant}")
    switch = environment.get(SWITCH)
    others = sorted((_KNOWN - {SWITCH}) & environment.keys())
    if switch is None and others:
        result.append(f"warning: {others[0]} is set, but Accelerate uses DeepSpeed only with {SWITCH}=true")
    elif switch is not None and switch.lower() not in ("true", "false"):
        result.append(f"warning: {SWITCH}={switch} does not turn DeepSpeed on: Accelerate takes only true")
    elif switch is not None and switch.lower() == "true" and not {FILE, _STAGE} & environment.keys():
        result.append(
            f"warning: {SWITCH}=true without {FILE}: unless the script gives a plugin, Accelerate makes its "
            "own DeepSpeed configuration (ZeRO-2)"
        )
    elif switch is not None and switch.lower() == "false" and others:
        result.append(f"warning: {others[0]} is set, but {SWITCH}=false leaves DeepSpeed off")
    return result
