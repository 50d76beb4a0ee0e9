"""The arguments of a plan: the one table. From it come the options of the command line, the keys of a recipe,
what ``check`` takes to say whether a file fits, the library's keyword arguments and docs/options.md.

To add one: a field of :class:`PlanOptions`, and what it does in ``request.py``.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from zerokit.errors import InputError
from zerokit.options import Check, Option, options_of, with_meanings
from zerokit.units import parse_bytes, parse_count, parse_positive_int, parse_rate, parse_share

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


F = TypeVar("F", bound=Callable[..., Any])
GROUPS = ("Model", "Hardware", "Job", "Strategy")


def _or_auto(check: Check) -> Check:
    return lambda value, name: value if value == "auto" else check(value, name)


def _stage(value: object, name: str) -> object:
    if isinstance(value, bool) or value not in (0, 1, 2, 3, "0", "1", "2", "3"):
        raise InputError(f"{name}: {value!r}; use 0, 1, 2 or 3")
    return value


def _text(value: object, name: str) -> object:
    if not isinstance(value, str) or not value.strip() or "\x00" in value:
        raise InputError(f"{name}: expected text, got {value!r}")
    return value


def _switch(value: object, name: str) -> object:
    # on and off without quotes are booleans in YAML
    if value not in ("on", "off") and not isinstance(value, bool):
        raise InputError(f"{name}: {value!r}; use on or off")
    return value


def _targets(value: object, name: str) -> object:
    items = value if isinstance(value, list) else [value]
    return [_text(item, name) for item in items]


def parse_image_size(value: object, name: str) -> tuple[int, int]:
    """Width and height in pixels of ``1280x720``. Raises InputError: it is something else."""
    match = re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", str(value).strip().lower())
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2].lstrip("0") or "0"):
        raise InputError(f"{name}: {value!r}; expected width x height in pixels, for example 1280x720")
    return int(match[1]), int(match[2])


_WHETHER = "for whether it fits."
Trainer = Literal[
    "raw", "transformers", "trl", "trl-dpo", "trl-kto", "trl-reward", "trl-grpo", "trl-grpo-server",
    "trl-grpo-beta", "trl-grpo-beta-server", "axolotl", "axolotl-peft",
    "axolotl-grpo", "axolotl-grpo-server", "axolotl-grpo-beta", "axolotl-grpo-beta-server",
    "axolotl-dpo", "axolotl-orpo", "axolotl-kto", "axolotl-reward", "axolotl-process",
    "llamafactory", "llamafactory-dpo", "llamafactory-orpo", "llamafactory-kto",
    "llamafactory-reward",
    "swift", "swift-grpo", "swift-grpo-server", "swift-grpo-beta", "swift-grpo-beta-server",
    "swift-dpo", "swift-orpo", "swift-kto", "swift-reward",
]  # fmt: skip
Whole = int | str | None
Count = int | float | str | None
"""A number of parameters or elements: ``70b``, ``1.3e9``, 70_553_706_496."""
Size = int | str | None
"""Bytes, or text with a unit: ``24GiB``, ``80GB``."""


class PlanOptions(TypedDict, total=False):
    """The keyword arguments of the library, in the order of the help: each with what it means."""

    params: Annotated[Count, Option("Model", "COUNT", parse_count)]
    """Parameters: 70b, 350m, 1.3e9 or an exact number."""
    model: Annotated[str | os.PathLike[str] | None, Option("Model", "NAME|PATH", _text)]
    """A catalogue name, a config.json, or a folder with one."""
    gpus: Annotated[Whole, Option("Hardware", "N", parse_positive_int)]
    """GPUs on all nodes together. [default: those of this machine]"""
    nodes: Annotated[Whole, Option("Hardware", "M", parse_positive_int)]
    """Nodes they are on. [default: as few as hold them]"""
    gpu: Annotated[str | None, Option("Hardware", "NAME", _text)]
    """Kind of GPU; `zerokit gpus` lists them. [default: this machine's]"""
    vram: Annotated[Size, Option("Hardware", "SIZE", parse_bytes)]
    """Memory per GPU as nvidia-smi counts it: 24GiB, 81559MiB."""
    host_ram: Annotated[Size, Option("Hardware", "SIZE", parse_bytes)]
    """Host memory per node: 1TiB. [default: this machine's, or what such nodes have]"""
    nvme: Annotated[str | os.PathLike[str] | None, Option("Hardware", "DIR", _text)]
    """A folder on local NVMe on every node; allows NVMe offload."""
    network: Annotated[Size, Option("Hardware", "RATE", parse_rate)]
    """Network bandwidth per node and direction: 400Gb/s or 50GB/s. [default: usual for the GPU]"""
    seq_len: Annotated[Whole, Option("Job", "TOKENS", parse_positive_int)]
    """Tokens per sequence. [default: 2048, or the model's limit]"""
    global_batch: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Sequences per optimizer step over all GPUs; met exactly."""
    micro_batch: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Sequences per GPU and forward pass."""
    gradient_accumulation: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Forward passes per optimizer step."""
    eval_batch: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Sequences per GPU and pass of an evaluation between steps, which keeps its loss alone. [default: no
    evaluation]"""
    method: Annotated[Literal["full", "lora", "qlora"] | None, Option("Job")]
    """What is trained: all weights, or adapters. [default: full]"""
    lora_rank: Annotated[Whole, Option("Job", "R", parse_positive_int)]
    """Rank of the adapters. [default: 16]"""
    lora_targets: Annotated[str | Sequence[str] | None, Option("Job", "NAMES", _targets)]
    """Modules with adapters, comma-separated, or a pattern of whole paths as peft takes it; peft: those that
    it takes by itself. [default: all-linear]"""
    trainer: Annotated[Trainer | None, Option("Job")]
    """Whose defaults count where nothing else is given: dropout of adapters, loss, checkpointing of an
    estimate, 4-bit constants. [default: raw]"""
    lora_dropout: Annotated[float | str | None, Option("Job", "P", parse_share)]
    """Share of the adapters' input that is dropped; any above 0 takes memory. [default: 0.05, as most
    tutorials set it, or the trainer's]"""
    precision: Annotated[Literal["auto", "bf16", "fp16", "fp32"] | None, Option("Job")]
    """Training precision. [default: auto, bf16 where the hardware has it]"""
    load_dtype: Annotated[Literal["bf16", "fp16", "fp32"] | None, Option("Job")]
    """Dtype of the weights as the script loads them: with ⟨engine⟩ ddp, where fp32 while training in 16 bits
    means autocast, or frozen ones with fsdp2. [default: the trainer's]"""
    optimizer: Annotated[str | None, Option("Job", "TYPE", _text)]
    """DeepSpeed optimizer type, or a Trainer's optim. [default: AdamW]"""
    attention: Annotated[Literal["sdpa", "eager", "flash_attention_2"] | None, Option("Job")]
    """Attention implementation. [default: sdpa]"""
    loss: Annotated[Literal["standard", "chunked", "liger", "cut"] | None, Option("Job")]
    """Cross-entropy: the model's own, TRL's chunked, Liger's fused, cut-cross-entropy. [default:
    standard]"""
    padding: Annotated[bool, Option("Job")]
    """Batches are padded: attention gets a mask, and keeps grouped keys and values once a head."""
    quant: Annotated[Literal["none", "int8", "int4"] | None, Option("Job")]
    """Quantised weights when serving; int8 also of the base under LoRA."""
    new_tokens: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Of ⟨seq_len⟩, tokens that are generated: when serving, or to be trained on (trl-grpo). [default: the
    prompt may take all; in training 512]"""
    images: Annotated[Whole, Option("Job", "N", parse_positive_int)]
    """Images in each sequence, of a model of images and text."""
    image_size: Annotated[str | None, Option("Job", "WxH", parse_image_size)]
    """Pixels of an image as the data set has it: 1280x720."""
    vision_tower: Annotated[Literal["trained", "frozen"] | None, Option("Job")]
    """Whether the vision tower's weights are trained; the projector's are. [default: trained]"""
    engine: Annotated[Literal["deepspeed", "fsdp2", "ddp", "auto"] | None, Option("Strategy")]
    """What divides the training: DeepSpeed, or PyTorch's FSDP2 by Accelerate; ddp: nothing does, on one GPU
    or several; auto: the faster of the first two. [default: deepspeed]"""
    zero: Annotated[Whole, Option("Strategy", "0-3", _or_auto(_stage))]
    """ZeRO stage."""
    offload_optimizer: Annotated[Literal["auto", "none", "cpu", "nvme"] | None, Option("Strategy")]
    """Where the optimizer states live. [default: auto]"""
    offload_param: Annotated[Literal["auto", "none", "cpu", "nvme"] | None, Option("Strategy")]
    """Where ZeRO-3's weights live. [default: auto]"""
    tp: Annotated[Whole, Option("Strategy", "N|auto", _or_auto(parse_positive_int))]
    """Tensor parallel degree; auto: searched. Ranks of a group must get the same batch."""
    pp: Annotated[Whole, Option("Strategy", "N", _or_auto(parse_positive_int))]
    """Pipeline stages of a script that builds a PipelineModule."""
    sp: Annotated[Whole, Option("Strategy", "N|auto", _or_auto(parse_positive_int))]
    """Sequence parallel degree (Ulysses); auto: searched. Batches must carry position_ids."""
    cp: Annotated[Whole, Option("Strategy", "N|auto", _or_auto(parse_positive_int))]
    """Context parallel degree (ring attention) with ⟨engine⟩ fsdp2; auto: searched."""
    checkpointing: Annotated[Literal["auto", "none", "selective", "full"] | None, Option("Strategy")]
    """Activation checkpointing. [default: auto]"""
    reentrant: Annotated[bool | str | None, Option("Strategy", "on|off", _switch)]
    """Whether full checkpointing is reentrant (use_reentrant). [default: as the trainer's is]"""
    offload_activations: Annotated[bool, Option("Strategy")]
    """The script moves activations to the host, as TRL's activation_offloading does."""
    reduce_bucket: Annotated[Count, Option("Strategy", "ELEMENTS", parse_count)]
    """DeepSpeed's reduce_bucket_size."""
    prefetch_bucket: Annotated[Count, Option("Strategy", "ELEMENTS", parse_count)]
    """DeepSpeed's stage3_prefetch_bucket_size."""
    persistence: Annotated[Count, Option("Strategy", "ELEMENTS", parse_count)]
    """DeepSpeed's stage3_param_persistence_threshold."""
    sub_group: Annotated[Count, Option("Strategy", "ELEMENTS", parse_count)]
    """DeepSpeed's sub_group_size."""
    overlap_comm: Annotated[bool | str | None, Option("Strategy", "on|off", _switch)]
    """DeepSpeed's overlap_comm."""
    set: Annotated[str | Sequence[str] | None, Option("Strategy", "KEY[=VALUE],…", _targets)]
    """Keys of DeepSpeed's file that are counted and have no option: zero_quantized_weights,
    bf16_optimizer_states, grad_accum_dtype=fp32."""
    device: Annotated[Literal["auto", "cuda", "cpu", "local"], Option("Hardware", default="auto")]
    """cpu: CPU ranks of this machine, ⟨gpus⟩ is then their number; local: its GPUs, else CPU ranks.
    [default: auto]"""
    inference: Annotated[bool, Option("Job")]
    """No training: weights, KV cache and the working set."""
    no_calibration: Annotated[bool, Option("Hardware")]
    """Ignore what `doctor --measure` and `tune` measured on this machine."""
    all_gpus: Annotated[bool, Option("Hardware")]
    """Plan for all GPUs, even where fewer of them do the same batch faster."""
    margin: Annotated[float | str | None, Option("Hardware", "SHARE", parse_share)]
    """Share of each GPU's memory that a chosen plan leaves: 2% or 0.02. [default: 2%]"""
    pipeline_module: Annotated[bool, Option("Strategy")]
    """The script builds a DeepSpeed PipelineModule: searches pipelines too."""


OPTIONS: tuple[Option, ...] = options_of(PlanOptions)
"""Every argument that ``plan``, ``estimate``, ``size`` and ``tune`` take, in the order of the help."""

ELSEWHERE: Mapping[str, Mapping[str, str | None]] = {
    "estimate": {
        "all_gpus": None,
        "margin": None,
        "pipeline_module": None,
        "gradient_accumulation": "Forward passes per optimizer step. [default: 1]",
        "micro_batch": "Sequences per GPU and forward pass. [default: 1]",
        "zero": "ZeRO stage. [default: 0]",
        "tp": "Tensor parallel degree; ranks of a group must get the same batch. [default: 1]",
        "pp": "Pipeline stages of a script that builds a PipelineModule. [default: 1]",
        "sp": "Sequence parallel degree (Ulysses); batches must carry position_ids. [default: 1]",
        "cp": "Context parallel degree (ring attention) with ⟨engine⟩ fsdp2. [default: 1]",
        "checkpointing": "Activation checkpointing. [default: none]",
        "offload_optimizer": "Where the optimizer states live. [default: none]",
        "offload_param": "Where ZeRO-3's weights live. [default: none]",
    },
    "size": {
        "nodes": None,
        "device": None,
        "no_calibration": None,
        "all_gpus": None,
        "gpus": "No more GPUs than these, on all nodes together.",
        "gpu": "Kinds of GPU, comma-separated; `zerokit gpus` lists them. [default: eight typical ones]",
        "host_ram": "Host memory per node: 1TiB. [default: what such nodes have]",
        "method": "What is trained, comma-separated to compare. [default: each of them]",
    },
    "tune": {
        "inference": None,
        "quant": None,
        "new_tokens": None,
        "vram": None,
        "all_gpus": None,
        "gpu": "Refuses to run where this machine has another kind of GPU.",
    },
    "check": {
        "params": f"Parameters, {_WHETHER}",
        "model": "Model, for tensor parallelism and whether it fits.",
        "gpus": "GPUs on all nodes together.",
        "nodes": "Nodes; 1 unless given.",
        "gpu": "Kind of GPU, for precision and memory.",
        "vram": f"Memory per GPU, {_WHETHER}",
        "seq_len": f"Tokens per sequence, {_WHETHER}",
        "micro_batch": "Batch size per GPU, where the file leaves it open; for whether it fits.",
        "method": f"Training method, {_WHETHER}",
        "lora_rank": f"Rank of the adapters, {_WHETHER}",
        "trainer": f"Trainer, {_WHETHER}",
        "lora_dropout": f"Dropout of the adapters, {_WHETHER}",
        "checkpointing": f"What the script turns on, {_WHETHER}",
    },
}
"""Command and argument → what the help says of it there; None: it is refused there, and not in the help.
``check`` takes what it names, and no more."""

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}


class CheckOptions(PlanOptions, total=False):
    """What ``zerokit check`` is to do beside reading the files; of a plan's options it takes some."""

    kind: Annotated[
        Literal["deepspeed", "accelerate", "hostfile", "plan", "recipe"] | None, Option("Files", "KIND")
    ]
    """deepspeed, accelerate, hostfile, plan or recipe; by default each file shows it."""
    reader: Annotated[str | None, Option("Files", "raw|trainer|accelerate|all", spellings=("--for",))]
    """Who reads a DeepSpeed JSON: deepspeed.initialize, the Trainer, Accelerate, or each of them; otherwise
    inferred from what lies beside it."""
    world_size: Annotated[Whole, Option("Files", "N")]
    """Ranks of the run, for batch arithmetic (also: --gpus)."""
    deepspeed_version: Annotated[str | None, Option("Files", "V")]
    """DeepSpeed to check for; the installed one unless given."""
    accelerate_version: Annotated[str | None, Option("Files", "V")]
    """Accelerate to check for; likewise."""
    deepspeed_classes: Annotated[bool, Option("Findings")]
    """Also ask DeepSpeed's and Accelerate's own classes."""
    deep: Annotated[bool, Option("Findings")]
    """Also run the real deepspeed.initialize for every rank, on this CPU."""
    ignore: Annotated[Sequence[str], Option("Findings", "RULE", multiple=True, default=())]
    """Do not show this rule; may be repeated."""
    fix: Annotated[bool, Option("Findings")]
    """Write the fixes that cannot change what runs."""
    unsafe: Annotated[bool, Option("Findings")]
    """With --fix: also those that let an ignored setting take effect."""


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by long name without dashes in front: what ``plan.yaml`` keeps."""
    result = {}
    for option in (*(o for o in OPTIONS if o.name != "device"), BY_NAME["device"]):
        value = options.get(option.name)
        if value not in (None, False) and not (option.name == "device" and value == "auto"):
            result[option.name.replace("_", "-")] = value
    return result


def as_text(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def folded(option: Option, value: str) -> str:
    """The value in the case of the choice that it names (``LoRA``: ``lora``)."""
    lower = value.lower()
    return lower if lower in option.metavar.split("|") else value


def normalized(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a program gives them (numbers, lists, paths), as the command line gives them: text. Raises
    InputError: there is no such argument, or its value cannot be."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        option = BY_NAME.get(name)
        if option is None:
            raise InputError(f"{name}: no such argument; {suggestion(name)}")
        if value is None or (option.is_flag and value is False):
            continue
        if option.is_flag:
            result[name] = option.checked(value, f"⟨{name}⟩")
        else:
            result[name] = folded(option, as_text(value))
    return result


def suggestion(name: str, *more: str) -> str:
    """The argument that was meant (marked, :mod:`zerokit.fields`), or all there are."""
    from zerokit.planner.options import instead

    return instead(name, (*BY_NAME, *more)) or f"use {', '.join(BY_NAME)}"


def shows_options(function: F, own: type | None = None) -> F:
    """What ``help()`` and tab completion show: the options by name, and what each means, out of the table.

    They stand in the docstring where its Args have ``**options``.

    Args:
        own: declares the function's own options, beside those of a plan.
    """
    import inspect

    elsewhere = ELSEWHERE.get(function.__name__, {})
    options = (*(options_of(own) if own else ()), *OPTIONS)
    if function.__name__ == "check":
        options = tuple(o for o in options if o not in OPTIONS or o.name in elsewhere)
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.annotation
        )
        for option in options
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *named])  # type: ignore[attr-defined]
    function.__doc__ = with_meanings(function.__doc__ or "", options, elsewhere)
    return function
