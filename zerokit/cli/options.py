"""The options that plan, estimate and size share: declared once, and read into the core's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from zerokit.domain.job import (
    ATTENTIONS,
    CHECKPOINTINGS,
    METHODS,
    OFFLOAD_DEVICES,
    PRECISIONS,
    QUANTIZATIONS,
    Job,
    Lora,
)
from zerokit.errors import InputError
from zerokit.planner.hardware import hardware
from zerokit.planner.values import MAX_GPUS, choice, count, key, whole
from zerokit.search.plan import Request
from zerokit.search.space import Pins

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    metavar: str
    help: str


_MODEL = (
    _Option(name="--params", metavar="COUNT", help="Parameters: 70b, 350m, 1.3e9 or an exact number."),
    _Option(
        name="--model", metavar="NAME|PATH", help="A catalogue name, a config.json, or a folder with one."
    ),
)
_HARDWARE = (
    _Option(name="--gpus", metavar="N", help="GPUs on all nodes together. Default: those of this machine."),
    _Option(name="--nodes", metavar="M", help="Nodes they are on. Default: as few as hold them."),
    _Option(
        name="--gpu", metavar="NAME", help="Kind of GPU (zerokit gpus lists them). Default: this machine's."
    ),
    _Option(name="--vram", metavar="SIZE", help="Memory per GPU as nvidia-smi counts it: 24GiB, 81559MiB."),
    _Option(
        name="--host-ram", metavar="SIZE", help="Host memory per node: 1TiB. Default: no limit, but reported."
    ),
    _Option(name="--nvme", metavar="DIR", help="A folder on local NVMe on every node; allows NVMe offload."),
    _Option(
        name="--network",
        metavar="RATE",
        help="Network per node and direction, per second: 50GB. Default 50GB.",
    ),
)
_JOB = (
    _Option(
        name="--seq-len", metavar="TOKENS", help="Tokens per sequence. Default 2048, or the model's limit."
    ),
    _Option(name="--global-batch", metavar="N", help="Sequences per optimizer step; met exactly."),
    _Option(name="--micro-batch", metavar="N", help="Sequences per GPU and forward pass."),
    _Option(name="--gradient-accumulation", metavar="N", help="Micro-batches per optimizer step."),
    _Option(name="--method", metavar="|".join(METHODS), help="What is trained. Default full."),
    _Option(name="--lora-rank", metavar="R", help="Rank of the adapters. Default 16."),
    _Option(
        name="--lora-targets",
        metavar="NAMES",
        help="Modules with adapters, comma-separated. Default all-linear.",
    ),
    _Option(
        name="--precision",
        metavar="auto|" + "|".join(PRECISIONS),
        help="Default auto: bf16 where there is it.",
    ),
    _Option(name="--optimizer", metavar="TYPE", help="DeepSpeed optimizer type. Default AdamW."),
    _Option(name="--attention", metavar="|".join(ATTENTIONS), help="Attention implementation. Default sdpa."),
    _Option(name="--quant", metavar="|".join(QUANTIZATIONS), help="Quantised weights when serving."),
    _Option(
        name="--new-tokens",
        metavar="N",
        help="Of --seq-len, tokens that are generated when serving. Default: the prompt may take all.",
    ),
)
_STRATEGY = (
    _Option(name="--zero", metavar="0-3", help="ZeRO stage."),
    _Option(
        name="--offload-optimizer", metavar="|".join(OFFLOAD_DEVICES), help="Where the optimizer states live."
    ),
    _Option(name="--offload-param", metavar="|".join(OFFLOAD_DEVICES), help="Where ZeRO-3's weights live."),
    _Option(
        name="--tp",
        metavar="N|auto",
        help="Tensor parallel degree; auto: searched. The script must feed peers alike, as Accelerate does.",
    ),
    _Option(name="--pp", metavar="N", help="Pipeline stages of a script that builds a PipelineModule."),
    _Option(
        name="--sp",
        metavar="N|auto",
        help="Sequence parallel degree (Ulysses); auto: searched. Batches must carry position_ids.",
    ),
    _Option(name="--checkpointing", metavar="|".join(CHECKPOINTINGS), help="Activation checkpointing."),
    _Option(name="--reduce-bucket", metavar="ELEMENTS", help="reduce_bucket_size."),
    _Option(name="--prefetch-bucket", metavar="ELEMENTS", help="stage3_prefetch_bucket_size."),
    _Option(name="--persistence", metavar="ELEMENTS", help="stage3_param_persistence_threshold."),
    _Option(name="--sub-group", metavar="ELEMENTS", help="sub_group_size."),
    _Option(name="--overlap-comm", metavar="on|off", help="overlap_comm."),
)
VALUE_OPTIONS = (*_MODEL, *_HARDWARE, *_JOB, *_STRATEGY)
FLAG_OPTIONS = (
    ("--inference", "No training: weights, KV cache and the working set."),
    ("--no-calibration", "Ignore what `doctor --measure` and `tune` measured on this machine."),
    ("--pipeline-module", "The script builds a DeepSpeed PipelineModule: searches pipelines too."),
)


def shared(command: F) -> F:
    """Adds every shared option, in the order of the help."""
    for name, text in reversed(FLAG_OPTIONS):
        command = click.option(name, is_flag=True, help=text)(command)
    command = click.option(
        "--device", metavar="auto|cuda|cpu", default="auto", show_default=True,
        help="cpu: plan for CPU ranks of this machine (--gpus is then their number).",
    )(command)  # fmt: skip
    for option in reversed(VALUE_OPTIONS):
        command = click.option(option.name, metavar=option.metavar, help=option.help)(command)
    return command


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by long name without dashes: what plan.yaml keeps."""
    names = [option.name for option in VALUE_OPTIONS] + [name for name, _ in FLAG_OPTIONS]
    found = {}
    for name in names:
        value = options.get(key(name))
        if value not in (None, False):
            found[name.lstrip("-")] = value
    if options.get("device", "auto") != "auto":
        found["device"] = options["device"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The options read: what to plan for, and what was decided on the way (shown to the user)."""

    request: Request
    vram_named: bool
    model_name: str
    found_here: bool = False  # the GPUs are this machine's


def read(options: Mapping[str, Any], *, single: bool = False) -> Read:
    """Options → request.

    Raises:
        InputError: names the option, the value and the fix.
    """
    from zerokit.cli.effects import refuse_idle
    from zerokit.machine.versions import deepspeed_note
    from zerokit.planner.models import choose_model

    refuse_idle(options, single=single)
    chosen = choose_model(options.get("params"), options.get("model"), single=single)
    job, notes = _job(options, chosen.max_seq_len)
    found = hardware(options)
    if job.attention == "flash_attention_2" and not found.on_cpu and not found.cluster.gpu.supports("bf16"):
        # both came with Ampere (the README of Dao-AILab/flash-attention: "NVIDIA CUDA Support")
        raise InputError(
            f"--attention flash_attention_2: FlashAttention-2 needs an Ampere GPU or a newer one, which "
            f"{found.cluster.gpu.name} is not; use sdpa"
        )
    calibration, measured = None, tuple[str, ...]()
    if (found.found_here or found.on_cpu) and not options.get("no_calibration"):
        from zerokit.planner.calibration import of_this_machine

        calibration, measured = of_this_machine(found.cluster, chosen.shape, job, on_cpu=found.on_cpu)
    pins = _pins(options, found.on_cpu)
    if (pins.pipeline_parallel or 1) > 1 and not pins.pipeline_module:
        notes = (*notes, "the script builds a DeepSpeed PipelineModule: --pp says so")
    request = Request(
        shape=chosen.shape,
        job=job,
        cluster=found.cluster,
        memory=chosen.memory(job),
        least_vram=chosen.memory(job).least_vram_bytes,
        exact_memory=chosen.memory(job).detailed(),
        pins=pins,
        precision=choice(options, "--precision", ("auto", *PRECISIONS)) or "auto",
        calibration=calibration,
        timed=not found.on_cpu,
        on_cpu=found.on_cpu,
        assumptions=(
            *chosen.assumptions,
            *found.notes,
            *notes,
            *measured,
            *deepspeed_note(),
        ),
    )
    return Read(
        request=request,
        vram_named=found.named,
        model_name=chosen.shape.name,
        found_here=found.found_here,
    )


def _job(options: Mapping[str, Any], max_seq_len: int | None) -> tuple[Job, tuple[str, ...]]:
    notes = []
    length = whole(options, "--seq-len", 10**8)
    if length is None:
        length = min(2048, max_seq_len or 2048)
        limit = ", the model's limit" if length == max_seq_len else ""
        notes.append(f"sequences of {length} tokens{limit}: --seq-len not given")
    elif max_seq_len is not None and length > max_seq_len:
        notes.append(f"--seq-len {length} is beyond the {max_seq_len} positions of the model's configuration")
    method = choice(options, "--method", METHODS) or "full"
    rank, targets = whole(options, "--lora-rank", 65536), options.get("lora_targets")
    if method == "full" and (rank or targets):
        raise InputError("--lora-rank, --lora-targets: only with --method lora or qlora")
    inference = bool(options.get("inference"))
    quantization = choice(options, "--quant", QUANTIZATIONS) or "none"
    if quantization != "none" and not inference:
        raise InputError(
            f"--quant {quantization}: only with --inference; to train on 4-bit weights use --method qlora"
        )
    new_tokens = whole(options, "--new-tokens", 10**8)
    if new_tokens is not None and not inference:
        raise InputError(f"--new-tokens {new_tokens}: only with --inference")
    if new_tokens is not None and new_tokens >= length:
        raise InputError(
            f"--new-tokens {new_tokens}: --seq-len {length} is prompt and answer together; use fewer"
        )
    if inference and method != "full":
        raise InputError(
            f"--inference --method {method}: adapters are trained, not served; leave --method out"
        )
    names = tuple(part.strip() for part in str(targets or "all-linear").split(",") if part.strip())
    if not names:
        raise InputError(f"--lora-targets {targets}: names no module; use for example q_proj,v_proj")
    _known_optimizer(options.get("optimizer"))
    return Job(
        seq_len=length,
        global_batch=whole(options, "--global-batch"),
        method=method,
        lora=None if method == "full" else Lora(rank=rank or 16, targets=names),
        optimizer=options.get("optimizer") or "AdamW",
        attention=choice(options, "--attention", ATTENTIONS) or "sdpa",
        inference=inference,
        quantization=quantization,
        new_tokens=new_tokens,
    ), tuple(notes)


def _known_optimizer(name: str | None) -> None:
    """The rule for files asks the same of a DeepSpeed JSON."""
    from zerokit.domain.deepspeed_settings import DeepSpeedSettings
    from zerokit.rules import Setup, rule

    details = name and rule("unknown-optimizer").broken(Setup(settings=DeepSpeedSettings(optimizer=name)))
    if isinstance(details, Mapping):
        right = str(details["instead"])
        mend = right if right.startswith("write") else "use Adam, AdamW, Adagrad, Lamb, Lion or Muon"
        raise InputError(
            f"--optimizer {name}: it is neither a DeepSpeed optimizer nor in torch.optim; {mend}"
        )


def _pins(options: Mapping[str, Any], on_cpu: bool) -> Pins:
    zero = options.get("zero")
    stage = None
    if zero not in (None, "auto"):
        if str(zero) not in ("0", "1", "2", "3"):
            raise InputError(f"--zero {zero}: use 0, 1, 2 or 3")
        stage = int(str(zero))
    overlap = choice(options, "--overlap-comm", ("on", "off"))
    optimizer = choice(options, "--offload-optimizer", OFFLOAD_DEVICES)
    parameters = choice(options, "--offload-param", OFFLOAD_DEVICES)
    if on_cpu and {optimizer, parameters} - {None, "none"}:
        raise InputError(
            "--offload-optimizer, --offload-param: CPU ranks hold everything in host memory already"
        )
    if "nvme" in (optimizer, parameters) and not options.get("nvme"):
        raise InputError("offload to nvme: name a folder on a local NVMe disk with --nvme DIR")
    return Pins(
        zero_stage=stage,
        offload_optimizer="none" if on_cpu else optimizer,
        offload_param="none" if on_cpu else parameters,
        tensor_parallel=whole(options, "--tp", MAX_GPUS),
        pipeline_parallel=whole(options, "--pp", MAX_GPUS),
        sequence_parallel=whole(options, "--sp", MAX_GPUS),
        micro_batch=whole(options, "--micro-batch"),
        gradient_accumulation=whole(options, "--gradient-accumulation"),
        checkpointing=choice(options, "--checkpointing", CHECKPOINTINGS),
        reduce_bucket_size=count(options, "--reduce-bucket"),
        prefetch_bucket_size=count(options, "--prefetch-bucket"),
        persistence_threshold=count(options, "--persistence"),
        sub_group_size=count(options, "--sub-group"),
        overlap_comm=None if overlap is None else overlap == "on",
        pipeline_module=bool(options.get("pipeline_module")),
        # a server is started for the degrees it is given; a training script must do its part
        search_tensor=options.get("tp") == "auto" or bool(options.get("inference")),
        search_sequence=options.get("sp") == "auto",
    )
