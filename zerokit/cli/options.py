"""The options that plan, estimate and size share: declared once, and read into the core's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from zerokit.core.hardware import Cluster, Gpu
from zerokit.core.job import (
    ATTENTIONS,
    CHECKPOINTINGS,
    METHODS,
    OFFLOAD_DEVICES,
    PRECISIONS,
    QUANTIZATIONS,
    Job,
    Lora,
)
from zerokit.core.layouts import Pins
from zerokit.core.planning import Request
from zerokit.errors import InputError
from zerokit.units import format_count, format_gib, parse_bytes, parse_count, parse_positive_int

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_GPU = "h100-sxm-80gb"
_MAX_GPUS = 1 << 20


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
)
_STRATEGY = (
    _Option(name="--zero", metavar="0-3", help="ZeRO stage."),
    _Option(
        name="--offload-optimizer", metavar="|".join(OFFLOAD_DEVICES), help="Where the optimizer states live."
    ),
    _Option(name="--offload-param", metavar="|".join(OFFLOAD_DEVICES), help="Where ZeRO-3's weights live."),
    _Option(name="--tp", metavar="N", help="Tensor parallel degree."),
    _Option(name="--pp", metavar="N", help="Pipeline stages; needs --pipeline-module."),
    _Option(name="--sp", metavar="N", help="Sequence parallel degree (Ulysses)."),
    _Option(name="--checkpointing", metavar="|".join(CHECKPOINTINGS), help="Activation checkpointing."),
    _Option(name="--reduce-bucket", metavar="ELEMENTS", help="reduce_bucket_size."),
    _Option(name="--prefetch-bucket", metavar="ELEMENTS", help="stage3_prefetch_bucket_size."),
    _Option(name="--sub-group", metavar="ELEMENTS", help="sub_group_size."),
    _Option(name="--overlap-comm", metavar="on|off", help="overlap_comm."),
)
VALUE_OPTIONS = (*_MODEL, *_HARDWARE, *_JOB, *_STRATEGY)
FLAG_OPTIONS = (
    ("--inference", "No training: weights, KV cache and the working set."),
    ("--pipeline-module", "The script builds a DeepSpeed PipelineModule: allows pipeline plans."),
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


def key(option: str) -> str:
    """``--seq-len`` → ``seq_len``."""
    return option.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The options read: what to plan for, and what was decided on the way (shown to the user)."""

    request: Request
    vram_named: bool
    model_name: str


def read(options: Mapping[str, Any], *, single: bool = False) -> Read:
    """Options → request.

    Raises:
        InputError: names the option, the value and the fix.
    """
    from zerokit.cli.modelchoice import choose_model

    chosen = choose_model(options.get("params"), options.get("model"), single=single)
    job, notes = _job(options, chosen.max_seq_len)
    hardware = _hardware(options)
    request = Request(
        shape=chosen.shape,
        job=job,
        cluster=hardware.cluster,
        memory=chosen.memory(job),
        least_vram=chosen.memory(job).least_vram_bytes,
        exact_memory=chosen.memory(job).detailed(),
        pins=_pins(options, hardware.on_cpu),
        precision=_choice(options, "--precision", ("auto", *PRECISIONS)) or "auto",
        calibration=_calibration(),
        timed=not hardware.on_cpu,
        on_cpu=hardware.on_cpu,
        assumptions=(*chosen.assumptions, *hardware.notes, *notes),
    )
    return Read(request=request, vram_named=hardware.named, model_name=chosen.shape.name)


def _calibration() -> Any:
    """What ``zerokit doctor --measure`` and ``zerokit tune`` stored for this machine; ``None``: nothing."""
    return None


def _choice(options: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str | None:
    value = options.get(key(name))
    if value is None or value == "auto":
        return None
    if value not in allowed:
        raise InputError(f"{name} {value}: use one of {', '.join(allowed)}")
    return str(value)


def _whole(options: Mapping[str, Any], name: str, maximum: int = 10**9) -> int | None:
    value = options.get(key(name))
    return None if value in (None, "auto") else parse_positive_int(value, name, maximum)


def _job(options: Mapping[str, Any], max_seq_len: int | None) -> tuple[Job, tuple[str, ...]]:
    notes = []
    length = _whole(options, "--seq-len", 10**8)
    if length is None:
        length = min(2048, max_seq_len or 2048)
        limit = ", the model's limit" if length == max_seq_len else ""
        notes.append(f"sequences of {length} tokens{limit}: --seq-len not given")
    elif max_seq_len is not None and length > max_seq_len:
        notes.append(f"--seq-len {length} is beyond the {max_seq_len} positions of the model's configuration")
    method = _choice(options, "--method", METHODS) or "full"
    rank, targets = _whole(options, "--lora-rank", 65536), options.get("lora_targets")
    if method == "full" and (rank or targets):
        raise InputError("--lora-rank, --lora-targets: only with --method lora or qlora")
    inference = bool(options.get("inference"))
    quantization = _choice(options, "--quant", QUANTIZATIONS) or "none"
    if quantization != "none" and not inference:
        raise InputError(
            f"--quant {quantization}: only with --inference; to train on 4-bit weights use --method qlora"
        )
    if inference and method != "full":
        raise InputError(
            f"--inference --method {method}: adapters are trained, not served; leave --method out"
        )
    names = tuple(part.strip() for part in str(targets or "all-linear").split(",") if part.strip())
    return Job(
        seq_len=length,
        global_batch=_whole(options, "--global-batch"),
        method=method,
        lora=None if method == "full" else Lora(rank=rank or 16, targets=names),
        optimizer=options.get("optimizer") or "AdamW",
        attention=_choice(options, "--attention", ATTENTIONS) or "sdpa",
        inference=inference,
        quantization=quantization,
    ), tuple(notes)


def _pins(options: Mapping[str, Any], on_cpu: bool) -> Pins:
    zero = options.get("zero")
    stage = None
    if zero not in (None, "auto"):
        if str(zero) not in ("0", "1", "2", "3"):
            raise InputError(f"--zero {zero}: use 0, 1, 2 or 3")
        stage = int(str(zero))
    overlap = _choice(options, "--overlap-comm", ("on", "off"))
    optimizer = _choice(options, "--offload-optimizer", OFFLOAD_DEVICES)
    parameters = _choice(options, "--offload-param", OFFLOAD_DEVICES)
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
        tensor_parallel=_whole(options, "--tp", _MAX_GPUS) or (1 if on_cpu else None),
        pipeline_parallel=_whole(options, "--pp", _MAX_GPUS),
        sequence_parallel=_whole(options, "--sp", _MAX_GPUS) or (1 if on_cpu else None),
        micro_batch=_whole(options, "--micro-batch"),
        gradient_accumulation=_whole(options, "--gradient-accumulation"),
        checkpointing=_choice(options, "--checkpointing", CHECKPOINTINGS),
        reduce_bucket_size=_count(options, "--reduce-bucket"),
        prefetch_bucket_size=_count(options, "--prefetch-bucket"),
        sub_group_size=_count(options, "--sub-group"),
        overlap_comm=None if overlap is None else overlap == "on",
        pipeline_module=bool(options.get("pipeline_module")),
    )


def _count(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(key(name))
    return None if value in (None, "auto") else parse_count(value, name)


# -------------------------------------------------------------------- hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hardware:
    cluster: Cluster
    notes: tuple[str, ...]
    named: bool  # whether the memory per GPU is known rather than assumed
    on_cpu: bool = False


def _hardware(options: Mapping[str, Any]) -> _Hardware:
    device = _choice(options, "--device", ("cuda", "cpu"))
    gpus, nodes = _whole(options, "--gpus", _MAX_GPUS), _whole(options, "--nodes", _MAX_GPUS)
    host_ram = parse_bytes(options["host_ram"], "--host-ram") if options.get("host_ram") else None
    if device == "cpu":
        return _cpu_ranks(gpus, nodes, host_ram, ("planned for CPU ranks: --device cpu",), options)
    gpu, notes, found, named = _gpu(options)
    if gpu is None:
        if gpus is None and device is None:
            notes = (*notes, "planned for CPU ranks of this machine; for GPUs give --gpus N and --gpu NAME")
            return _cpu_ranks(None, nodes, host_ram, notes, options)
        gpu = _load_gpu(DEFAULT_GPU)
        notes = (
            *notes,
            f"assumed {gpu.title} GPUs: none was named with --gpu or --vram, none was found here",
        )
    if gpus is None:
        gpus = found or 1
        notes = (
            *notes,
            f"{gpus} GPU{'s' if gpus > 1 else ''}: "
            + ("all that are visible" if found else "--gpus not given"),
        )
    if nodes is None:
        nodes = _fewest_nodes(gpus, gpu.max_gpus_per_node)
        if nodes > 1:
            notes = (*notes, f"{nodes} nodes of {gpus // nodes} GPUs: --nodes not given")
    if found and host_ram is None and nodes == 1 and gpus <= found:
        host_ram, note = _this_host()
        notes = (*notes, note) if note else notes
    network = parse_bytes(options["network"], "--network") if options.get("network") else None
    if nodes > 1 and network is None:
        notes = (*notes, "network assumed: 50 GB/s per node (400 Gb/s); --network not given")
    cluster = Cluster(
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        host_ram_bytes=host_ram,
        network_bytes_per_second=float(network or 50e9),
        nvme_path=options.get("nvme"),
    )
    return _Hardware(cluster=cluster, notes=notes, named=named)


def _load_gpu(name: str) -> Gpu:
    from zerokit.catalog import gpus

    return gpus.load(name)


def _gpu(options: Mapping[str, Any]) -> tuple[Gpu | None, tuple[str, ...], int, bool]:
    """The GPU, what was taken and why, how many are in this machine (0: not looked), memory known."""
    name, vram = options.get("gpu"), options.get("vram")
    if name:
        from zerokit.catalog import gpus

        gpu = gpus.lookup(name)
        if vram:
            size = parse_bytes(vram, "--vram")
            return _resized(gpu, size), (f"{gpu.name} with {format_gib(size)}: --vram",), 0, True
        return gpu, (), 0, True
    if vram:
        from zerokit.catalog import gpus

        size = parse_bytes(vram, "--vram")
        gpu, reason = gpus.for_vram(size)
        return _resized(gpu, size), (reason,), 0, True
    from zerokit.catalog.detect import detect

    machine = detect()
    found, reason = machine.catalog_gpu()
    if found is None and machine.gpus:
        raise InputError(f"this machine's GPUs cannot be planned for: {reason}")
    if found is None:
        return None, (reason,), 0, False
    return found, (f"this machine: {reason}",), len(machine.gpus), True


def _resized(gpu: Gpu, driver_vram_bytes: int) -> Gpu:
    """The GPU with another total memory; what the driver keeps of it stays the same."""
    reserved = gpu.driver_vram_bytes - gpu.vram_bytes
    usable = driver_vram_bytes - reserved
    if usable < driver_vram_bytes // 2:
        usable = driver_vram_bytes
    return replace(gpu, vram_bytes=usable, driver_vram_bytes=driver_vram_bytes)


def _fewest_nodes(gpus: int, most: int) -> int:
    """As few nodes, all alike, as hold the GPUs."""
    return gpus // max(per_node for per_node in range(1, most + 1) if gpus % per_node == 0)


def _this_host() -> tuple[int | None, str]:
    from zerokit.catalog.host import detect_host

    host = detect_host()
    if host.ram_bytes is None:
        return None, ""
    return host.ram_bytes, f"host RAM {format_gib(host.ram_bytes, 0)}: {host.ram_reason}"


def _cpu_ranks(
    ranks: int | None,
    nodes: int | None,
    host_ram: int | None,
    notes: tuple[str, ...],
    options: Mapping[str, Any],
) -> _Hardware:
    """CPU ranks as GPUs whose memory is a share of the host's."""
    if nodes not in (None, 1):
        raise InputError("--nodes: CPU ranks are planned for one node")
    if options.get("gpu") or options.get("vram"):
        raise InputError("--gpu, --vram: not with --device cpu; --host-ram SIZE sets the memory")
    from zerokit.catalog.host import bf16_in_hardware, detect_host

    host = detect_host()
    if ranks is None:
        ranks = 2
        notes = (*notes, "2 CPU ranks: --gpus not given")
    if host_ram is None:
        host_ram = host.ram_bytes
        notes = (*notes, f"host RAM {format_gib(host_ram or 0, 0)}: {host.ram_reason}; shared by all ranks")
    if host_ram is None:
        raise InputError("--host-ram SIZE is needed: this machine does not tell its memory")
    share = host_ram // ranks
    gpu = Gpu(
        name="cpu",
        title="CPU rank",
        vram_bytes=share,
        driver_vram_bytes=share,
        peak_flops=dict.fromkeys(("bf16", "fp32") if bf16_in_hardware() else ("fp32",), 1e11),
        hbm_bytes_per_second=1e10,
        link="pcie",
        link_bytes_per_second=5e9,
        pcie_bytes_per_second=1e10,
        matmul_efficiency=0.5,
        context_bytes=1 << 30,  # the Python process with torch and DeepSpeed
        max_gpus_per_node=1024,
    )
    cluster = Cluster(gpu=gpu, gpus=ranks, nodes=1, host_ram_bytes=host_ram)
    return _Hardware(
        cluster=cluster, notes=(*notes, "no speed is predicted for CPU ranks"), named=True, on_cpu=True
    )


def describe_count(parameters: int) -> str:
    """``70.6B (70,553,706,496)``."""
    return f"{format_count(parameters)} ({parameters:,})"
