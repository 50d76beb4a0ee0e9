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
OTHER_NAMES: Mapping[str, str] = {
    "dtype": "use ⟨precision⟩ bf16|fp16|fp32",
    "torch_dtype": "use ⟨precision⟩ bf16|fp16|fp32",
    "mixed_precision": "use ⟨precision⟩ bf16|fp16|fp32",
    "bf16": "use ⟨precision⟩ bf16",
    "fp16": "use ⟨precision⟩ fp16",
    "fp32": "use ⟨precision⟩ fp32",
    "bs": f"use {_PER_GPU_OR_GLOBAL}",
    "batch": f"use {_PER_GPU_OR_GLOBAL}",
    "batch_size": f"use {_PER_GPU_OR_GLOBAL}",
    "train_batch_size": f"use {_PER_GPU_OR_GLOBAL}",
    "micro_batch_size": "use ⟨micro_batch⟩ N",
    "per_device_train_batch_size": "use ⟨micro_batch⟩ N",
    "train_micro_batch_size_per_gpu": "use ⟨micro_batch⟩ N",
    "global_batch_size": "use ⟨global_batch⟩ N",
    "gas": "use ⟨gradient_accumulation⟩ N",
    "grad_accum": "use ⟨gradient_accumulation⟩ N",
    "accumulation": "use ⟨gradient_accumulation⟩ N",
    "gradient_accumulation_steps": "use ⟨gradient_accumulation⟩ N",
    **dict.fromkeys(
        ("ep", "ep_size", "expert_parallel", "expert_parallel_size", "expert_model_parallel_size"),
        "expert parallelism is not modelled: experts are divided by ⟨zero⟩ 3 or ⟨tp⟩ N",
    ),
    "stage": "use ⟨zero⟩ 0|1|2|3",
    "zero_stage": "use ⟨zero⟩ 0|1|2|3",
    "lora": "use ⟨method⟩ lora",
    "qlora": "use ⟨method⟩ qlora",
    "peft": "use ⟨method⟩ lora",
    "full": "use ⟨method⟩ full",
    "rank": "use ⟨lora_rank⟩ R",
    "r": "use ⟨lora_rank⟩ R",
    "lora_r": "use ⟨lora_rank⟩ R",
    "target_modules": "use ⟨lora_targets⟩ NAMES",
    **dict.fromkeys(("load_in_4bit", "use_4bit", "4bit", "4_bit", "int4", "nf4", "bnb_4bit"), _FOUR_BITS),
    **dict.fromkeys(("load_in_8bit", "use_8bit", "8bit", "8_bit", "int8"), _EIGHT_BITS),
    **dict.fromkeys(
        ("quantization", "quantize", "quantized", "bits", "bnb"),
        f"4 bits: {_FOUR_BITS}; 8 bits: {_EIGHT_BITS}",
    ),
    "num_gpus": "use ⟨gpus⟩ N",
    "n_gpus": "use ⟨gpus⟩ N",
    "ngpus": "use ⟨gpus⟩ N",
    "num_processes": "use ⟨gpus⟩ N",
    **dict.fromkeys(
        ("ranks", "processes", "num_procs", "nproc", "nprocs", "np", "world_size"),
        "use ⟨gpus⟩ N (a rank per GPU, all nodes together)",
    ),
    "nproc_per_node": "use ⟨gpus⟩ N, all nodes together",
    "num_nodes": "use ⟨nodes⟩ M",
    "nnodes": "use ⟨nodes⟩ M",
    "num_machines": "use ⟨nodes⟩ M",
    "gpu_type": "use ⟨gpu⟩ NAME",
    "gpu_memory": "use ⟨vram⟩ SIZE",
    "memory": "use ⟨vram⟩ SIZE (per GPU) or ⟨host_ram⟩ SIZE (per node)",
    "ram": "use ⟨host_ram⟩ SIZE",
    "cpu_memory": "use ⟨host_ram⟩ SIZE",
    "cpu": "use ⟨device⟩ cpu",
    "seq": "use ⟨seq_len⟩ TOKENS",
    "seqlen": "use ⟨seq_len⟩ TOKENS",
    "seq_length": "use ⟨seq_len⟩ TOKENS",
    "sequence_length": "use ⟨seq_len⟩ TOKENS",
    "max_seq_len": "use ⟨seq_len⟩ TOKENS",
    "max_seq_length": "use ⟨seq_len⟩ TOKENS",
    "max_length": "use ⟨seq_len⟩ TOKENS",
    "context": "use ⟨seq_len⟩ TOKENS",
    "packing": _PACKED,
    "packing_strategy": _PACKED,
    "padding_free": _PACKED,
    "sample_packing": _PACKED,
    "activation_offloading": "use ⟨offload_activations⟩",
    "use_liger_kernel": "use ⟨loss⟩ liger",
    "gradient_checkpointing": "use ⟨checkpointing⟩ full",
    "activation_checkpointing": "use ⟨checkpointing⟩ full|selective",
    "offload": "use ⟨offload_optimizer⟩ cpu, and with ZeRO-3 ⟨offload_param⟩ cpu",
    "cpu_offload": "use ⟨offload_optimizer⟩ cpu, and with ZeRO-3 ⟨offload_param⟩ cpu",
    "tensor_parallel": "use ⟨tp⟩ N",
    "tensor_parallel_size": "use ⟨tp⟩ N",
    "pipeline_parallel": "use ⟨pp⟩ N",
    "sequence_parallel": "use ⟨sp⟩ N",
    "flash_attention": "use ⟨attention⟩ flash_attention_2",
    "flash_attn": "use ⟨attention⟩ flash_attention_2",
    "attn_implementation": "use ⟨attention⟩ sdpa|eager|flash_attention_2",
    "optim": "use ⟨optimizer⟩ TYPE",
    "name": "use ⟨model⟩ NAME",
    "model_name": "use ⟨model⟩ NAME",
    "model_name_or_path": "use ⟨model⟩ NAME|PATH",
    "size": "use ⟨params⟩ COUNT",
    "parameters": "use ⟨params⟩ COUNT",
    "lr": _IN_THE_SCRIPT,
    "learning_rate": _IN_THE_SCRIPT,
    "epochs": _IN_THE_SCRIPT,
    "max_steps": _IN_THE_SCRIPT,
    "weight_decay": _IN_THE_SCRIPT,
    "max_grad_norm": _IN_THE_SCRIPT,
    "kv_cache": "use ⟨inference⟩",
    "serve": "use ⟨inference⟩",
    "output": "use ⟨out⟩ DIR",
    "output_dir": "use ⟨out⟩ DIR",
    "verbose": "use ⟨explain⟩",
    "format": "use ⟨json⟩",
    **dict.fromkeys(("ds_config", "deepspeed_config"), "use ⟨deepspeed⟩ FILE"),
    **dict.fromkeys(
        ACCELERATE_YAML,
        "for a DeepSpeed JSON use `zerokit estimate ⟨deepspeed⟩ FILE`, for it or an accelerate YAML "
        "`zerokit check FILE`",
    ),
}
"""Name elsewhere, with underscores → what to write, arguments marked (:mod:`zerokit.fields`)."""


def in_place_of_accelerate_yaml(name: str, command: str, arguments: Collection[str]) -> str | None:
    """What to give a command that runs a script, where an accelerate YAML was given; None: another option is
    meant, or the command takes no plan.

    Args:
        name: with or without dashes. command: without the program: ``emit sbatch``.
        arguments: the command's own, with underscores.
    """
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
    """What to write instead of an argument that does not exist here; None where nothing is near.

    Args:
        name: with or without dashes.
        candidates: the arguments that there are, with underscores.
    """
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
