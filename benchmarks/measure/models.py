"""The model and the batch of a case, as an ordinary training script makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import zerokit

NOISE_ELEMENTS = 2**20
AUTO_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}


def device() -> torch.device:
    """Where this rank trains: its GPU, or the CPU where there is none."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


@contextlib.contextmanager
def _quick_noise() -> Iterator[None]:
    """While active, large tensors on the CPU are filled by repeating one drawn block. Drawing a billion
    numbers takes longer than the run; what it allocates does not depend on them."""
    originals = {name: getattr(torch.Tensor, name) for name in ("normal_", "uniform_")}

    def quick(name: str) -> Any:
        original = originals[name]

        def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            plain = tensor.device.type == "cpu" and tensor.is_contiguous()
            if not plain or tensor.numel() <= NOISE_ELEMENTS:
                return original(tensor, *args, **kwargs)
            block = original(torch.empty(NOISE_ELEMENTS, dtype=tensor.dtype), *args, **kwargs)
            with torch.no_grad():
                flat = tensor.view(-1)
                whole = flat.numel() // NOISE_ELEMENTS * NOISE_ELEMENTS
                flat[:whole].view(-1, NOISE_ELEMENTS).copy_(block.expand(whole // NOISE_ELEMENTS, -1))
                flat[whole:].copy_(block[: flat.numel() - whole])
            return tensor

        return fill

    for name in originals:
        setattr(torch.Tensor, name, quick(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


@contextlib.contextmanager
def _own_initialisation() -> Iterator[None]:
    """While active, Transformers leaves the values that modules gave their own parameters. Under
    ``zero.Init`` they are partitioned when it would draw them anew, and some families index them."""
    from transformers import PreTrainedModel

    name = "initialize_weights"
    original = getattr(PreTrainedModel, name)
    setattr(PreTrainedModel, name, lambda self, *args, **kwargs: None)
    try:
        yield
    finally:
        setattr(PreTrainedModel, name, original)


def training_dtype(deepspeed_config: Mapping[str, Any]) -> torch.dtype:
    """The dtype DeepSpeed trains in."""
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if deepspeed_config.get(key, {}).get("enabled"):
            return dtype
    return torch.float32


def quantise(model: torch.nn.Module, storage: torch.dtype = torch.uint8) -> None:
    """Linear layers but the head in NF4 on the GPU, as ``load_in_4bit=True`` loads them; ``storage``: of
    ``bnb_4bit_quant_storage``."""
    import bitsandbytes  # type: ignore[import-not-found]

    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, layer in list(model.named_modules()):
        if type(layer) is not torch.nn.Linear or layer is head:
            continue
        quantized = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=layer.weight.dtype,
            compress_statistics=True,
            quant_type="nf4",
            quant_storage=storage,
            device="meta",
        )
        quantized.weight = bitsandbytes.nn.Params4bit(
            layer.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4",
            quant_storage=storage, module=quantized,
        )  # fmt: skip
        quantized.bias = layer.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, quantized.to("cuda"))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]


def build(case: Mapping[str, Any], below_stage_3: torch.device | str = "cpu") -> torch.nn.Module:
    """The model: there below stage 3, under ``deepspeed.zero.Init`` at stage 3."""
    import transformers

    values = dict(case["hf_config"])
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = False
    settings = case["deepspeed_config"]
    stage = settings.get("zero_optimization", {}).get("stage", 0)
    if case["new_tokens"] is not None:
        config.use_cache = True
    dtype = torch.float32 if case["weights_loaded_as"] == "fp32" else training_dtype(settings)
    auto = getattr(transformers, AUTO_CLASSES[case["head"]])
    options = {"dtype": dtype, "attn_implementation": case["attention"]}
    if stage == 3:
        import deepspeed

        with deepspeed.zero.Init(config_dict_or_path=settings), _own_initialisation():
            model = auto.from_config(config, **options)
    else:
        with _quick_noise(), torch.device(below_stage_3):
            model = auto.from_config(config, **options)
    model.train()
    if case["quantized"]:
        quantise(model)
    if case["activation_checkpointing"] == "selective":
        zerokit.selective_checkpointing(model)
    elif case["activation_checkpointing"] and case["engine"] != "fsdp2":  # whose plugin does it
        kwargs = {"use_reentrant": case["use_reentrant"]}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    if case["lora"]:
        import peft

        if case["activation_checkpointing"]:
            model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(**case["lora"]))
    return model


def make_batch(
    case: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Random tokens (or images) on this rank's device, labels the same tokens."""
    config: Any = model.config
    batch, length, target_device = case["micro_batch"], case["seq_len"], device()
    if case["head"] == "image-classification":
        size = config.image_size
        pixels = torch.randn(batch, config.num_channels, size, size, device=target_device, dtype=dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=target_device)}
    tokens = torch.randint(2, config.vocab_size, (batch, length), device=target_device)
    inputs = {"input_ids": tokens, "labels": tokens}
    if case["attention_mask_given"] or case["attention_mask_padded"]:
        mask = torch.ones(batch, length, dtype=torch.long, device=target_device)
        if case["attention_mask_padded"]:
            mask[:, -max(1, length // 8) :] = 0
        inputs["attention_mask"] = mask
    return inputs
