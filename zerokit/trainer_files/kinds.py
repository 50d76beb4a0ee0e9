"""The trainers whose files are read: one row each, and what a file of theirs asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from zerokit.domain.hardware import DEFAULT_MARGIN
from zerokit.domain.model_shape import is_pattern
from zerokit.trainer_files.says import Says
from zerokit.values import frozen_dataclass, replace

ATTENTIONS = {name: name for name in ("sdpa", "eager", "flash_attention_2")}
"""Names of Transformers that are an option's too."""
TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SHARED = {
    "model": ("model_name_or_path",),
    "micro_batch": ("per_device_train_batch_size",),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "lora_rank": ("lora_r",),
    "lora_dropout": ("lora_dropout",),
    "optimizer": ("optim",),
}
"""Option -> key, as TrainingArguments and TRL's ModelConfig have them."""


def take_precision(says: Says, *switches: str) -> None:
    """Take the first precision that is on, of ``bf16`` and ``fp16``, ``auto`` where no other is (axolotl
    0.19, utils/config/__init__.py, ``resolve_dtype``); tf32 is of products in fp32 alone."""
    says("tf32")
    on = {key: says(key) for key in switches if says(key) not in (None, False, "false", "False")}
    if on:
        key = min(on, key=lambda name: on[name] == "auto")
        says.take("precision", key, "auto" if on[key] == "auto" else key)


def take_checkpointing(says: Says, key: str, is_on: bool) -> None:
    """Take whether the layers are checkpointed, by which key, and whether that is reentrant."""
    says.take("checkpointing", key, "full" if is_on else "none")
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        given = says(name) if name in says.values else None
        if is_on and isinstance(given, dict) and isinstance(given.get("use_reentrant"), bool):
            says.take("reentrant", name, "on" if given["use_reentrant"] else "off")


def take_targets(says: Says, key: str) -> None:
    """Take the modules that get adapters: a list, a text with commas, a pattern, or ``all``."""
    value = says(key) or ""
    names = value if isinstance(value, list) else [value] if is_pattern(str(value)) else str(value).split(",")
    names = [str(name).strip() for name in names if str(name).strip()]
    if "all" in names or "all-linear" in names:
        says.take("lora_targets", key, "all-linear")
    elif names:
        says.take("lora_targets", key, ",".join(names))


def take_constants(says: Says, key: str, *, nested: bool) -> None:
    """Name how constants of 4-bit weights are kept where that is not the trainer's default, which counts."""
    if key in says.values and says.is_on(key) != nested and says.options.get("method") == "qlora":
        bits = 8 if nested else 32
        says.leave_out(key, f"constants of 4-bit weights are counted in {bits} bits")
    says(key)


_EVALUATED = ("axolotl", "axolotl-peft", "llamafactory", "swift", "trl")
"""Whose evaluation is a pass with the loss of training."""


def take_evaluation(says: Says, micro: str, size: str, *switches: str) -> None:
    """Take the batch size of an evaluation; of preferences name one that is larger than the training's.
    ``micro``, ``size``: keys of the batch sizes per GPU. ``switches``: any of them turns evaluation on."""
    on = [key for key in switches if says(key) not in (None, False, 0, 0.0, "no")]
    batch, trained = says(size), says(micro)
    if not (on and isinstance(batch, int)):
        return
    if says.options["trainer"] in _EVALUATED:
        says.take("eval_batch", size, batch)
    elif isinstance(trained, int) and batch > trained:
        says.leave_out(
            size if size in says.values else on[0], f"evaluation runs with {batch} sequences per GPU"
        )


def take_trainer_arguments(says: Says) -> None:
    """Take precision, checkpointing, engine and evaluation."""
    take_evaluation(
        says, "per_device_train_batch_size", "per_device_eval_batch_size", "eval_strategy", "do_eval",
        "split_dataset_ratio", "val_dataset",
    )  # fmt: skip
    says("val_size"), says("eval_dataset")  # rows of LLaMA-Factory's, which begin no evaluation
    take_precision(says, "bf16", "fp16")
    if "gradient_checkpointing" in says.trainer.keys:
        is_on = says.is_on("gradient_checkpointing") or says.is_on("activation_checkpointing")
        take_checkpointing(says, "gradient_checkpointing", is_on)
    if says("deepspeed"):
        says.engine["deepspeed"] = says("deepspeed")
    elif says("fsdp"):
        says.engine["fsdp"] = {"fsdp": says("fsdp"), "fsdp_config": says("fsdp_config", {})}


@frozen_dataclass
class Kind:
    """How a trainer's files are read.

    Attributes:
        asks: takes what a file says.
        direct: option of a plan -> the key that says it as the option does, and older names of the key.
        checkpoints: the keys that turn activation checkpointing on, or off.
        command: the words that train with a file, which takes the place of ``FILE`` and what it trains for
            that of ``STAGE``; commands of shell scripts begin with the first of them and one of
            ``subcommands``.
        refuses_keys, refuses_values: where it has no such key, and where the value is not of the key's kind.
        own_arguments: a script may add some. converts: argparse reads texts as numbers.
        replaced: what took the place of a key that it has not; other names of one, too.
    """

    asks: Callable[[Says], None]
    direct: Mapping[str, tuple[str, ...]]
    command: tuple[str, ...]
    subcommands: tuple[str, ...] = ("train",)
    checkpoints: Callable[[bool], Mapping[str, bool | None]] = lambda on: {"gradient_checkpointing": on}
    refuses_keys: bool = True
    refuses_values: bool = True
    own_arguments: bool = False
    converts: bool = False
    replaced: Mapping[str, str] = field(default_factory=dict)

    def command_with(self, path: str, stage: str) -> tuple[str, ...]:
        """The words that train with a file."""
        places = {"FILE": path, "STAGE": stage}
        return tuple(places.get(word, word) for word in self.command)

    def keys_of(self, setting: str, value: Any) -> Mapping[str, Any]:
        """The keys that give a setting a value; None: the file must lose the key."""
        if setting == "checkpointing":
            return self.checkpoints(value == "full")
        if setting == "deepspeed":
            return {"deepspeed": value, "fsdp": None, "fsdp_config": None, "fsdp_version": None}
        return {self.direct[setting][0]: value}


def _take_whole(says: Says, method: str, *of_adapters: str) -> None:
    """Take the training of all weights, for which keys ``of_adapters`` do not count."""
    says.take("method", method, "full")
    for key in of_adapters:
        says(key)
    says.options |= {"lora_rank": None, "lora_dropout": None}


def _take_adapters(says: Says, method: str) -> None:
    says.take("method", method, "qlora" if says.is_on("load_in_4bit") else "lora")
    if says.is_on("load_in_8bit"):
        says.take("quant", "load_in_8bit", "int8")


def is_llamafactory_v1(values: Mapping[str, Any]) -> bool:
    """Whether a file is for LLaMA-Factory's new trainer."""
    return "model" in values and "model_name_or_path" not in values


_PLUGIN_LOSSES = {
    "CutCrossEntropyPlugin": ("cut_cross_entropy", "cut"),
    "LigerPlugin": ("liger_fused_linear_cross_entropy", "liger"),
}
"""Plugin -> the key that turns its loss on, and the loss; cut cross-entropy is on unless it says no
(integrations/cut_cross_entropy/args.py)."""
_OLD_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "sage_attention": "sage",
}
"""Keys that 0.19 still takes in place of ``attn_implementation``."""


_PREFERENCES = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "simpo": "orpo", "cpo": "orpo",
                "rm": "reward", "prm": "process"}  # fmt: skip
"""How a trainer's file names a method -> which of the trainer's rows counts it."""


def _axolotl(says: Says) -> None:
    """What a YAML of axolotl asks for (axolotl 0.19, utils/schemas)."""
    says.options["trainer"] = "axolotl"
    for key in ("ebft", "diffusion"):
        if says(key):
            says.refuse(key, "axolotl's training by other losses")
    _take_preferences(says)
    adapter = says("adapter")
    if adapter in ("lora", "qlora"):
        _take_adapters(says, "adapter")
        if says.is_on("lora_target_linear"):
            says.take("lora_targets", "lora_target_linear", "all-linear")
        else:
            take_targets(says, "lora_target_modules")
    elif adapter:
        says.refuse("adapter", "any adapter but lora and qlora")
    else:
        _take_whole(
            says, "adapter", "lora_r", "lora_dropout", "lora_target_modules", "lora_target_linear",
            "load_in_4bit", "load_in_8bit",
        )  # fmt: skip
    if adapter and says.options["trainer"] == "axolotl":
        _take_kernels(says)
    take_precision(says, "bf16", "fp16")
    if "precision" not in says.options and not says.is_on("load_in_8bit"):
        # utils/config/__init__.py:203
        says.take("precision", "bf16", "fp32")
    _take_attention(says)
    value = says("gradient_checkpointing")
    take_checkpointing(says, "gradient_checkpointing", bool(value))
    if isinstance(value, str) and value.startswith("offload"):
        says.leave_out("gradient_checkpointing", "what it keeps is counted on the GPU")
    if says("activation_offloading"):
        says.leave_out("activation_offloading", "what it keeps is counted on the GPU")
    _take_loss(says)
    take_axolotls_engine(says)
    for key in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
                "sequence_parallel_degree", "expert_parallel_size"):  # fmt: skip
        if (says(key) or 1) > 1:
            says.leave_out(key, "one division of the model over all GPUs is counted")
    take_evaluation(says, "micro_batch_size", "eval_batch_size", "val_set_size", "test_datasets")
    if says.is_on("pad_to_sequence_len") and not says.is_on("sample_packing"):
        says.take("padding", "pad_to_sequence_len", True)
    says("sample_packing"), says("eval_sample_packing"), says("model_type")


_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


def _take_preferences(says: Says) -> None:
    """Take which of TRL's trainers axolotl runs (0.19, core/builders/rl.py)."""
    of_rewards = {"process_reward_model": "prm", "reward_model": "rm"}
    key = next((key for key in ("rl", *of_rewards) if says(key)), None)
    if key is None:
        return
    method = of_rewards.get(key, says(key))
    if method == "grpo":
        _take_block_of_generation(says)
        return
    if (row := _PREFERENCES.get(method)) is None:
        says.refuse("rl", "axolotl's training by generated answers")
        return
    says.options["trainer"] = f"axolotl-{row}"
    says.take("padding", key, True)  # answers differ in length
    says("rl_beta"), says("num_labels")
    if "sft" in (says("dpo_loss_type") or ()):
        says.leave_out("dpo_loss_type", "the cross-entropy of chosen answers")
    kernels = (*_KERNELS, "lora_embedding_kernel")
    for one in (one for one in kernels if says.is_on(one)):
        says.leave_out(one, "which keeps less, is not counted with preferences")
    is_auto = not any(says.values.get(one) is not None for one in (*kernels, "trust_remote_code"))
    if key in of_rewards and says("adapter") and is_auto and not says.is_on("load_in_8bit"):
        # rehearsed: monkeypatch/lora_kernels.py:485 takes models with words alone
        says.leave_out(key, f"0.19 stops unless {', '.join(_KERNELS)} are false")
    if method == "prm" and says.is_on("lora_target_linear"):  # rehearsed: peft/utils/other.py:353
        says.leave_out("lora_target_linear", "0.19 stops where the head is adapted, too")
    _take_nll(says, method)


def _take_block_of_generation(says: Says) -> None:
    """Take what the block ``trl`` says of GRPO (0.19, core/trainers/grpo), with which prompts are not cut."""
    known = says.trainer.keys["trl"].keys
    block = Says(replace(says.trainer, keys=known), says("trl", {}))
    block.options["trainer"] = "axolotl-grpo"
    take_generation(block, "max_prompt_length", beta=says("rl_beta", 0.0))
    block.account()
    says("sequence_len"), says("vllm")
    says.options |= block.options
    says.keys |= dict.fromkeys(block.keys, "trl")
    says.not_modelled |= {f"trl.{key}": what for key, what in block.not_modelled.items()}


def _take_nll(says: Says, method: str) -> None:
    """Name it where SimPO or CPO leave out the cross-entropy, which the row counts."""
    if says("cpo_alpha") == 0 and method in ("simpo", "cpo"):
        says.leave_out("cpo_alpha", "the cross-entropy that it turns off is counted")


def _take_kernels(says: Says) -> None:
    """Take whether adapters run in axolotl's own functions: all of them do where no key says (0.19,
    utils/schemas/config.py:1976), those that are on where one does."""
    keys = (*_KERNELS, "lora_embedding_kernel")
    given = [key for key in keys if says.values.get(key) is not None]
    on = [key for key in _KERNELS if says.is_on(key)]
    if says.is_on("trust_remote_code") or (given and len(on) < len(_KERNELS)):
        says.take("trainer", given[0] if given else "trust_remote_code", "axolotl-peft")
        for key in on:
            says.leave_out(key, "which keeps less, is counted only together with the others")
    elif not says.is_on("load_in_8bit") and "embed_tokens" in str(says.options.get("lora_targets")):
        says.leave_out("lora_embedding_kernel", "adapters of embeddings are counted as peft's")


def take_axolotls_engine(says: Says) -> None:
    """Take DeepSpeed's file, or FSDP's arguments as the Trainer gets them: what it lacks goes by the
    environment (axolotl 0.19, utils/trainer.py:599), and a block without a version is FSDP 1's
    (utils/schemas/validation.py:1227)."""
    if says("deepspeed"):
        says.engine["deepspeed"] = says("deepspeed")
    elif says("fsdp") or says("fsdp_config"):
        block = {str(key).removeprefix("fsdp_"): value for key, value in says("fsdp_config", {}).items()}
        version = says("fsdp_version") or block.get("version") or (1 if block else 2)
        block |= {"version": version, "cpu_offload": block.pop("offload_params", False)}
        says.engine["fsdp"] = {"fsdp": says("fsdp") or "full_shard", "fsdp_config": block}
        if str(version) == "2":  # monkeypatch/accelerate/fsdp2.py: up to 3.5 % more in backward, rehearsed
            key = "fsdp_config" if block else "fsdp"
            says.leave_out(key, "its own way to wrap a model for FSDP2, counted as Accelerate's")


def _take_attention(says: Says) -> None:
    old = next((key for key in _OLD_ATTENTION if says.is_on(key)), "")
    if old and not says.values.get("attn_implementation"):
        if _OLD_ATTENTION[old] in ATTENTIONS:
            says.take("attention", old, _OLD_ATTENTION[old])
        else:
            says.leave_out(old, "counted as sdpa")
    says.take_one("attention", "attn_implementation", ATTENTIONS, "sdpa")


def _take_loss(says: Says) -> None:
    others, has_own = [], says.options["trainer"] in ("axolotl", "axolotl-peft")
    plugins = says("plugins", [])
    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        name = str(plugin).rpartition(".")[2]
        key, loss = _PLUGIN_LOSSES.get(name, ("", ""))
        if not loss:
            others.append(name)
        elif says(key) if loss == "liger" else says(key) is not False:
            if has_own:
                says.take("loss", key, loss)
            else:  # of which the model is given no labels
                says.leave_out("plugins", f"{name}: no loss, and its layers as the model's own")
    if others:
        says.leave_out("plugins", ", ".join(others))


def _axolotls_checkpointing(is_on: bool) -> Mapping[str, bool | None]:
    """The keys of checkpointing, without which axolotl moves no activations (utils/schemas/validation.py)."""
    if is_on:
        return {"gradient_checkpointing": True}
    return {"gradient_checkpointing": False, "activation_offloading": None}


_LLAMA_FACTORY_STAGES = {"dpo": "dpo", "orpo": "orpo", "kto": "kto", "rm": "reward"}
_LLAMA_FACTORY_ATTENTION = {"sdpa": "sdpa", "fa2": "flash_attention_2", "disabled": "eager"}


def _llamafactory(says: Says) -> None:
    """What a YAML of LLaMA-Factory asks for (LLaMA-Factory 0.9.5, hparams)."""
    says.options["trainer"], says.stage = "llamafactory", "train"
    if "model_class" in says.values or is_llamafactory_v1(says.values):
        says.refuse("model", "LLaMA-Factory's new trainer (its v1 arguments)")
    if says.values.get("export_dir") or says.values.get("infer_backend"):
        key = "export_dir" if says.values.get("export_dir") else "infer_backend"
        says.refuse(key, "what trains nothing")
    stage = says("stage")
    if stage == "dpo" and says("pref_loss") in ("orpo", "simpo"):
        stage = "orpo"
    if stage in _LLAMA_FACTORY_STAGES:
        says.options["trainer"] = f"llamafactory-{_LLAMA_FACTORY_STAGES[stage]}"
    elif stage not in ("sft", "pt"):
        says.refuse("stage", "LLaMA-Factory's training by PPO")
    kind = says("finetuning_type")
    if kind not in ("lora", "full"):
        says.refuse("finetuning_type", "any but lora and full")
    bits = says("quantization_bit")
    if kind == "lora":
        says.take("method", "finetuning_type", "qlora" if bits == 4 else "lora")
        take_targets(says, "lora_target")
        if bits == 8:
            says.take("quant", "quantization_bit", "int8")
        elif bits and bits != 4:
            says.leave_out("quantization_bit", "weights are counted in 16 bits")
    else:
        _take_whole(says, "finetuning_type")
    take_trainer_arguments(says)
    if says.is_on("pure_bf16"):
        take_precision(says, "pure_bf16")
        says.options |= {"precision": "bf16", "load_dtype": "bf16"}
    elif kind == "full" and "precision" not in says.options:
        # weights that are trained become fp32 (model/adapter.py:316), and no autocast is asked for
        says.take("precision", "bf16", "fp32")
    if kind == "lora" and says.options.get("precision") == "fp16":
        # Transformers 5 loads a checkpoint in its own dtype; rehearsed: 17 % more with one in bf16
        says.leave_out("fp16", "counted as of a checkpoint in fp16; one in bf16 is cast, which takes more")
    off = says.is_on("disable_gradient_checkpointing")
    take_checkpointing(says, "disable_gradient_checkpointing", not off)
    if not off and "use_reentrant_gc" in says.values:
        says.take("reentrant", "use_reentrant_gc", "on" if says.is_on("use_reentrant_gc") else "off")
    says.take_one("attention", "flash_attn", _LLAMA_FACTORY_ATTENTION, "sdpa")
    for key in ("enable_liger_kernel", "use_liger_kernel"):
        if says.is_on(key) and stage in ("sft", "pt"):
            says.take("loss", key, "liger")
        elif says.is_on(key):  # without its loss (model/loader.py:144, require_logits)
            says.leave_out(key, "its layers, which keep less, are counted as the model's own")
    says("pref_ftx")  # of the same log-probabilities
    says("packing"), says("neat_packing")
    take_constants(says, "double_quantization", nested=True)


_SWIFT_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash_attn": "flash_attention_2",
              "flash_attention_2": "flash_attention_2"}  # fmt: skip
_SWIFT_GLOBAL_BATCH = 16
"""Where nobody says the accumulation (trainers/arguments.py:291)."""
_SWIFT_STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero2_offload": 2, "zero3": 3, "zero3_offload": 3}
_SWIFT_BUCKET = 200_000_000
"""Elements of ``zero0`` to ``zero2_offload``."""

_SWIFT_FSDP = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"cpu_ram_efficient_loading": True, "activation_checkpointing": True},
}
"""What counts of config/fsdp2.json, which ``fsdp2`` names."""


def _preset(name: str) -> dict[str, Any]:
    """What counts of a DeepSpeed file that ms-swift brings (config/zero3_offload.json and its like)."""
    stage, device = _SWIFT_STAGES[name], "cpu" if name.endswith("_offload") else "none"
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if stage:
        zero["offload_optimizer"] = {"device": device, "pin_memory": True}
    if stage < 3:
        zero |= {"allgather_bucket_size": _SWIFT_BUCKET, "reduce_bucket_size": _SWIFT_BUCKET}
    else:
        buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
        zero |= {"offload_param": {"device": device, "pin_memory": True}, "sub_group_size": 10**9}
        zero |= {"stage3_max_live_parameters": 10**9, "stage3_max_reuse_distance": 10**9}
        zero |= dict.fromkeys(buckets, "auto")
    open_keys = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size",
                 "train_micro_batch_size_per_gpu")  # fmt: skip
    precisions = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {**precisions, "zero_optimization": zero, **dict.fromkeys(open_keys, "auto")}


def _swift(says: Says) -> None:
    """What a YAML, or the arguments, of ms-swift ask for (ms-swift 4.6, arguments)."""
    says.options["trainer"] = "swift"
    if says.stage == "rlhf" or says.values.get("rlhf_type"):
        says.stage = "rlhf"
        row = {**_PREFERENCES, "grpo": "grpo"}.get(method := says("rlhf_type"))
        if row is None:
            says.refuse("rlhf_type", f"ms-swift's training by {method}")
        says.options["trainer"] = f"swift-{row}"
        if row == "grpo":
            take_generation(says, "max_length", beta=0.04)  # arguments/rlhf_args.py:357
        if not (says.is_on("packing") or says.is_on("padding_free")):  # answers differ in length
            says.take("padding", "rlhf_type", True)
        says("beta"), says("loss_type"), says("num_labels")  # of the same log-probabilities
        _take_nll(says, method)
    says.stage = says.stage or "sft"
    own = "seq_cls" if says.options["trainer"] == "swift-reward" else "causal_lm"  # rlhf_args.py:494
    if says("task_type", own) not in ("causal_lm", own):
        says.refuse("task_type", f"any task but {own}")
    key = "train_type" if says.values.get("train_type") else "tuner_type"  # its name until 3.12
    kind = says(key, "lora")
    if kind not in ("lora", "full"):
        says.refuse(key, "any tuner but lora and full")
    if kind == "lora":
        bits = says("quant_bits") if says("quant_method") in (None, "bnb") else None
        says.take("method", key, "qlora" if bits == 4 else "lora")
        take_targets(says, "target_modules")
        if bits == 8:
            says.take("quant", "quant_bits", "int8")
        elif says("quant_bits") and bits != 4:
            says.leave_out("quant_bits", "weights are counted in 16 bits")
    else:
        _take_whole(says, key)
    take_trainer_arguments(says)
    says.take_one("precision", "torch_dtype", TORCH_DTYPES, "bf16")
    if says.options.get("precision") == "fp32":  # trains in fp16 then (arguments/base_args/model_args.py:133)
        says.options |= {"precision": "fp16", "load_dtype": "fp32"}
    says.take_one("attention", "attn_impl", _SWIFT_ATTENTION, "sdpa")
    if says.is_on("use_liger_kernel") and says.stage == "rlhf":
        says.leave_out("use_liger_kernel", "its layers, which keep less, are counted as the model's own")
    elif says.is_on("use_liger_kernel"):
        says.take("loss", "use_liger_kernel", "liger")
    if says("fsdp") == "fsdp2":
        says.engine["fsdp"] = _SWIFT_FSDP
    if isinstance(named := says.engine.get("deepspeed"), str) and named in _SWIFT_STAGES:
        says.engine["deepspeed"] = _preset(named)
    if says("gradient_accumulation_steps") is None:
        says.take("global_batch", "gradient_accumulation_steps", _SWIFT_GLOBAL_BATCH)
    says("packing"), says("padding_free"), says("model_type")
    take_constants(says, "bnb_4bit_use_double_quant", nested=True)


_TRL_TRAINERS = {
    "sft": "trl", "dpo": "trl-dpo", "kto": "trl-kto", "reward": "trl-reward", "grpo": "trl-grpo"
}  # fmt: skip
_PROMPT = 512
"""Tokens of a prompt where a file has no longest one, as trainers cut them that do."""
_COMPLETION, _SHARE = 512, 0.3
"""TRL's own, of max_completion_length and vllm_gpu_memory_utilization (trainer/grpo_config.py)."""


def take_generation(says: Says, prompt: str, beta: float = 0.0) -> None:
    """Take what is generated, and by what; ``prompt``: the key of the longest prompt's tokens. A reference
    model is there unless the weight of its divergence is 0; ``beta``: that where nobody says."""
    for key in ("num_generations", "reward_funcs", *(key for key in says.values if key.startswith("vllm_"))):
        says(key)
    completion = says("max_completion_length", _COMPLETION)
    says.take("new_tokens", "max_completion_length", completion)
    says.take("padding", "max_completion_length", True)  # prompts and answers are of different lengths
    says.take("seq_len", prompt, (says(prompt) or _PROMPT) + completion)
    by_server = says.is_on("use_vllm")
    says.options["trainer"] += "-beta" * bool(says("beta", beta)) + "-server" * by_server
    accumulated = says("gradient_accumulation_steps")
    for key in ("steps_per_generation", "num_iterations", "generation_batch_size"):
        if says(key) not in (None, 1, accumulated) and not by_server:
            says.leave_out(key, "what one step trains on is counted as generated at once")
    share = says("vllm_gpu_memory_utilization", _SHARE)
    sleeps = says("sleep_level") or says.is_on("vllm_enable_sleep_mode")
    if by_server and says("vllm_mode") != "server" and sleeps:
        says.leave_out("use_vllm", "the engine on the same GPUs, which sleeps while they train")
    elif by_server and says("vllm_mode") != "server":
        says.leave_out("use_vllm", f"the engine's {share:.0%} of each GPU, which a plan leaves free")
        says.take("margin", "vllm_gpu_memory_utilization", share + DEFAULT_MARGIN)


def _trl_stages(says: Says) -> tuple[str, ...]:
    """The trainers whose arguments have every key of the file, SFT's first where it is among them."""
    found: list[str] = []
    for name in (*_TRL_TRAINERS, *sorted({one for key in says.trainer.keys.values() for one in key.of})):
        stages_of = (says.trainer.keys[key].of for key in says.values if key in says.trainer.keys)
        if name not in found and all(name in of for of in stages_of if of):
            found.append(name)
    return tuple(found)


def _trl(says: Says) -> None:
    """What a YAML for TRL's scripts, or alignment-handbook's, asks for (TRL 1.16, trainer/*_config.py)."""
    fitting = (says.stage,) if says.stage else _trl_stages(says)
    says.stage = stage = fitting[0] if fitting else "sft"
    if stage not in _TRL_TRAINERS:
        of = {key: says.trainer.keys[key].of for key in says.values if key in says.trainer.keys}
        key = next((key for key, has in of.items() if has and "sft" not in has), "trainer")
        says.refuse(key, f"TRL's {stage} trainer")
    says.options["trainer"] = _TRL_TRAINERS.get(stage, "trl")
    if stage == "grpo":
        take_generation(says, "max_prompt_length")
    says("beta"), says("max_prompt_length")  # within max_length, which counts
    says("lora_task_type")  # of rewards it copies a head of one output (peft, ModulesToSaveWrapper)
    if says.is_on("use_peft"):
        _take_adapters(says, "use_peft")
        if says("lora_target_modules"):
            take_targets(says, "lora_target_modules")
        else:
            says.take("lora_targets", "lora_target_modules", "peft")
    else:
        _take_whole(says, "use_peft", "load_in_4bit", "load_in_8bit", "lora_target_modules")
    if says.is_on("use_liger_kernel"):  # of which it takes the loss away (sft_trainer.py:1140)
        says.leave_out("use_liger_kernel", "its layers, which keep less, are counted as the model's own")
    take_constants(says, "use_bnb_nested_quant", nested=False)
    says("bnb_4bit_quant_type")
    take_trainer_arguments(says)
    if says("bf16") is False and "precision" not in says.options:  # on where nobody says (base_config.py:108)
        says.take("precision", "bf16", "fp32")
    says.take_one("attention", "attn_implementation", ATTENTIONS, "sdpa")
    if says.is_on("activation_offloading"):
        says.take("offload_activations", "activation_offloading", True)
    for key in ("dtype", "torch_dtype"):  # its name until 0.27
        if key in says.values:
            says.take_one("load_dtype", key, TORCH_DTYPES, "the trainer loads it")
    says("packing"), says("padding_free"), says("packing_strategy")


KINDS: Mapping[str, Kind] = {
    "axolotl": Kind(
        asks=_axolotl,
        direct={
            "model": ("base_model",), "seq_len": ("sequence_len",), "micro_batch": ("micro_batch_size",),
            "gradient_accumulation": ("gradient_accumulation_steps",), "lora_rank": ("lora_r",),
            "lora_dropout": ("lora_dropout",), "optimizer": ("optimizer",),
        },
        command=("axolotl", "train", "FILE"),
        checkpoints=_axolotls_checkpointing,
        refuses_keys=False,
        replaced={"load_4bit": "load_in_4bit", "adam_eps": "adam_epsilon",
                  "evaluation_strategy": "eval_strategy"},
    ),
    "llamafactory": Kind(
        asks=_llamafactory,
        direct={**_SHARED, "seq_len": ("cutoff_len",), "lora_rank": ("lora_rank",)},
        command=("llamafactory-cli", "train", "FILE"),
        checkpoints=lambda on: {"disable_gradient_checkpointing": not on},
        refuses_values=False,
    ),
    "swift": Kind(
        asks=_swift,
        direct={**_SHARED, "model": ("model",), "seq_len": ("max_length",), "lora_rank": ("lora_rank",)},
        command=("swift", "STAGE", "FILE"),
        subcommands=("sft", "pt", "rlhf"),
        converts=True,
        replaced={"train_type": "tuner_type", "custom_register_path": "external_plugins",
                  "dataset_test_ratio": "split_dataset_ratio", "sft_type": "tuner_type"},
    ),
    "trl": Kind(
        asks=_trl,
        direct={**_SHARED, "seq_len": ("max_length", "max_seq_length")},
        command=("trl", "STAGE", "--config", "FILE"),
        subcommands=("sft", "dpo", "reward", "kto", "grpo", "rloo"),
        refuses_values=False,
        own_arguments=True,
        converts=True,
        replaced={"max_seq_length": "max_length", "torch_dtype": "dtype", "use_liger": "use_liger_kernel",
                  "dataset_batch_size": "", "reward_model_path": "reward_model_name_or_path",
                  "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
                  "use_transformers_paged": "use_transformers_continuous_batching"},
    ),
}  # fmt: skip
"""By the name that ``⟨from⟩`` takes: that of :func:`zerokit.trainer_files.keys.trainers`."""
