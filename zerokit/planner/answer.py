"""A plan or an estimate in short sentences: what is trained, whether it fits, what the script must do.

The terminal, the page and a notebook show the same sentences. Arguments are marked (:mod:`zerokit.fields`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import CHECKPOINTS_A_PIPELINE, LOSS_OF_SCRIPT, Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.deepspeed import optimizer_params
from zerokit.memory.components import HostComponent, label
from zerokit.memory.quantised_load import loads_whole
from zerokit.memory.saving import NO_ROOM, NONE_LOAD
from zerokit.planner.documents import Estimate, PlannedStrategy
from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.planner.trace_command import TRACES_ARE_OF
from zerokit.search.close_calls import headroom_bytes, headroom_words, remark
from zerokit.search.explain import host_lack_words
from zerokit.timing.evidence import NO_GPUS
from zerokit.timing.ranges import NVME_RATES, SURE
from zerokit.units import counted, format_gib, format_seconds, format_seconds_range, shown_unit

_QUANTIZED = {"int8": "weights in 8 bits (int8)", "int4": "weights in 4 bits (NF4)"}
_MOST_PARTS = 4
UNDER_DEEPSPEED = "planned under DeepSpeed (fp32 master weights): alone the script may take less"
"""Of a plan for a script that trains without DeepSpeed where nobody launches it with a plan."""


_WHY_REJECTED = {
    "slower than the plans shown": "slower than the plans shown; whether they fit was not asked",
    "other settings of the plans shown": "the plans shown, with bucket sizes that are no faster",
    "memory not known": "could not be estimated: neither traced nor known in closed form",
    "GPU memory": "require more GPU memory than is available",
    "GPU memory: model states alone": "model states alone require more GPU memory than is available",
    "host memory": "require more host memory than is available",
    "global batch not divisible": "do not divide the global batch",
    "offload param below stage 3": "offload the weights below ZeRO-3, which DeepSpeed ignores",
    "offload optimizer at stage 0": "offload the optimizer at ZeRO-0, which DeepSpeed does not do",
    "nvme below stage 3": "offload to NVMe below ZeRO-3, which DeepSpeed does not do",
}


def why_rejected(reason: str) -> str:
    """A key of a plan's ``rejected`` as a sentence about the candidates that it counts."""
    return _WHY_REJECTED.get(reason, reason)


def fails(to_fix: str) -> str:
    """That the script failed on what a run would fail on too, whatever the plan."""
    return f"The script failed in its rehearsal; to fix: {to_fix}"


def fix_first(to_fix: str) -> str:
    """What to do about it, in place of a launch."""
    return f"fix {to_fix}; then plan again"


def run_command(cluster: Cluster, folder: str, script: Iterable[str]) -> str:
    """What is typed next, with a plan's folder: a launch, or for several nodes a job for all of them.

    Args:
        script: its words and arguments; empty: some ``train.py``.
    """
    words = shlex.join(script) or "train.py"
    if cluster.nodes == 1:
        return f"zerokit launch --plan {shlex.quote(folder)} {words}"
    plan_folder = "" if folder == DEFAULT_FOLDER else f"--plan {shlex.quote(folder)} "
    return f"zerokit emit sbatch {plan_folder}{words} > job.sh"  # a launch would start this machine's ranks


def fits(planned: PlannedStrategy) -> str:
    """``Fits: 22.3 GiB required of 24.0 GiB per GPU, 1.7 GiB headroom``; that it barely does, what the host
    lacks, too."""
    memory, cluster = planned.candidate.memory, planned.cluster
    required, available = memory.min_vram_bytes, cluster.gpu.driver_vram_bytes
    device = "CPU rank" if planned.on_cpu else "GPU"
    if planned.fits is None:
        return f"{format_gib(required, 1)} required per {device} (not compared with the assumed one)"
    room = headroom_bytes(memory, cluster.gpu)
    unmodelled = not_modelled(planned.not_modelled)
    amounts = f"{format_gib(required, 1)} required of {format_gib(available, 1)} per {device}"
    host = host_lack_words(memory, cluster)
    host = f", and {host}" if host else ""
    if not planned.fits:
        too_much = f", {format_gib(-room, 1)} too much" if room < 0 else ""
        too_much += f", without {unmodelled}" if unmodelled else ""
        return f"Does NOT fit: {amounts}{too_much}{host}"
    if host:
        host += " (⟨host_ram⟩ not given)" if cluster.host_ram_bytes is None else ""
        amounts = f" the {device}, but maybe not the host: {amounts}"
    else:
        amounts = f": {amounts}"
    headroom = headroom_words(memory, cluster.gpu)
    if unmodelled:
        amounts = f": {unmodelled}; without {'it' if len(planned.not_modelled) == 1 else 'them'}{amounts}"
    if not planned.is_sure:
        return f"May fit{amounts}, {headroom}{host}"
    return f"Fits{amounts}, {remark(planned.candidate, cluster.gpu) or headroom}{host}"


def not_modelled(keys: Sequence[str]) -> str:
    """``2 keys not modelled (zero_optimization.zenflow, expert_parallel)``; empty: all are."""
    return f"{counted(len(keys), 'key')} not modelled ({', '.join(keys)})" if keys else ""


def pace(planned: PlannedStrategy) -> str:
    """``Step: 15.0 s, 2,187 tokens/s per GPU, 5.3 d per 1e9 tokens``."""
    estimate = planned.estimate
    seconds, rate = estimate.step_seconds, estimate.tokens_per_second_per_gpu
    if seconds is None or not rate:
        return "Step time: not predicted for CPU ranks" if planned.on_cpu else "Step time: not predicted"
    per_billion = 1e9 / (rate * planned.strategy.world_size)
    step = "Step, estimated" if _untimed(planned) else "Step"
    return (
        f"{step}: {format_seconds(seconds)}{_range(estimate)}, {rate:,.0f} tokens/s per GPU, "
        f"{format_seconds(per_billion)} per 1e9 tokens"
    )


def pace_notes(planned: PlannedStrategy) -> tuple[str, ...]:
    """What qualifies the step time, in sentences: that no rehearsal timed it, or at which host's speed, that
    it was never measured on such hardware."""
    untimed = _untimed(planned)
    rehearsed = planned.script.of(planned.strategy) if planned.script is not None else None
    notes: tuple[str, ...] = ()
    if untimed:
        notes = (f"The rehearsal has no step time: {untimed}",)
    elif rehearsed is not None and rehearsed.host_factor is not None:
        notes = (
            f"The step is rehearsed at the host speed kept on this machine, {rehearsed.host_factor:.2f}",
        )
    parts = planned.estimate.measured_on_no_machine
    gpu = planned.cluster.gpu
    name = f"{gpu.name} (its speeds are assumed)" if gpu.stands_in else gpu.name
    if parts == ("several nodes",):  # of other GPUs they were
        parts = (f"several nodes with {name}",)
    parts = tuple(name if part == gpu.name else part for part in parts)
    return (*notes, never_measured(parts)) if parts else notes


def _untimed(planned: PlannedStrategy) -> str:
    """Why the step time of a plan for a script rests on no rehearsal; empty: it does, or there is none."""
    if planned.script is None or not planned.timed:
        return ""
    return planned.script.untimed(planned.strategy)


def never_measured(parts: Iterable[str]) -> str:
    """``No step time was ever measured on: b200, l40s; nor on several nodes``."""
    parts = tuple(parts)
    gpus = [part for part in parts if part not in NO_GPUS]
    rest = [part for part in NO_GPUS if part in parts]
    return f"No step time was ever measured on: {'; nor on '.join(filter(None, (', '.join(gpus), *rest)))}"


def _range(estimate: Estimate) -> str:
    """`` (12.0 to 19.0 s)``, where host or network may make so much of a difference."""
    seconds = estimate.step_seconds_range
    if seconds is None or seconds[1] < (1 + SURE) * seconds[0]:
        return ""
    return f" ({format_seconds_range(*seconds)})"


def trains(job: Job) -> str:
    """``LoRA, rank 16, on all linear layers; base weights in 4 bits (NF4)``."""
    if job.inference:
        weights = _QUANTIZED.get(job.quantization, "weights as they are")
        return f"nothing: inference, {weights}"
    if job.lora is None:
        return "all weights"
    targets = job.lora.targets
    layers = "all linear layers" if targets == ("all-linear",) else ", ".join(targets)
    base = "; base weights frozen"
    if job.packed_base_bytes is not None:
        base = "; base weights in " + ("4 bits (NF4)" if job.method == "qlora" else "8 bits (LLM.int8)")
    return f"LoRA, rank {job.lora.rank}, on {layers}{base}"


def strategy(chosen: Strategy) -> str:
    """``ZeRO-3, optimizer offload to cpu, data parallel 8, full checkpointing, bf16``: all but the batch."""
    zero = chosen.settings.zero
    words = [f"ZeRO-{zero.stage}"]
    if zero.offload_optimizer.device != "none":
        words.append(f"optimizer offload to {zero.offload_optimizer.device}")
    if zero.offload_param.device != "none":
        words.append(f"weight offload to {zero.offload_param.device}")
    if len(words) == 1:
        words.append("no offload")
    for name in ("data", "tensor", "pipeline", "sequence"):
        degree = getattr(chosen, f"{name}_parallel")
        if degree > 1:
            words.append(f"{name} parallel {degree}")
    kind = "no" if chosen.checkpointing == "none" else chosen.checkpointing
    return ", ".join([*words, f"{kind} checkpointing", chosen.settings.precision])


def batch(planned: PlannedStrategy) -> str:
    """``2 per GPU × 4 accumulation × 8 GPUs = 64 × 4,096 tokens``; of pairs ``64 pairs × 2 × 4,096``."""
    chosen, job, script = planned.strategy, planned.job, planned.script
    device = "rank" if planned.on_cpu else "GPU"
    settings, ranks = chosen.settings, chosen.data_parallel
    is_all = chosen.world_size == ranks
    devices = counted(ranks, device) if is_all else f"{ranks} data parallel"
    rows = f"{chosen.global_batch}"
    if script is not None and script.sequences_per_row > 1:
        rows = f"{script.rows(chosen.global_batch)} × {script.sequences_per_row}"
    return (
        f"{settings.micro_batch} per {device} × {settings.gradient_accumulation} accumulation × {devices} = "
        f"{rows} × {job.seq_len:,} tokens"
    )


def memory(planned: PlannedStrategy) -> str:
    """``peak 20.2 GiB in backward: activations 11.3, frozen parameters 5.3, loss 2.9, others 0.7 GiB``."""
    worst = planned.candidate.memory.worst
    parts = sorted(worst.components.items(), key=lambda item: -item[1])
    largest = [(label(name), size) for name, size in parts[:_MOST_PARTS]]
    rest = sum(size for _, size in parts[_MOST_PARTS:])
    largest += [("others", rest)] if rest else []
    unit, unit_name = shown_unit(worst.peak_allocated_bytes / 10)  # the parts are smaller
    words = ", ".join(f"{name} {size / unit:.1f}" for name, size in largest if size >= unit / 20)
    peak = f"{worst.peak_allocated_bytes / unit:,.1f} {unit_name}"
    return f"peak {peak} in {worst.peak_phase}: {words} {unit_name}"


def host_parts(planned: PlannedStrategy) -> list[tuple[str, int]]:
    """What the ranks of one node hold of its memory, by what it is, largest first; empty for CPU ranks."""
    estimate = planned.estimate
    if planned.on_cpu:
        return []
    sizes = {label(key): size for key, size in estimate.host_components.items()}
    rest = estimate.host_bytes_per_node - sum(sizes.values())
    if sizes and rest > 0:  # the closed form adds it alone
        name = HostComponent.MODEL_BEFORE_IT_MOVES.label
        sizes[name] = sizes.get(name, 0) + rest
    return sorted(sizes.items(), key=lambda item: -item[1])


def host_memory(planned: PlannedStrategy) -> str:
    """``130.6 GiB per node: model before it moves 119.7, process 10.9 GiB``; with offload also what a node
    is assumed to have, where nobody said it."""
    total = planned.estimate.host_bytes_per_node
    text = f"{format_gib(total, 1)} per node"
    limit = planned.cluster.host_limit_bytes
    if _offloads(planned) and planned.cluster.host_ram_bytes is None and limit:
        text += f" of {format_gib(limit, 0)} assumed"
    parts = host_parts(planned)
    if not parts:
        return text
    unit, unit_name = shown_unit(total / 10)
    words = [f"{name} {size / unit:.1f}" for name, size in parts[:2] if size >= unit / 20]
    others = sum(size for _, size in parts[2:])
    words += [f"others {others / unit:.1f}"] if others >= unit / 20 else []
    return f"{text}: {', '.join(words)} {unit_name}"


def nvme(planned: PlannedStrategy) -> str:
    """``119.7 GiB per node; 3 GB/s assumed (1 to 7 are usual)``; empty: nothing is kept there."""
    total, cluster = planned.estimate.nvme_bytes_per_node, planned.cluster
    if not total:
        return ""
    slow, fast = (rate / 1e9 for rate in NVME_RATES)
    return (
        f"{format_gib(total, 1)} per node; {cluster.nvme_bytes_per_second / 1e9:g} GB/s assumed "
        f"({slow:g} to {fast:g} are usual; `zerokit tune` measures the step)"
    )


def _offloads(planned: PlannedStrategy) -> bool:
    zero = planned.strategy.settings.zero
    return {zero.offload_optimizer.device, zero.offload_param.device} != {"none"}


_REASSURING = (
    ": given",
    "it needs no loss scaling",
    "the training loop keeps only the loss of a forward pass",
)


def worth_a_look(assumptions: Iterable[str]) -> tuple[str, ...]:
    """Of what was assumed, all but what confirms what was given or is so whenever it can be."""
    return tuple(note for note in assumptions if not note.endswith(_REASSURING))


def is_minor(note: str) -> bool:
    """Whether a note is so of every plan of an installation, and rarely changes one."""
    return TRACES_ARE_OF in note


def loses_work(assumptions: Iterable[str]) -> tuple[str, ...]:
    """Of what was assumed, what would cost the run's result if nobody read it."""
    return tuple(note for note in assumptions if NONE_LOAD in note or NO_ROOM in note)


def script_must(strategy: Strategy, job: Job, *, with_plan: bool = True) -> tuple[str, ...]:
    """What the figures count on and only the training script can do, each as a sentence with its Python.

    Args:
        with_plan: the script is launched with a plan, which adds to a Trainer's arguments.
    """
    todo: list[str] = []
    dtype, lora, row = _TORCH_NAMES[strategy.settings.precision], job.lora, job.defaults
    by_trainer = lora is not None and job.quantization == "none" and bool(row.arguments)
    if lora is not None and by_trainer:
        words = row.asked_for(
            method=job.method, rank=lora.rank, targets=lora.targets, dropout=lora.dropout,
            nested=row.double_quant, dtype=dtype,
        )  # fmt: skip
        todo.append(f"give {row.title}: {words}")
    elif job.method == "qlora":
        todo.append(
            "load the base model in 4 bits: BitsAndBytesConfig(load_in_4bit=True, "
            'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
            f"bnb_4bit_compute_dtype=torch.{dtype})"
            + ("; each GPU loads it whole first" if loads_whole(strategy, job) else "")
        )
    elif job.packed_base_bytes is not None:
        todo.append("load the base model in 8 bits: BitsAndBytesConfig(load_in_8bit=True)")
    if lora is not None and not by_trainer:
        named = '"all-linear"' if lora.targets == ("all-linear",) else json.dumps(list(lora.targets))
        more = "" if lora.dropout else ", lora_dropout=0"
        todo.append(f"add the adapters: peft.LoraConfig(r={lora.rank}, target_modules={named}{more})")
    if job.loss not in ("standard", row.loss):
        by_launch = " (a Trainer: launch does)" if with_plan and job.loss == "liger" else ""
        todo.append(f"{LOSS_OF_SCRIPT[job.loss]}{by_launch}")
    if job.attention != "sdpa" and not job.inference:
        todo.append(f'load the model with attn_implementation="{job.attention}"')
    if job.offload_activations:
        todo.append("move activations to the host: TRL's activation_offloading=True does")
    if strategy.checkpointing == "full" and strategy.pipeline_parallel > 1:
        todo.append(f"checkpoint: {CHECKPOINTS_A_PIPELINE}")
    elif strategy.checkpointing == "full":
        trainer = "launch does" if with_plan else "--gradient_checkpointing True"
        todo.append(f"checkpoint: model.gradient_checkpointing_enable() (a Trainer: {trainer})")
    elif strategy.recomputed(job.attention) == "selective":
        todo.append("checkpoint: zerokit.selective_checkpointing(model)")
    if strategy.tensor_parallel > 1:
        todo.append(
            "give tensor parallel peers the same batch: the Trainer and Accelerate do; a raw "
            "DeepSpeed script must shard its data over data-parallel ranks only"
        )
    if strategy.pipeline_parallel > 1:
        todo.append(
            "build its pipeline with the number of stages that `zerokit launch` tells it: "
            'PipelineModule(…, num_stages=int(os.environ["ZEROKIT_PIPELINE_STAGES"]))'
        )
    if strategy.sequence_parallel > 1:
        todo.append(
            "run through Accelerate (its parallelism_config, from accelerate.yaml), with position_ids in its "
            "batches"
        )
    return tuple(todo)


_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def starting_points(strategy: Strategy, job: Job) -> str:
    """The values that are written though nobody chose them; an optimizer that the script makes keeps its
    own."""
    kind = strategy.settings.optimizer
    params = optimizer_params(kind, adapters=job.method != "full") if kind is not None else {}
    named = {"lr": "learning rate", "betas": "betas", "momentum": "momentum", "weight_decay": "weight decay"}
    values = [
        f"{words} {'/'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, words in named.items()
        if (value := params.get(key)) is not None
    ]
    clipping = strategy.settings.gradient_clipping
    values.append(f"gradient clipping {clipping}" if clipping else "no gradient clipping")
    named_as, them = ("starting points", "them") if len(values) > 1 else ("a starting point", "it")
    return (
        f"{', '.join(values)}: {named_as} in ds_config.json, not tuned; neither memory nor step time "
        f"depends on {them}, and a Trainer or Accelerate script keeps its own"
    )
