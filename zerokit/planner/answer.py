"""A plan or an estimate in short sentences: what is trained, whether it fits, what the script must do.

The terminal, the page and a notebook show the same sentences. Arguments are marked (:mod:`zerokit.fields`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence

from zerokit.commands import DEFAULT_FOLDER, command_text
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import LOSS_OF_SCRIPT, Job
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TORCH_NAMES
from zerokit.emit.deepspeed import optimizer_params, trainer_arguments
from zerokit.emit.files import ACCELERATE_NAME, emitter_of
from zerokit.memory.quantised_load import loads_whole
from zerokit.notes import Note
from zerokit.search.explain import checkpointing_words, degree_words, offload_words
from zerokit.timing.ranges import NO_GPUS
from zerokit.units import counted

_QUANTIZED = {"int8": "weights in 8 bits (int8)", "int4": "weights in 4 bits (NF4)"}
UNDER_DEEPSPEED = Note(
    "under-deepspeed", "planned under DeepSpeed (fp32 master weights): alone the script may take less"
)
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


def run_command(
    chosen: Strategy, cluster: Cluster, folder: str, script: Iterable[str], *, of_trainer: bool = False
) -> str:
    """What is typed next, with a plan's folder: a launch, or for several nodes a job for all of them.
    ``script``: its words and arguments; empty: some ``train.py``. ``of_trainer``: they are a trainer's, whose
    file says all of a plan that needs no engine."""
    words = tuple(script) or ("train.py",)
    if of_trainer and chosen.engine == "ddp":
        ranks = ("--gpus", str(cluster.gpus)) if cluster.nodes == 1 else ("--hostfile", "hosts")
        return command_text("launch", "--no-plan", *ranks, *words)
    if not emitter_of(chosen).launched:
        return shlex.join(("accelerate", "launch", "--config_file", f"{folder}/{ACCELERATE_NAME}", *words))
    if cluster.nodes == 1:
        return command_text("launch", "--plan", folder, *words)
    plan_folder = () if folder == DEFAULT_FOLDER else ("--plan", folder)
    # a launch would start this machine's ranks
    return command_text("emit", "sbatch", *plan_folder, *words) + " > job.sh"


def not_modelled(keys: Sequence[str]) -> str:
    """``2 keys not modelled (zero_optimization.zenflow, expert_parallel)``; empty: all are."""
    return f"{counted(len(keys), 'key')} not modelled ({', '.join(keys)})" if keys else ""


def never_measured(parts: Iterable[str]) -> str:
    """``No step time was ever measured on: b200, l40s; nor on several nodes``."""
    parts = tuple(parts)
    gpus = [part for part in parts if part not in NO_GPUS]
    rest = [part for part in NO_GPUS if part in parts]
    return f"No step time was ever measured on: {'; nor on '.join(filter(None, (', '.join(gpus), *rest)))}"


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
    words = [chosen.settings.title, *(offload_words(chosen) or ["no offload"])]
    words += degree_words(chosen, ("data", "tensor", "pipeline", "sequence"))
    return ", ".join([*words, checkpointing_words(chosen), chosen.settings.precision])


def worth_a_look(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Of what was assumed, all but what confirms what was given or is so whenever it can be."""
    return tuple(note for note in notes if note.topic != "given")


def script_must(strategy: Strategy, job: Job, *, with_plan: bool = True) -> tuple[str, ...]:
    """What the figures count on and only the training script can do, each as a sentence with its Python.
    ``with_plan``: the script is launched with a plan, which adds to a Trainer's arguments."""
    todo: list[str] = []
    dtype, lora, row = TORCH_NAMES[strategy.settings.precision], job.lora, job.defaults
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
    if strategy.recomputed(job.attention) == "selective":
        todo.append("checkpoint: zerokit.selective_checkpointing(model)")
    emitter = emitter_of(strategy)
    if not (emitter.launched or job.inference):
        batch = shlex.join(trainer_arguments(strategy, job)[:4])
        todo.append(f"set the batch (a Trainer: {batch})")
        if strategy.checkpointing == "none" and row.unchecked:
            todo.append(f"leave checkpointing off ({row.title}: {row.unchecked})")
    todo += emitter.script_must(strategy, job, with_plan)
    return tuple(todo)


def starting_points(strategy: Strategy, job: Job) -> str:
    """The values that are written though nobody chose them; an optimizer that the script makes keeps its
    own. Empty where no file has any."""
    if strategy.engine != "deepspeed":
        return ""
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
