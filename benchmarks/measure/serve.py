"""One rank that serves: a real model generates, the peak of each of its passes noted.

The second of two generations counts: by then the cuBLAS workspace is there, and ZeRO-3 knows its trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.measure import meter as meters
from benchmarks.measure.meter import Meter, Note
from benchmarks.measure.models import build, device


def quantise(model: torch.nn.Module, kind: str) -> None:
    """Linear layers but the head in 8 bits or NF4 on the GPU, as ``from_pretrained`` puts them there."""
    import bitsandbytes  # type: ignore[import-not-found]

    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, layer in list(model.named_modules()):
        if type(layer) is not torch.nn.Linear or layer is head:
            continue
        sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
        if kind == "int8":
            quantized = bitsandbytes.nn.Linear8bitLt(*sizes, bias=bias, has_fp16_weights=False, threshold=6.0)
            quantized.weight = bitsandbytes.nn.Int8Params(
                layer.weight.data, requires_grad=False, has_fp16_weights=False
            )
        else:
            quantized = bitsandbytes.nn.Linear4bit(
                *sizes, bias=bias, compute_dtype=layer.weight.dtype, compress_statistics=False,
                quant_type="nf4",
            )  # fmt: skip
            quantized.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, compress_statistics=False, quant_type="nf4"
            )
        quantized.bias = layer.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, quantized.to("cuda"))


def generate(model: Any, case: Mapping[str, Any], meter: Meter) -> dict[str, dict[str, int]]:
    """Generate once; memory of the pass over the prompt and of the steps after it."""
    batch, new = case["micro_batch"], case["new_tokens"]
    length = case["seq_len"] - new
    tokens = torch.randint(2, model.config.vocab_size, (batch, length), device=device())
    mask = torch.ones_like(tokens)
    if case["attention_mask_padded"]:
        mask[:, : max(1, length // 8)] = 0
    passes: list[dict[str, int]] = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(meter.phase()))
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": new}
    model.generate(tokens, attention_mask=mask, **options)
    hook.remove()
    passes.append(meter.phase())
    highest = max(passes[2:], key=lambda one: one.get("max_alloc", 0))
    return {"prefill": passes[1], "decode": highest}


def serve(case: Mapping[str, Any], note: Note, turn: Callable[[], None]) -> None:
    """Load, generate, note. Raises what generating raises.

    Args:
        case: with ``shared`` and ``limit_bytes``, as for ``worker.measure``.
        note: where to.
        turn: called before the device is used; returns when it is this run's turn.
    """
    rank = int(os.environ["RANK"])
    stage = case["deepspeed_config"].get("zero_optimization", {}).get("stage", 0)
    torch.manual_seed(1234 + rank)
    model: Any = build(case) if stage < 3 else None
    turn()
    meters.enter(case, note)
    meter = Meter()
    if stage == 3:
        import deepspeed

        deepspeed.init_distributed()
        model = build(case).eval()
        engine, *_ = deepspeed.initialize(model=model, config=case["deepspeed_config"])
        model = engine.module
    else:
        if case["quantization"] != "none":
            quantise(model, case["quantization"])
        model = model.to(device())
    model.eval()
    note.add(after_init=meter.phase())
    for number in range(2):
        found = generate(model, case, meter)
        note.add(
            **({"first_step": found} if number == 0 else {}),
            last_step=found,
            peak_allocated_bytes=meter.peak_allocated,
            peak_reserved_bytes=meter.peak_reserved,
        )
    meters.leave(case, note)
    if case["expected"] and "prefill" in case["expected"] and meters.on_gpu():
        said = {name: case["expected"][name] / found[name]["max_alloc"] - 1 for name in found}
        print(json.dumps({"id": case["id"], "error": said}), flush=True)
