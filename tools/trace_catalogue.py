"""Trace models of the catalogue ahead: ``python -m tools.trace_catalogue [NAME…]``.

Without names: every catalogue model that has no profile yet.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from zerokit.catalog import models, profiles
from zerokit.domain.hf_classes import pads_to_chunks
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.profile import ModelProfile, Variant, inference_phases
from zerokit.errors import ZerokitError
from zerokit.files import write_whole
from zerokit.trace import store
from zerokit.trace.profile import profile_from_config
from zerokit.trace.shape import shape_of

TENSOR_PARALLEL_FROM = 1_000_000_000
"""Parameters from which a model is worth cutting over GPUs."""

FP32_UP_TO = 1_500_000_000
"""Parameters up to which a model is trained in fp32 at all."""

LENGTHS = (512, 1024, 2048, 4096, 8192)
"""Tokens of a sequence at which state-space and linear-attention layers are traced: a trace of them holds for
one length."""

_NOT_TRACED = (ZerokitError, RuntimeError, TypeError, ValueError, AttributeError, LookupError)


def variants(
    head: str, parameters: int, experts: bool, whole_only: bool = False, chunked: bool = False,
    adapted: tuple[str, ...] = (),
) -> list[Variant]:  # fmt: skip
    """What most plans ask for without torch, the commonest first; the rest is traced on demand, or estimated
    in closed form. ``chunked``: traced for each length; ``adapted``: modules that PEFT adapts where none
    are named, as TRL's scripts do: what these take under ZeRO-3, a rehearsal of few layers asks."""
    kinds = [Variant()]
    if parameters <= FP32_UP_TO and not chunked:
        kinds.append(Variant(precision="32"))
    if head == "causal":
        kinds += [Variant(lora_rank=16), Variant(lora_rank=16, zero3_linear=True)]
        if not experts and not chunked:
            kinds.append(Variant(lora_rank=16, quantized=True))
            if parameters >= TENSOR_PARALLEL_FROM and not whole_only:
                kinds += [Variant(tensor_parallel=t) for t in (2, 4, 8)]
    found = [replace(kind, checkpointing=mode) for kind in kinds for mode in ("none", "full")]
    if adapted and head == "causal" and not chunked:
        trl = Variant(lora_rank=16, lora_targets=adapted, zero3_linear=True, narrow_adapters=True)
        found.append(replace(trl, checkpointing="full"))
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
) -> Iterator[tuple[ModelProfile | None, str]]:
    """After each variant the profile of one catalogue model so far, and what could not be traced and why;
    ``known`` is completed."""
    model = models.load(name)
    chunked = pads_to_chunks(model.hf_config)
    lengths: tuple[int | None, ...] = LENGTHS if chunked else (None,)
    experts = model.experts is not None
    adapted = _adapted(str(model.hf_config.get("model_type")))
    for variant in variants(model.head, model.parameters, experts, whole_only, chunked, adapted):
        for seq_len in lengths if variant.phase == "train" else lengths[:1]:
            if known is not None and _has(known, variant, seq_len):
                continue
            config, left_out = copy.deepcopy(dict(model.hf_config)), ""
            try:
                added = profile_from_config(
                    config, [variant], name=name, family=model.family, head=model.head, seq_len=seq_len
                )
                known = added if known is None else store.merged([known, added])
            except _NOT_TRACED as error:
                left_out = f"{variant.key} {seq_len or ''}: {str(error).splitlines()[0][:160]}"
            yield known, left_out


def _adapted(model_type: str) -> tuple[str, ...]:
    """Modules of a model type that PEFT adapts where none are named; empty: they must be."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    names = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(model_type, ())
    return () if isinstance(names, str) else tuple(sorted(names))


def _has(profile: ModelProfile, variant: Variant, seq_len: int | None) -> bool:
    return profile.has(variant) if seq_len is None else profile.trace(variant, seq_len) is not None


def write(profile: ModelProfile, before: str | None = None) -> None:
    """Write a profile into the catalogue, with the model's shape where its family's table does not say it."""
    ending = f".before-{before}" if before else ""
    packed = profiles.packed(profile, _shape(profile.name))
    write_whole(profiles.FOLDER / f"{profile.name}{ending}.json.gz", packed)


@cache
def _shape(name: str) -> ModelShape | None:
    model = models.load(name)
    if model.has_closed_form:
        return None
    return shape_of(copy.deepcopy(dict(model.hf_config)), name, model.head)


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
        profile = known = profiles.load(name) if missing else None
        for done, left_out in trace(name, whole_only, known):
            if left_out:
                print(f"{name}: left out {left_out}", flush=True)
            elif done is not None:  # after each variant: whoever stops here goes on with --missing
                profile = done
                write(done, options.before)
        count = 0 if profile is None else len(profile.traces)
        print(f"{name}: {count} variants in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
