"""What other tools call an argument of a plan, and what is written here instead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_PER_GPU_OR_GLOBAL = "⟨micro_batch⟩ N (sequences per GPU) or ⟨global_batch⟩ N (per optimizer step, all GPUs)"
_FOUR_BITS = "use ⟨method⟩ qlora to train, or ⟨inference⟩ with ⟨quant⟩ int4 to serve"
_EIGHT_BITS = "use ⟨quant⟩ int8, with ⟨inference⟩ or ⟨method⟩ lora"
_IN_THE_SCRIPT = "set it in the training script: neither memory nor step time depends on it"
_PACKED = (
    "plan the rows that packing makes: those of TRL's strategy wrapped have max_length tokens, ⟨seq_len⟩ "
    "MAX_LENGTH; bfd, padding-free batches and Axolotl's sample_packing lay the rows of a batch end to end, "
    "⟨micro_batch⟩ 1, ⟨seq_len⟩ ROWS×MAX_LENGTH and ⟨attention⟩ flash_attention_2 (the step time then counts "
    "attention across documents). Their mask under sdpa, every token by every token, is not modelled: "
    "`zerokit rehearse` runs the script with it"
)

_SHORT = 7  # a slip in a shorter name may have meant another one

ACCELERATE_YAML = ("config", "config_file", "accelerate_config", "accelerate_config_file")
"""What the YAML of ``accelerate config`` is given with elsewhere; a script may have a ``config`` too."""
_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "use ⟨precision⟩ bf16|fp16|fp32": ("dtype", "torch_dtype", "mixed_precision"),
    "use ⟨precision⟩ bf16": ("bf16",),
    "use ⟨precision⟩ fp16": ("fp16",),
    "use ⟨precision⟩ fp32": ("fp32",),
    f"use {_PER_GPU_OR_GLOBAL}": ("bs", "batch", "batch_size", "train_batch_size"),
    "use ⟨micro_batch⟩ N": (
        "micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu",
    ),
    "use ⟨global_batch⟩ N": ("global_batch_size",),
    "use ⟨gradient_accumulation⟩ N": ("gas", "grad_accum", "accumulation", "gradient_accumulation_steps"),
    "expert parallelism is not modelled: experts are divided by ⟨zero⟩ 3 or ⟨tp⟩ N": (
        "ep", "ep_size", "expert_parallel", "expert_parallel_size", "expert_model_parallel_size",
    ),
    "use ⟨zero⟩ 0|1|2|3": ("stage", "zero_stage"),
    "use ⟨method⟩ lora": ("lora", "peft"),
    "use ⟨method⟩ qlora": ("qlora",),
    "use ⟨method⟩ full": ("full",),
    "use ⟨lora_rank⟩ R": ("rank", "r", "lora_r"),
    "use ⟨lora_targets⟩ NAMES": ("target_modules",),
    _FOUR_BITS: ("load_in_4bit", "use_4bit", "4bit", "4_bit", "int4", "nf4", "bnb_4bit"),
    _EIGHT_BITS: ("load_in_8bit", "use_8bit", "8bit", "8_bit", "int8"),
    f"4 bits: {_FOUR_BITS}; 8 bits: {_EIGHT_BITS}": ("quantization", "quantize", "quantized", "bits", "bnb"),
    "use ⟨gpus⟩ N": ("num_gpus", "n_gpus", "ngpus", "num_processes"),
    "use ⟨gpus⟩ N (a rank per GPU, all nodes together)": (
        "ranks", "processes", "num_procs", "nproc", "nprocs", "np", "world_size",
    ),
    "use ⟨gpus⟩ N, all nodes together": ("nproc_per_node",),
    "use ⟨nodes⟩ M": ("num_nodes", "nnodes", "num_machines"),
    "use ⟨gpu⟩ NAME": ("gpu_type",),
    "use ⟨vram⟩ SIZE": ("gpu_memory",),
    "use ⟨vram⟩ SIZE (per GPU) or ⟨host_ram⟩ SIZE (per node)": ("memory",),
    "use ⟨host_ram⟩ SIZE": ("ram", "cpu_memory"),
    "use ⟨device⟩ cpu": ("cpu",),
    "use ⟨seq_len⟩ TOKENS": (
        "seq", "seqlen", "seq_length", "sequence_length", "max_seq_len", "max_seq_length", "max_length",
        "context",
    ),
    _PACKED: ("packing", "packing_strategy", "padding_free", "sample_packing"),
    "use ⟨offload_activations⟩": ("activation_offloading",),
    "use ⟨eval_batch⟩ N": ("per_device_eval_batch_size", "eval_batch_size"),
    "use ⟨loss⟩ liger": ("use_liger_kernel",),
    "use ⟨checkpointing⟩ full": ("gradient_checkpointing",),
    "use ⟨checkpointing⟩ full|selective": ("activation_checkpointing",),
    "use ⟨offload_optimizer⟩ cpu, and with ZeRO-3 ⟨offload_param⟩ cpu": ("offload", "cpu_offload"),
    "use ⟨tp⟩ N": ("tensor_parallel", "tensor_parallel_size"),
    "use ⟨pp⟩ N": ("pipeline_parallel",),
    "use ⟨sp⟩ N": ("sequence_parallel",),
    "use ⟨engine⟩ fsdp2 and ⟨cp⟩ N": ("context_parallel", "context_parallel_size", "cp_size"),
    "use ⟨attention⟩ flash_attention_2": ("flash_attention", "flash_attn"),
    "use ⟨attention⟩ sdpa|eager|flash_attention_2": ("attn_implementation",),
    "use ⟨optimizer⟩ TYPE": ("optim",),
    "use ⟨model⟩ NAME": ("name", "model_name"),
    "use ⟨model⟩ NAME|PATH": ("model_name_or_path",),
    "use ⟨params⟩ COUNT": ("size", "parameters"),
    _IN_THE_SCRIPT: ("lr", "learning_rate", "epochs", "max_steps", "weight_decay", "max_grad_norm"),
    "use ⟨inference⟩": ("kv_cache", "serve"),
    "use ⟨out⟩ DIR": ("output", "output_dir"),
    "use ⟨explain⟩": ("verbose",),
    "use ⟨json⟩": ("format",),
    "use ⟨deepspeed⟩ FILE": ("ds_config", "deepspeed_config"),
    "use `zerokit estimate ⟨accelerate⟩ FILE`, or `zerokit check FILE` for an accelerate YAML": (
        *ACCELERATE_YAML,
    ),
}  # fmt: skip
OTHER_NAMES: Mapping[str, str] = {name: text for text, names in _INSTEAD.items() for name in names}
"""Name elsewhere, with underscores → what to write, arguments marked (:mod:`zerokit.fields`)."""


def in_place_of_accelerate_yaml(name: str, command: str, arguments: Collection[str]) -> str | None:
    """What to give a command that runs a script, where an accelerate YAML was given; None: another option is
    meant, or the command takes no plan. ``name``: with or without dashes. ``command``: without the program:
    ``emit sbatch``. ``arguments``: the command's own, with underscores."""
    if _key(name) not in ACCELERATE_YAML or "plan" not in arguments:
        return None
    or_file = ", or give a DeepSpeed JSON with ⟨deepspeed⟩ FILE" if "deepspeed" in arguments else ""
    of_script = f"; a {name} of the script's own stands after its name" if _key(name) == "config" else ""
    return (
        f"{command} takes no accelerate YAML: plan in its place (`zerokit plan ⟨gpus⟩ N ⟨gpu⟩ GPU -- SCRIPT`"
        f", then `zerokit {command} ⟨plan⟩ DIR SCRIPT`){or_file}{of_script}"
    )


def _key(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def instead(name: str, candidates: Iterable[str]) -> str | None:
    """What to write instead of an argument that does not exist here; None where nothing is near. ``name``:
    with or without dashes. ``candidates``: the arguments that there are, with underscores."""
    from zerokit.suggest import by_words, misspelt

    key = _key(name)
    if key in OTHER_NAMES:
        return OTHER_NAMES[key]
    names = list(candidates)
    close = misspelt(key, names, most=2) if len(key) > 2 else []
    if not close and len(key) > _SHORT and (elsewhere := misspelt(key, OTHER_NAMES)):
        return OTHER_NAMES[elsewhere[0]]
    close = close or by_words(key, names)
    return f"did you mean {' or '.join(f'⟨{name}⟩' for name in close)}?" if close else None


_REHEARSED = (
    "use full, lora or qlora; loss and loop are the script's: "
    "`zerokit plan ⟨gpus⟩ N ⟨gpu⟩ GPU -- SCRIPT` plans with a rehearsal of it"
)
VALUES: Mapping[tuple[str, str], str] = dict.fromkeys(
    (("method", word) for word in ("sft", "dpo", "grpo", "ppo", "rloo", "kto", "orpo", "reward", "gkd")),
    _REHEARSED,
)
"""Values that an argument has elsewhere, and what is written here instead."""
