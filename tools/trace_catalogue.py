"""Trace models of the catalogue ahead: ``python -m tools.trace_catalogue [NAME…]``.

Without names: every catalogue model that has no profile yet.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time

from zerokit.catalog import models, profiles
from zerokit.domain.profile import ModelProfile, Variant, inference_phases
from zerokit.errors import ZerokitError
from zerokit.files import write_whole
from zerokit.trace import store
from zerokit.trace.profile import profile_from_config

TENSOR_PARALLEL_FROM = 1_000_000_000
"""Parameters from which a model is worth cutting over GPUs."""

FP32_UP_TO = 1_500_000_000
"""Parameters up to which a model is trained in fp32 at all."""


def variants(head: str, parameters: int, experts: bool, whole_only: bool = False) -> list[Variant]:
    """What most plans ask for without torch; the rest is traced on demand, or estimated in closed form."""
    found = []
    for checkpointing in ("none", "full"):
        found.append(Variant(checkpointing=checkpointing))
        if parameters <= FP32_UP_TO:
            found.append(Variant(checkpointing=checkpointing, precision="32"))
        if head != "causal":
            continue
        found.append(Variant(checkpointing=checkpointing, lora_rank=16))
        found.append(Variant(checkpointing=checkpointing, lora_rank=16, zero3_linear=True))
        if experts:
            continue
        found.append(Variant(checkpointing=checkpointing, lora_rank=16, quantized=True))
        if parameters >= TENSOR_PARALLEL_FROM and not whole_only:
            found += [Variant(checkpointing=checkpointing, tensor_parallel=t) for t in (2, 4, 8)]
    return [*found, *_serving(head, parameters, experts, whole_only)]


def _serving(head: str, parameters: int, experts: bool, whole_only: bool) -> list[Variant]:
    if head not in ("causal", "mlm", "image-classification"):
        return []
    found = []
    for phase in inference_phases(head):
        found.append(Variant(phase=phase))
        if head != "causal":
            continue
        found += [Variant(phase=phase, quantization=kind) for kind in ("int8", "int4")]
        if parameters >= TENSOR_PARALLEL_FROM and not experts and not whole_only:
            found += [Variant(phase=phase, tensor_parallel=t) for t in (2, 4, 8)]
    return found


def trace(
    name: str, whole_only: bool = False, known: ModelProfile | None = None
) -> tuple[ModelProfile | None, list[str]]:
    """The profile of one catalogue model, and what could not be traced and why; ``known`` is completed."""
    model = models.load(name)
    done: list[ModelProfile] = [] if known is None else [known]
    left_out = []
    for variant in variants(model.head, model.parameters, model.experts is not None, whole_only):
        if known is not None and variant.key in known.traces:
            continue
        config = copy.deepcopy(dict(model.hf_config))
        try:
            done.append(
                profile_from_config(config, [variant], name=name, family=model.family, head=model.head)
            )
        except (
            ZerokitError,
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
        ) as error:
            left_out.append(f"{variant.key}: {str(error).splitlines()[0][:160]}")
    return (store.merged(done) if done else None), left_out


def main(arguments: list[str]) -> int:
    """Trace the named models; prints what could not be."""
    parser = argparse.ArgumentParser(prog="python -m tools.trace_catalogue", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="of the catalogue")
    parser.add_argument("--whole-only", action="store_true", help="leave out the tensor-parallel shards: "
                        "three quarters of the time; their memory is estimated in closed form")  # fmt: skip
    parser.add_argument("--missing", action="store_true", help="keep what a profile has and trace the rest; "
                        "without names: of every model")  # fmt: skip
    parser.add_argument("--before", metavar="RELEASE", help="write the profile of Transformers before this "
                        "release, in which what the model allocates changed")  # fmt: skip
    options = parser.parse_args(arguments)
    whole_only, missing = options.whole_only, options.missing
    wanted = options.names or [n for n in models.names() if missing or n not in profiles.names()]
    for name in wanted:
        began = time.monotonic()
        profile, left_out = trace(name, whole_only, profiles.load(name) if missing else None)
        if profile is not None:
            before = f".before-{options.before}" if options.before else ""
            write_whole(profiles.FOLDER / f"{name}{before}.json.gz", profiles.packed(profile))
        count = 0 if profile is None else len(profile.traces)
        print(f"{name}: {count} variants in {time.monotonic() - began:.0f} s", flush=True)
        for line in left_out:
            print(f"  left out {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
