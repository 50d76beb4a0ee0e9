"""Every causal model type of the installed Transformers: is its default configuration counted right?

    python -m benchmarks.model_types [TYPE…]

Writes each type's default configuration as a config.json, asks zerokit for its model, and sets the count
beside the parameters of the model that ``AutoModelForCausalLM`` builds on the meta device. Prints a line for
each type and the sum of outcomes; ends with 1 if a count differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.planner.models import choose_model


def built_parameters(config: Any) -> int | str:
    """Parameters, those that are tied counted once; or why Transformers does not build the model."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # a default that nobody has ever built ends in anything
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return sum(parameter.numel() for parameter in model.parameters())


def counted_parameters(config: Any) -> int | str:
    """zerokit's count of the same configuration, or what it says instead."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(json.loads(config.to_json_string(use_diff=False))))
        try:
            return choose_model(None, str(path)).shape.parameters
        except InputError as error:
            return error.marked.replace(f"{path}: ", "")


def outcome(kind: str) -> tuple[str, str]:
    """What comes of one type: ``equal``, ``different``, ``refused`` or ``not built``, and the figures."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(kind)
    except Exception as error:
        return "not built", f"no default configuration: {type(error).__name__}"
    built, counted = built_parameters(config), counted_parameters(config)
    if isinstance(counted, str):
        return ("not built" if isinstance(built, str) else "refused"), counted
    if isinstance(built, str):
        return "not built", f"counted {counted:,}; {built}"
    return ("equal" if built == counted else "different"), f"{built:,} built, {counted:,} counted"


def main(kinds: list[str]) -> int:
    """Print every outcome."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    warnings.simplefilter("ignore")
    found: Counter[str] = Counter()
    for kind in kinds or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        result, figures = outcome(kind)
        found[result] += 1
        print(f"{kind}: {result}: {figures}", flush=True)
    print(", ".join(f"{number} {result}" for result, number in found.most_common()))
    return 1 if found["different"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
