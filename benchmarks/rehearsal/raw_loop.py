"""The loop of ``h200-deepspeed.jsonl``, as a script: ``raw_loop.py ROW.json OUT.json``.

It measures itself with ``torch.cuda``, exactly as the runs on the GPUs did.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

STEPS = 3
HEADS = {
    "causal": AutoModelForCausalLM,
    "mlm": AutoModelForMaskedLM,
    "seq2seq": AutoModelForSeq2SeqLM,
    "image-text": AutoModelForImageTextToText,
}


class Meter:
    """Peaks by phase, read and reset at each boundary."""

    def __init__(self) -> None:
        self.peak = self.reserved = 0

    def read(self) -> dict[str, int]:
        """What was reached since the last reading."""
        figures = {
            "alloc": torch.cuda.memory_allocated(),
            "max_alloc": torch.cuda.max_memory_allocated(),
            "max_reserved": torch.cuda.max_memory_reserved(),
        }
        self.peak = max(self.peak, figures["max_alloc"])
        self.reserved = max(self.reserved, figures["max_reserved"])
        torch.cuda.reset_peak_memory_stats()
        return figures


@contextlib.contextmanager
def modules_own_values() -> Iterator[None]:
    """While active, Transformers leaves the values that modules gave their own parameters, as in the measured
    runs: it would draw them when they are partitioned, and index the padding token's row, which is empty."""
    original = PreTrainedModel.initialize_weights
    PreTrainedModel.initialize_weights = lambda self, *args, **kwargs: None
    try:
        yield
    finally:
        PreTrainedModel.initialize_weights = original


def build(row: dict[str, Any]) -> Any:
    """The model as the row says."""
    settings = row["deepspeed_config"]
    config = AutoConfig.for_model(**row["hf_config"])
    # a model of images and text reads its text model's own setting, whatever the outer one says
    config.use_cache = config.get_text_config(decoder=True).use_cache = False
    dtype = (
        torch.bfloat16
        if settings.get("bf16", {}).get("enabled")
        else torch.float16
        if settings.get("fp16", {}).get("enabled")
        else torch.float32
    )
    loaded = torch.float32 if row["weights_loaded_as"] == "fp32" else dtype

    def make() -> Any:
        auto = HEADS[row["head"]]
        try:
            return auto.from_config(config, dtype=loaded, attn_implementation=row["attention"])
        except ValueError:  # a family without this attention
            return auto.from_config(config, dtype=loaded, attn_implementation="eager")

    if settings.get("zero_optimization", {}).get("stage", 0) == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings), modules_own_values():
            model = make()
    else:
        with torch.device("cuda"):
            model = make()
        model.to("cpu")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for name, parameter in model.named_parameters():
        if name.startswith(tuple(row.get("images", {}).get("frozen", ()))):
            parameter.requires_grad_(False)
    if row.get("bits") == 8:
        put_in_8_bits(model)
    if row.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**row["lora"]))
    if row["activation_checkpointing"]:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": row["use_reentrant"]}
        )
        if row.get("lora"):
            model.enable_input_require_grads()
    if row.get("loss"):
        put_loss(model, row["loss"])
    model.train()
    return model


def put_in_8_bits(model: Any) -> None:
    """bitsandbytes' layers in the place of linear ones, as Transformers puts them (``load_in_8bit``)."""
    import bitsandbytes

    for name, layer in list(model.named_modules()):
        if not isinstance(layer, torch.nn.Linear) or layer is model.get_output_embeddings():
            continue
        parent, _, attribute = name.rpartition(".")
        packed = bitsandbytes.nn.Linear8bitLt(
            layer.in_features,
            layer.out_features,
            layer.bias is not None,
            has_fp16_weights=False,
            threshold=6.0,
        )
        packed.weight = bitsandbytes.nn.Int8Params(
            layer.weight.data, requires_grad=False, has_fp16_weights=False
        )
        if layer.bias is not None:
            packed.bias = layer.bias
        setattr(model.get_submodule(parent), attribute, packed)
    model.to("cuda")
    model.is_loaded_in_8bit = True


def put_loss(model: Any, kind: str) -> None:
    """Put a library's own loss in the place of the model's head and cross-entropy: liger, chunked or cut."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if kind == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        others = ("rope", "rms_norm", "swiglu", "cross_entropy")
        _apply_liger_kernel_to_instance(
            model=base, fused_linear_cross_entropy=True, **dict.fromkeys(others, False)
        )
    elif kind == "chunked":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(base, outputs=("log_probs", "entropy", "is_top1"))
        base.forward = functools.partial(base.forward, fused_lm_head=True)
    else:
        from cut_cross_entropy import linear_cross_entropy
        from transformers.modeling_outputs import CausalLMOutput

        def forward(self: Any, labels: Any = None, **batch: Any) -> Any:
            hidden = self.model(**batch).last_hidden_state
            return CausalLMOutput(loss=linear_cross_entropy(hidden, self.lm_head.weight, labels, shift=True))

        base.forward = types.MethodType(forward, base)


def with_images(row: dict[str, Any], ids: Any, dtype: Any) -> dict[str, Any]:
    """What a processor adds for the images of a batch, whose tokens it writes into ``ids``."""
    images = row.get("images")
    if images is None:
        return {}
    for position in range(images["count"]):
        start = position * (images["tokens"] + 1)
        ids[:, start : start + images["tokens"]] = images["token"]
    many = row["micro_batch"] * images["count"]
    shape = images["pixels"]
    if images["nested"]:
        shape = [row["micro_batch"], images["count"] * shape[0], *shape[1:]]
        mask = torch.ones(*shape[:2], *shape[3:], dtype=torch.long)
        return {"pixel_values": torch.ones(shape).to("cuda", dtype), "pixel_attention_mask": mask.to("cuda")}
    added = {"pixel_values": torch.ones(many * shape[0], *shape[1:]).to("cuda", dtype)}
    if images["grid"]:
        added["image_grid_thw"] = torch.tensor([images["grid"]] * many).to("cuda")
    if images["types"]:
        added[images["types"]] = (ids == images["token"]).long().to("cuda")
    return added


def main() -> None:
    """Train for some steps and write the figures."""
    row = json.loads(Path(sys.argv[1]).read_text())
    settings = row["deepspeed_config"]
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend="nccl")
    model = build(row)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=settings)
    del model
    meter, record = Meter(), {}
    moved = contextlib.nullcontext()
    if row.get("offload_activations"):
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        moved = get_act_offloading_ctx_manager(model=engine.module)
    record["after_init_rank0"] = meter.read()
    generator = torch.Generator().manual_seed(1)
    vocabulary = row["hf_config"].get("vocab_size", 32000)
    for step in range(STEPS):
        phases: dict[str, dict[str, int]] = {}
        for _ in range(settings.get("gradient_accumulation_steps", 1)):
            shape = (row["micro_batch"], row["seq_len"])
            ids = torch.randint(0, vocabulary, shape, generator=generator)
            added = with_images(row, ids, next(engine.module.parameters()).dtype)
            ids = ids.to("cuda")
            mask = {"attention_mask": torch.ones_like(ids)} if row["attention_mask_given"] else {}
            with moved:
                loss = engine(input_ids=ids, labels=ids, **mask, **added).loss
                phases["fwd"] = meter.read()
                engine.backward(loss)
            del loss, added  # a Trainer has its batch on the GPU until the optimizer's step
            phases["bwd"] = meter.read()
            engine.step()
            phases["step"] = meter.read()
        record["first_step_rank0" if step == 0 else "last_step_rank0"] = phases
    record["peak"], record["reserved"] = meter.peak, meter.reserved
    Path(sys.argv[2]).write_text(json.dumps(record))


main()
