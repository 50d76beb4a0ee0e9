"""One rank of one measured case: real DeepSpeed trains the model for a few steps, every phase noted.

Started by ``run`` with the usual ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and
``MASTER_PORT``. Writes ``rank-N.json`` into the folder given, at each stage of the run, so that a rank
that dies leaves what it had.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
NOISE_ELEMENTS = 2**20
AUTO_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}


# ------------------------------------------------------------------ the model


@contextlib.contextmanager
def _quick_noise() -> Iterator[None]:
    """While active, large tensors on the CPU are filled by repeating one drawn block.

    Drawing a billion numbers takes longer than the run; what it allocates does not depend on them.
    """
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
    """While active, Transformers leaves the values that modules gave their own parameters.

    Under ``zero.Init`` they are partitioned when it would draw them anew, and some families index them.
    """
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


def quantise(model: torch.nn.Module) -> None:
    """Linear layers but the head in NF4 on the GPU, as ``load_in_4bit=True`` loads them."""
    import bitsandbytes  # type: ignore[import-not-found]

    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, layer in list(model.named_modules()):
        if type(layer) is not torch.nn.Linear or layer is head:
            continue
        made = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=layer.weight.dtype,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        made.weight = bitsandbytes.nn.Params4bit(
            layer.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4"
        )
        made.bias = layer.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made.to("cuda"))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]


def build(case: Mapping[str, Any]) -> torch.nn.Module:
    """The model: on the CPU below stage 3, under ``deepspeed.zero.Init`` at stage 3."""
    import transformers

    values = dict(case["hf_config"])
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = False
    settings = case["deepspeed_config"]
    stage = settings.get("zero_optimization", {}).get("stage", 0)
    dtype = torch.float32 if case["weights_loaded_as"] == "fp32" else training_dtype(settings)
    auto = getattr(transformers, AUTO_CLASSES[case["head"]])
    options = {"dtype": dtype, "attn_implementation": case["attention"]}
    if stage == 3:
        import deepspeed

        with deepspeed.zero.Init(config_dict_or_path=settings), _own_initialisation():
            model = auto.from_config(config, **options)
    else:
        with _quick_noise():
            model = auto.from_config(config, **options)
    model.train()
    if case["quantized"]:
        quantise(model)
    if case["activation_checkpointing"]:
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
    """Random tokens (or images) on the GPU, labels the same tokens."""
    config: Any = model.config
    batch, length = case["micro_batch"], case["seq_len"]
    device = torch.device("cuda", torch.cuda.current_device())
    if case["head"] == "image-classification":
        size = config.image_size
        pixels = torch.randn(batch, config.num_channels, size, size, device=device, dtype=dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
    tokens = torch.randint(2, config.vocab_size, (batch, length), device=device)
    inputs = {"input_ids": tokens, "labels": tokens}
    if case["attention_mask_given"] or case["attention_mask_padded"]:
        mask = torch.ones(batch, length, dtype=torch.long, device=device)
        if case["attention_mask_padded"]:
            mask[:, -max(1, length // 8) :] = 0
        inputs["attention_mask"] = mask
    return inputs


# ------------------------------------------------------------------ what is noted


def device_used_bytes(shared: bool) -> int | None:
    """What this process holds on its GPU: allocator, context, NCCL. ``None``: cannot be told.

    Alone on the GPU it is total less free; beside others what NVML says of this process.
    """
    free, total = torch.cuda.mem_get_info()
    if not shared:
        return int(total - free)
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
        index = torch.cuda.current_device()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        physical = int(visible.split(",")[index]) if visible else index
        handle = pynvml.nvmlDeviceGetHandleByIndex(physical)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
    except Exception as error:
        print(f"nvml: {error}", file=sys.stderr)
    return None


class Meter:
    """Allocated bytes at the end of each phase and the peak in it; the peaks over all of them."""

    def __init__(self) -> None:
        self.peak_allocated = 0
        self.peak_reserved = 0

    def phase(self) -> dict[str, int]:
        """What the phase that ends here showed; the next begins."""
        found = {"alloc": torch.cuda.memory_allocated(), "max_alloc": torch.cuda.max_memory_allocated()}
        self.peak_allocated = max(self.peak_allocated, found["max_alloc"])
        self.peak_reserved = max(self.peak_reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        return found


def train_step(
    engine: Any, case: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype, meter: Meter
) -> dict[str, dict[str, int]]:
    """One optimizer step. The phases of its last micro-batch."""
    phases: dict[str, dict[str, int]] = {}
    for _ in range(case["gradient_accumulation"]):
        batch = make_batch(case, model, dtype)
        meter.phase()
        loss = engine(**batch).loss
        phases["fwd"] = meter.phase()
        engine.backward(loss)
        phases["bwd"] = meter.phase()
        engine.step()
        phases["step"] = meter.phase()
    torch.cuda.synchronize()
    return phases


def retries() -> int:
    """How often the allocator gave cached memory back to go on."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def cap(limit_bytes: int) -> None:
    """Hold the caching allocator of this process to so many bytes."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))


def ladder(
    engine: Any, case: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype, peak: int
) -> list[dict[str, Any]]:
    """Lower the cap step by step, from steady training, until it runs out of memory.

    ``cap_ladder_mib``: MiB above the peak of the last step, falling. One rank only.
    """
    found: list[dict[str, Any]] = []
    for above in case["cap_ladder_mib"]:
        torch.cuda.empty_cache()
        cap(peak + above * MIB)
        meter, before, start = Meter(), retries(), time.perf_counter()
        meter.phase()
        rung: dict[str, Any] = {"above_peak_mib": above, "ok": True}
        try:
            for _ in range(2):
                train_step(engine, case, model, dtype, meter)
        except torch.OutOfMemoryError:
            rung["ok"] = False
        rung["peak_reserved_bytes"] = meter.peak_reserved
        rung["seconds"] = round((time.perf_counter() - start) / 2, 4)
        rung["alloc_retries"] = retries() - before
        found.append(rung)
        if not rung["ok"]:
            break
    return found


# ------------------------------------------------------------------ one run


class Note:
    """What a rank found out, on disk after every change."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.values: dict[str, Any] = {"ok": False, "oom": False}

    def add(self, **values: Any) -> None:
        """Keep more."""
        self.values |= values
        temporary = self.place.with_suffix(".part")
        temporary.write_text(json.dumps(self.values), encoding="utf-8")
        temporary.replace(self.place)


def _versions() -> dict[str, str]:
    import deepspeed
    import transformers

    return {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "transformers": transformers.__version__,
        "deepspeed": deepspeed.__version__,
        "gpu": torch.cuda.get_device_name(),
    }


def _numel(parameters: list[torch.nn.Parameter]) -> int:
    """Elements of the whole parameters, partitioned by ZeRO-3 or not."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)


def measure(case: Mapping[str, Any], note: Note) -> None:
    """Initialise, train, note. Raises what training raises."""
    import deepspeed

    rank, shared = int(os.environ["RANK"]), bool(case["shared"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    note.add(device_used_before_model_bytes=device_used_bytes(shared), versions=_versions())
    if case["cap_bytes"] or case["guard_bytes"]:
        cap(case["cap_bytes"] or case["guard_bytes"])
    torch.manual_seed(1234 + rank)
    deepspeed.init_distributed(dist_backend="nccl")
    model = build(case)
    note.add(
        params=sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
        trainable_params=sum(
            getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad
        ),
    )
    trainable = [p for p in model.parameters() if p.requires_grad]
    meter = Meter()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trainable, config=case["deepspeed_config"]
    )
    note.add(after_init=meter.phase())
    dtype = training_dtype(case["deepspeed_config"])
    seconds: list[float] = []
    phases: dict[str, dict[str, int]] = {}
    for step in range(case["steps"]):
        start = time.perf_counter()
        phases = train_step(engine, case, model, dtype, meter)
        seconds.append(round(time.perf_counter() - start, 4))
        note.add(
            **({"first_step": phases} if step == 0 else {}),
            last_step=phases,
            step_seconds=seconds,
            peak_allocated_bytes=meter.peak_allocated,
            peak_reserved_bytes=meter.peak_reserved,
        )
    note.add(
        ok=True,
        device_used_bytes=device_used_bytes(shared),
        reserved_at_end_bytes=torch.cuda.memory_reserved(),
        alloc_retries=retries(),
        host_max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    if case["cap_ladder_mib"] and case["world_size"] == 1:
        gc.collect()
        peak = max(phase["max_alloc"] for phase in phases.values())
        note.add(cap_ladder=ladder(engine, case, model, dtype, peak))


def main() -> int:
    """Arguments: the case's JSON file and the folder for the rank's notes."""
    case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    note = Note(Path(sys.argv[2]) / f"rank-{os.environ['RANK']}.json")
    try:
        measure(case, note)
    except torch.OutOfMemoryError as error:
        note.add(oom=True, error=str(error).splitlines()[0])
        return 3
    except Exception as error:
        note.add(error=f"{type(error).__name__}: {str(error)[:400]}")
        raise
    finally:
        # the other ranks may be gone: do not wait for them to take a communicator down
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    finally:
        if code == 1:
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
