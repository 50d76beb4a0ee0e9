"""The arguments of a plan: the one table. From it come the options of the command line, the keys of a recipe,
what ``check`` takes to say whether a file fits, the library's keyword arguments and docs/options.md.

To add one: a row in :data:`OPTIONS`, a line in :class:`PlanOptions`, and what it does in ``request.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from zerokit.domain.images import TOWERS
from zerokit.domain.job import (
    ATTENTIONS,
    CHECKPOINTINGS,
    LOSSES,
    METHODS,
    OFFLOAD_DEVICES,
    PRECISIONS,
    QUANTIZATIONS,
)
from zerokit.domain.trainers import TRAINERS
from zerokit.errors import InputError
from zerokit.units import parse_bytes, parse_count, parse_positive_int, parse_rate, parse_share
from zerokit.values import frozen_dataclass

Check = Callable[[object, str], object]
"""Raises :class:`InputError`, which names the value as it is told to, for a value that cannot be."""
Group = Literal["Model", "Hardware", "Job", "Strategy"]


@frozen_dataclass
class Option:
    """One argument of a plan.

    Attributes:
        name: as in Python and in a recipe (``seq_len``); the command line says ``--seq-len``.
        metavar: what stands for its value in the help; empty: it is a switch.
        valid: raises for a value that cannot be.
        in_check: what ``zerokit check`` says that it takes it for; None: it does not take it.
    """

    name: str
    group: Group
    metavar: str
    help: str
    valid: Check
    in_check: str | None = None

    @property
    def is_flag(self) -> bool:
        """Whether it is a switch, on where it is given."""
        return not self.metavar

    @property
    def option(self) -> str:
        """As the command line spells it."""
        return "--" + self.name.replace("_", "-")


def _one_of(*choices: str) -> Check:
    def check(value: object, name: str) -> object:
        if value not in choices:
            raise InputError(f"{name}: {value!r}; use one of {', '.join(choices)}")
        return value

    return check


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


def _flag(value: object, name: str) -> object:
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected true or false, got {value!r}")
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
    """Width and height in pixels of ``1280x720``.

    Raises:
        InputError: it is something else.
    """
    match = re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", str(value).strip().lower())
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2].lstrip("0") or "0"):
        raise InputError(f"{name}: {value!r}; expected width x height in pixels, for example 1280x720")
    return int(match[1]), int(match[2])


_WHETHER = "for whether it fits."


def _option(
    name: str, group: Group, metavar: str, text: str, valid: Check, in_check: str | None = None
) -> Option:
    return Option(name=name, group=group, metavar=metavar, help=text, valid=valid, in_check=in_check)


OPTIONS: tuple[Option, ...] = (
    _option("params", "Model", "COUNT", "Parameters: 70b, 350m, 1.3e9 or an exact number.", parse_count,
            f"Parameters, {_WHETHER}"),
    _option("model", "Model", "NAME|PATH", "A catalogue name, a config.json, or a folder with one.", _text,
            "Model, for tensor parallelism and whether it fits."),
    _option("gpus", "Hardware", "N", "GPUs on all nodes together. [default: those of this machine]",
            parse_positive_int, "GPUs on all nodes together."),
    _option("nodes", "Hardware", "M", "Nodes they are on. [default: as few as hold them]",
            parse_positive_int, "Nodes; 1 unless given."),
    _option("gpu", "Hardware", "NAME", "Kind of GPU; `zerokit gpus` lists them. [default: this machine's]",
            _text, "Kind of GPU, for precision and memory."),
    _option("vram", "Hardware", "SIZE", "Memory per GPU as nvidia-smi counts it: 24GiB, 81559MiB.",
            parse_bytes, f"Memory per GPU, {_WHETHER}"),
    _option("host_ram", "Hardware", "SIZE",
            "Host memory per node: 1TiB. [default: this machine's, or what such nodes have]", parse_bytes),
    _option("nvme", "Hardware", "DIR", "A folder on local NVMe on every node; allows NVMe offload.", _text),
    _option("network", "Hardware", "RATE",
            "Network bandwidth per node and direction: 400Gb/s or 50GB/s. [default: usual for the GPU]",
            parse_rate),
    _option("seq_len", "Job", "TOKENS", "Tokens per sequence. [default: 2048, or the model's limit]",
            parse_positive_int, f"Tokens per sequence, {_WHETHER}"),
    _option("global_batch", "Job", "N", "Sequences per optimizer step over all GPUs; met exactly.",
            parse_positive_int),
    _option("micro_batch", "Job", "N", "Sequences per GPU and forward pass.", parse_positive_int,
            "Batch size per GPU, where the file leaves it open; for whether it fits."),
    _option("gradient_accumulation", "Job", "N", "Forward passes per optimizer step.", parse_positive_int),
    _option("method", "Job", "|".join(METHODS), "What is trained: all weights, or adapters. [default: full]",
            _one_of(*METHODS), f"Training method, {_WHETHER}"),
    _option("lora_rank", "Job", "R", "Rank of the adapters. [default: 16]", parse_positive_int,
            f"Rank of the adapters, {_WHETHER}"),
    _option("lora_targets", "Job", "NAMES", "Modules with adapters, comma-separated. [default: all-linear]",
            _targets),
    _option("trainer", "Job", "|".join(TRAINERS),
            "Whose defaults count where nothing else is given: dropout of adapters, loss, checkpointing of "
            "an estimate, 4-bit constants. [default: raw]", _one_of(*TRAINERS), f"Trainer, {_WHETHER}"),
    _option("lora_dropout", "Job", "P",
            "Share of the adapters' input that is dropped; any above 0 takes memory. [default: 0.05, as "
            "most tutorials set it, or the trainer's]", parse_share, f"Dropout of the adapters, {_WHETHER}"),
    _option("precision", "Job", "auto|" + "|".join(PRECISIONS),
            "Training precision. [default: auto, bf16 where the hardware has it]",
            _one_of("auto", *PRECISIONS)),
    _option("optimizer", "Job", "TYPE",
            "DeepSpeed optimizer type, or a Trainer's optim. [default: AdamW]", _text),
    _option("attention", "Job", "|".join(ATTENTIONS), "Attention implementation. [default: sdpa]",
            _one_of(*ATTENTIONS)),
    _option("loss", "Job", "|".join(LOSSES),
            "Cross-entropy: the model's own, TRL's chunked, Liger's fused, cut-cross-entropy. [default: "
            "standard]", _one_of(*LOSSES)),
    _option("quant", "Job", "|".join(QUANTIZATIONS),
            "Quantised weights when serving; int8 also of the base under LoRA.", _one_of(*QUANTIZATIONS)),
    _option("new_tokens", "Job", "N",
            "Of ⟨seq_len⟩, tokens that are generated when serving. [default: the prompt may take all]",
            parse_positive_int),
    _option("images", "Job", "N", "Images in each sequence, of a model of images and text.",
            parse_positive_int),
    _option("image_size", "Job", "WxH", "Pixels of an image as the data set has it: 1280x720.",
            parse_image_size),
    _option("vision_tower", "Job", "|".join(TOWERS),
            "Whether the vision tower's weights are trained; the projector's are. [default: trained]",
            _one_of(*TOWERS)),
    _option("zero", "Strategy", "0-3", "ZeRO stage.", _or_auto(_stage)),
    _option("offload_optimizer", "Strategy", "auto|" + "|".join(OFFLOAD_DEVICES),
            "Where the optimizer states live. [default: auto]", _one_of("auto", *OFFLOAD_DEVICES)),
    _option("offload_param", "Strategy", "auto|" + "|".join(OFFLOAD_DEVICES),
            "Where ZeRO-3's weights live. [default: auto]", _one_of("auto", *OFFLOAD_DEVICES)),
    _option("tp", "Strategy", "N|auto",
            "Tensor parallel degree; auto: searched. Ranks of a group must get the same batch.",
            _or_auto(parse_positive_int)),
    _option("pp", "Strategy", "N", "Pipeline stages of a script that builds a PipelineModule.",
            _or_auto(parse_positive_int)),
    _option("sp", "Strategy", "N|auto",
            "Sequence parallel degree (Ulysses); auto: searched. Batches must carry position_ids.",
            _or_auto(parse_positive_int)),
    _option("checkpointing", "Strategy", "auto|" + "|".join(CHECKPOINTINGS),
            "Activation checkpointing. [default: auto]", _one_of("auto", *CHECKPOINTINGS),
            f"What the script turns on, {_WHETHER}"),
    _option("offload_activations", "Strategy", "",
            "The script moves activations to the host, as TRL's activation_offloading does.", _flag),
    _option("reduce_bucket", "Strategy", "ELEMENTS", "DeepSpeed's reduce_bucket_size.", parse_count),
    _option("prefetch_bucket", "Strategy", "ELEMENTS", "DeepSpeed's stage3_prefetch_bucket_size.",
            parse_count),
    _option("persistence", "Strategy", "ELEMENTS", "DeepSpeed's stage3_param_persistence_threshold.",
            parse_count),
    _option("sub_group", "Strategy", "ELEMENTS", "DeepSpeed's sub_group_size.", parse_count),
    _option("overlap_comm", "Strategy", "on|off", "DeepSpeed's overlap_comm.", _switch),
    _option("set", "Strategy", "KEY[=VALUE],…",
            "Keys of DeepSpeed's file that are counted and have no option: zero_quantized_weights, "
            "bf16_optimizer_states, grad_accum_dtype=fp32.", _targets),
    _option("device", "Hardware", "auto|cuda|cpu|local",
            "cpu: CPU ranks of this machine, ⟨gpus⟩ is then their number; local: its GPUs, else CPU ranks. "
            "[default: auto]",
            _one_of("auto", "cuda", "cpu", "local")),
    _option("inference", "Job", "", "No training: weights, KV cache and the working set.", _flag),
    _option("no_calibration", "Hardware", "",
            "Ignore what `doctor --measure` and `tune` measured on this machine.", _flag),
    _option("all_gpus", "Hardware", "",
            "Plan for all GPUs, even where fewer of them do the same batch faster.", _flag),
    _option("margin", "Hardware", "SHARE",
            "Share of each GPU's memory that a chosen plan leaves: 2% or 0.02. [default: 2%]", parse_share),
    _option("pipeline_module", "Strategy", "",
            "The script builds a DeepSpeed PipelineModule: searches pipelines too.", _flag),
)  # fmt: skip
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
}
"""Command and argument → what the help says of it there; None: it is refused there, and not in the help."""

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}

Count = int | float | str
"""A number of parameters or elements: ``70b``, ``1.3e9``, 70_553_706_496."""
Size = int | str
"""Bytes, or text with a unit: ``24GiB``, ``80GB``."""


class PlanOptions(TypedDict, total=False):
    """The keyword arguments of the library; what each means stands in :data:`OPTIONS`."""

    params: Count | None
    model: str | os.PathLike[str] | None
    gpus: int | str | None
    nodes: int | str | None
    gpu: str | None
    vram: Size | None
    host_ram: Size | None
    nvme: str | os.PathLike[str] | None
    network: Size | None
    seq_len: int | str | None
    global_batch: int | str | None
    micro_batch: int | str | None
    gradient_accumulation: int | str | None
    method: Literal["full", "lora", "qlora"] | None
    lora_rank: int | str | None
    lora_targets: str | Sequence[str] | None
    trainer: Literal["raw", "transformers", "trl", "axolotl", "llamafactory"] | None
    lora_dropout: float | str | None
    precision: Literal["auto", "bf16", "fp16", "fp32"] | None
    optimizer: str | None
    attention: Literal["sdpa", "eager", "flash_attention_2"] | None
    loss: Literal["standard", "chunked", "liger", "cut"] | None
    quant: Literal["none", "int8", "int4"] | None
    new_tokens: int | str | None
    images: int | str | None
    image_size: str | None
    vision_tower: Literal["trained", "frozen"] | None
    zero: int | str | None
    offload_optimizer: Literal["auto", "none", "cpu", "nvme"] | None
    offload_param: Literal["auto", "none", "cpu", "nvme"] | None
    tp: int | str | None
    pp: int | str | None
    sp: int | str | None
    checkpointing: Literal["auto", "none", "full", "selective"] | None
    offload_activations: bool
    reduce_bucket: Count | None
    prefetch_bucket: Count | None
    persistence: Count | None
    sub_group: Count | None
    overlap_comm: bool | str | None
    set: str | Sequence[str] | None
    device: Literal["auto", "cuda", "cpu", "local"]
    inference: bool
    no_calibration: bool
    all_gpus: bool
    margin: float | str | None
    pipeline_module: bool


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
    """Arguments as a program gives them (numbers, lists, paths), as the command line gives them: text.

    Raises:
        InputError: there is no such argument, or its value cannot be.
    """
    result: dict[str, Any] = {}
    for name, value in options.items():
        option = BY_NAME.get(name)
        if option is None:
            raise InputError(f"{name}: no such argument; {suggestion(name)}")
        if value is None or (option.is_flag and value is False):
            continue
        if option.is_flag:
            result[name] = option.valid(value, f"⟨{name}⟩")
        else:
            result[name] = folded(option, as_text(value))
    return result


def suggestion(name: str, *more: str) -> str:
    """The argument that was meant (marked, :mod:`zerokit.fields`), or all there are."""
    from zerokit.planner.other_names import instead

    return instead(name, (*BY_NAME, *more)) or f"use {', '.join(BY_NAME)}"
