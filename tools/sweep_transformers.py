"""Set the catalogue's traces against those of the Transformers that is installed here.

``PYTHONPATH=FOLDER_WITH_A_RELEASE python -m tools.sweep_transformers [NAME…]`` prints a line for each model
and variant: by how much what forward and backward allocate differs from the catalogue's newest profile.
Without names: the smallest model of each type that has a profile. What differs by more than half a percent
gets a profile of its own (``python -m tools.trace_catalogue NAME --before RELEASE``);
``zerokit/catalog/profiles.py`` holds the sweep's ends.
"""

from __future__ import annotations

import copy
import sys

import transformers

from zerokit.catalog import models, profiles
from zerokit.domain.profile import ModelProfile, Variant
from zerokit.trace.profile import profile_from_config

_MICRO_BATCH, _SEQ_LEN = 4, 512


def smallest() -> list[str]:
    """Of each model type the smallest with a profile."""
    found: dict[str, tuple[int, str]] = {}
    for name in profiles.names():
        model = models.load(name)
        kind = str(model.hf_config["model_type"])
        found[kind] = min(found.get(kind, (model.parameters, name)), (model.parameters, name))
    return sorted(name for _, name in found.values())


def peaks(profile: ModelProfile, variant: Variant) -> tuple[float, float]:
    """What forward and backward allocate beside the weights, at most, in bytes.

    Raises:
        LookupError: the profile has no such trace.
    """
    trace = profile.trace(variant, _SEQ_LEN)
    if trace is None:
        raise LookupError(f"no trace of {variant.key}")
    line = trace.timeline(_MICRO_BATCH, _SEQ_LEN)
    return float(max(line.forward.peaks)), float(max(line.backward.peaks))


def compare(name: str, variant: Variant) -> str:
    """``+1.2 % forward, -0.3 % backward``, or why it cannot be said."""
    model, kept = models.load(name), profiles.load(name)
    if kept is None or variant.key not in kept.traces:
        return "not in the catalogue's profile"
    try:
        config = copy.deepcopy(dict(model.hf_config))
        fresh = profile_from_config(config, [variant], name=name, head=model.head)
        parts = zip(("forward", "backward"), peaks(fresh, variant), peaks(kept, variant), strict=True)
    except Exception as error:  # whatever another release raises is its result
        return f"not traced: {type(error).__name__}: {str(error)[:100]}"
    return ", ".join(f"{new / old - 1:+.2%} {part}" for part, new, old in parts)


def main(names: list[str]) -> int:
    """Compare the named models."""
    for name in names or smallest():
        for variant in (Variant(), Variant(checkpointing="full"), Variant(lora_rank=16)):
            if variant.lora_rank == 0 or models.load(name).head == "causal":
                print(
                    f"{transformers.__version__} {name} {variant.key}: {compare(name, variant)}", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
