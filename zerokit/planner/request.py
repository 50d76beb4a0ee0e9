"""From options to a request: model, job, hardware, what is fixed of the strategy, what was measured here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, from_config
from zerokit.domain.families import PEFT_TARGETS
from zerokit.domain.hardware import DEFAULT_MARGIN
from zerokit.domain.job import (
    METHODS,
    TORCH_ADAMW,
    Job,
    Lora,
)
from zerokit.domain.model_shape import ALL_LINEAR, ModelShape, is_pattern
from zerokit.domain.settings import SETTINGS
from zerokit.domain.strategy import Strategy
from zerokit.domain.trainers import TRAINERS, Trainer
from zerokit.errors import InputError
from zerokit.machine import versions
from zerokit.notes import Note, notes_of
from zerokit.planner.effects import refuse_idle
from zerokit.planner.hardware import Hardware, choice, count, doubted_vram, hardware, integer, share
from zerokit.planner.image_models import requested_images, with_room
from zerokit.planner.memory_source import Say, silent
from zerokit.planner.models import Chosen, choose_model
from zerokit.planner.options import given_options
from zerokit.search.deepspeed_space import refuse_mixed_dtypes
from zerokit.search.engine import ANY_ENGINE, ENGINES
from zerokit.search.space import Pins, Request, unmodelled_with_loss
from zerokit.units import parse_share
from zerokit.values import frozen_dataclass, replace

_REHEARSE = "`zerokit rehearse` runs the script with it"
_NOTES = {
    "chunked": "⟨loss⟩ chunked: that of TRL's trainers (TRL 1.16), every label a target",
    "logprobs": "log-probabilities in fp32 of all tokens, as LLaMA-Factory 0.9.5 makes them of pairs",
    "kto": "log-probabilities in fp32 of all tokens, as LLaMA-Factory 0.9.5 makes them of answers and of "
    "others to compare with",
    "selected": "log-probabilities of all tokens, as TRL makes them of what the model returns",
    "selected-nll": "log-probabilities of all tokens and cross-entropy of chosen answers, as TRL makes them",
    "copied-slices": "log-probabilities of what is generated, as axolotl 0.19 makes them",
    **dict.fromkeys(("copied", "copied-kto"), "log-probabilities of all tokens, as axolotl 0.19 makes them"),
    "copied-nll": "log-probabilities of all tokens and cross-entropy of chosen answers, as axolotl 0.19 has "
    "them",
    "value": "a head of one output beside that of the words, as in LLaMA-Factory 0.9.5's reward models",
    "score": "a head of one output stands for that of the words, as in a reward model",
    "liger": "⟨loss⟩ liger: Liger Kernel's fused linear cross-entropy alone (0.8.5); use_liger_kernel "
    "replaces norms, rotary embedding and MLPs too, which keep less than is counted here",
    "cut": "⟨loss⟩ cut: linear_cross_entropy of cut-cross-entropy (25.1), every label a target",
}
_COMPLETION = 512
"""TRL's own (trl/trainer/grpo_config.py:494, 1.16)."""
_TIMED = "the step time is that of the model's own loss"


def loss_of(options: Mapping[str, Any]) -> str:
    """The loss that was asked for. Raises InputError: it is none, or one that is not modelled."""
    if options.get("loss") in ("tiled", "alst"):
        raise InputError(
            "⟨loss⟩ tiled: not modelled: DeepSpeed's TiledFusedLogitsLoss runs the head's "
            f"backward, and reduces its gradient, in forward; use chunked, liger or cut, or {_REHEARSE}"
        )
    return choice(options, "loss") or "standard"


def why_dtype_is_idle(engine: str, method: str) -> str | None:
    """Why the dtype in which weights are loaded changes nothing, and what to do; None: it does."""
    if engine == "deepspeed":
        return "DeepSpeed makes of weights what it trains; only with ⟨engine⟩ fsdp2 or ddp"
    if engine != "ddp" and method != "lora":
        return "FSDP2 keeps the dtype of weights that ⟨method⟩ lora freezes alone; leave it out"
    return None


def refuse_idle_dtype(pins: Pins, job: Job, engine: str) -> None:
    """Refuse a dtype of loading that changes nothing. Raises InputError: says why."""
    if pins.load_dtype is not None and (why := why_dtype_is_idle(engine, job.method)) is not None:
        raise InputError(f"⟨load_dtype⟩ {pins.load_dtype}: {why}")


def _loss_of(job: Job) -> str:
    """Name the loss, and who chose it where that may not have been the user."""
    whose = f", that of {job.defaults.title}" if job.loss == job.defaults.loss else ""
    return f"⟨loss⟩ {job.loss}{whose}"


def refuse_strategy(job: Job, strategy: Strategy) -> None:
    """Refuse what only the strategy shows. Raises InputError: names the loss, and what it is not modelled
    with."""
    settings = strategy.settings
    if job.loss == "cut" and settings.precision == "fp32":
        raise InputError("⟨loss⟩ cut: cut-cross-entropy takes bf16 and fp16 alone; use chunked or liger")
    if job.loss == "standard":
        return
    if strategy.engine == "deepspeed":
        refuse_mixed_dtypes(job, settings.zero_stage)
    if strategy.tensor_parallel > 1:
        raise InputError(f"{_loss_of(job)}: not modelled with tensor parallelism; {_REHEARSE}")
    if settings.autocasts and strategy.engine == "deepspeed":
        raise InputError(f"{_loss_of(job)}: not modelled with torch_autocast; {_REHEARSE}")


@frozen_dataclass
class ResolvedRequest:
    """What the options ask for: the request, and what was decided on the way (shown to the user).

    Attributes:
        options: those that were given, as ``plan.yaml`` keeps them.
        vram_named: whether the memory per GPU is known rather than assumed.
        found_here: whether the GPUs are this machine's.
    """

    request: Request
    vram_named: bool
    model_name: str
    options: Mapping[str, Any]
    found_here: bool = False


def _refuse_unmodelled(
    options: Mapping[str, Any], job: Job, shape: ModelShape, machine: Hardware, pins: Pins
) -> None:
    """Refuse an attention, a loss and activations on the host where their bytes are not known. Raises
    InputError: names the option, and what it is not modelled with."""
    gpu = machine.cluster.gpu
    # it came with Ampere, as bf16 did: README of Dao-AILab/flash-attention, "NVIDIA CUDA Support"
    if job.attention == "flash_attention_2" and not machine.cluster.on_cpu and not gpu.supports("bf16"):
        raise InputError(
            f"⟨attention⟩ flash_attention_2: FlashAttention-2 needs an Ampere GPU or a newer one, which "
            f"{gpu.name} is not; use sdpa"
        )
    if (with_what := unmodelled_with_loss(job, shape, machine.cluster, pins)) is not None:
        raise InputError(f"{_loss_of(job)}: not modelled with {with_what}; {_REHEARSE}")
    least = job.defaults.least_rows
    if (pins.micro_batch or least) < least:
        raise InputError(f"⟨micro_batch⟩ {pins.micro_batch}: {job.defaults.title} stops below {least}")
    if not job.offload_activations:
        return
    names = ("tp", "pp", "sp", "cp", "pipeline_module", "images")
    beside = [f"⟨{name}⟩" for name in names if options.get(name) not in (None, False, 1, "1")]
    beside += ["CPU ranks"] if machine.cluster.on_cpu else []
    if options.get("model") is None:
        beside.append("⟨params⟩: its layers are traced, which takes ⟨model⟩")
    if beside:
        raise InputError(f"⟨offload_activations⟩: not modelled with {beside[0]}; {_REHEARSE}")


def resolve(
    options: Mapping[str, Any], *, single: bool = False, file: bool = False, say: Say = silent
) -> ResolvedRequest:
    """Options → request.

    Args:
        options: by name (:data:`zerokit.planner.options.OPTIONS`), as the command line gives them.
        single: one strategy is estimated: what it needs may be traced; stage 0 where none is given.
        file: a DeepSpeed file says the strategy.
        say: hears of what takes long.

    Raises:
        InputError: names the argument, the value and the fix.
    """
    given = given_options(options)
    if single and options.get("trainer") and options.get("checkpointing") is None:
        row = TRAINERS[choice(options, "trainer") or "raw"]
        options = {**options, "checkpointing": row.checkpointing}
    refuse_idle(options, single=single, file=file)
    chosen = choose_model(
        options.get("params"), options.get("model"), single=single, say=say, images=requested_images(options)
    )
    job, notes = _job(options, chosen)
    if job.lora is not None and not job.lora.dropout:  # a trainer's default is none where peft refuses it
        given["lora-dropout"] = "0"
    if job.lora is not None and "lora-targets" in given:  # by name, whatever says them
        given["lora-targets"] = ",".join(job.lora.targets)
    machine = hardware(options)
    if (doubted := doubted_vram(options)) is not None:
        say(doubted)
    pins = _pins(options, machine.cluster.on_cpu)
    if single and pins.engine == ANY_ENGINE:
        raise InputError(
            f"⟨engine⟩ {ANY_ENGINE}: an estimate is of one strategy; name {' or '.join(ENGINES)}"
        )
    if not file:
        refuse_idle_dtype(pins, job, pins.engine)
    if machine.cluster.on_cpu and pins.engine != "deepspeed":
        raise InputError(f"⟨engine⟩ {pins.engine}: CPU ranks are planned with DeepSpeed alone")
    _refuse_unmodelled(options, job, chosen.shape, machine, pins)
    calibration, measured = None, tuple[str, ...]()
    if (machine.found_here or machine.cluster.on_cpu) and not options.get("no_calibration"):
        from zerokit.planner.calibration import of_this_machine

        calibration, measured = of_this_machine(machine.cluster, chosen.shape, job)
    if (pins.pipeline_parallel or 1) > 1 and not pins.pipeline_module:
        text = "the script builds a DeepSpeed PipelineModule: ⟨pp⟩ says so"
        notes = (*notes, Note("pipeline-module", text))
    asked = options.get("margin")
    margin = DEFAULT_MARGIN if asked is None else parse_share(asked, "⟨margin⟩")
    if single or machine.cluster.on_cpu:
        margin = 0.0
    request = Request(
        shape=chosen.shape,
        job=job,
        cluster=replace(machine.cluster, margin=margin),
        memory=chosen.memory(job),
        pins=pins,
        precision=choice(options, "precision") or "auto",
        calibration=calibration,
        all_gpus=bool(options.get("all_gpus")),
        assumptions=(
            *chosen.assumptions,
            *machine.notes,
            *notes,
            *notes_of("measured-here", measured),
            *_of_version(job, pins),
        ),
    )
    return ResolvedRequest(
        request=request,
        options=given,
        vram_named=machine.named,
        model_name=chosen.shape.name,
        found_here=machine.found_here,
    )


def _of_version(job: Job, pins: Pins) -> tuple[Note, ...]:
    if pins.engine not in ("deepspeed", ANY_ENGINE):
        return ()
    return versions.deepspeed_note(job.defaults.title if job.defaults.older_deepspeed else "")


def _seq_len(options: Mapping[str, Any], chosen: Chosen, notes: list[Note]) -> int:
    """The length of a sequence; what to say of it is added to ``notes``. Raises InputError: the model fails
    at such a length."""
    max_seq_len = chosen.max_seq_len
    length = integer(options, "seq_len")
    if str(options.get("seq_len")).strip()[-1:] in ("k", "K"):
        text = f"sequences of {length:,} tokens: ⟨seq_len⟩ {options['seq_len']}, in units of 1,024"
        notes.append(Note("seq-len-units", text))
    if length is None:
        length = min(2048, max_seq_len or 2048)
        limit = ", the model's limit" if length == max_seq_len else ""
        text = f"sequences of {length:,} tokens{limit}: ⟨seq_len⟩ not given"
        notes.append(Note("seq-len-assumed", text, "default", short=f"⟨seq_len⟩ {length}"))
    elif chosen.longest_sequence is not None and length > chosen.longest_sequence:
        raise InputError(
            f"⟨seq_len⟩ {length}: {chosen.shape.name} has positions for {chosen.longest_sequence} tokens and "
            f"fails beyond them; use ⟨seq_len⟩ {chosen.longest_sequence} or less"
        )
    elif max_seq_len is not None and length > max_seq_len:
        text = f"⟨seq_len⟩ {length} is beyond the {max_seq_len} positions of the model's configuration"
        notes.append(Note("positions-exceeded", text))
    return length


def _new_tokens(
    options: Mapping[str, Any], length: int, row: Trainer, inference: bool, notes: list[Note]
) -> int | None:
    """Tokens of a sequence that are generated. Raises InputError: none are, or all would be."""
    count = integer(options, "new_tokens")
    if count is not None and not (inference or row.completes):
        raise InputError(f"⟨new_tokens⟩ {count}: only with ⟨inference⟩, or a ⟨trainer⟩ that generates")
    if row.completes and not inference:
        count = count or min(_COMPLETION, length // 2)
        text = f"prompts of {length - count} tokens, and {count} generated: ⟨new_tokens⟩ of ⟨seq_len⟩"
        notes.append(Note("new-tokens", text, "default", short=f"⟨new_tokens⟩ {count}"))
    if count is not None and count >= length:
        raise InputError(f"⟨new_tokens⟩ {count}: ⟨seq_len⟩ {length} is prompt and answer together; use fewer")
    return count


def _job(options: Mapping[str, Any], chosen: Chosen) -> tuple[Job, tuple[Note, ...]]:
    notes = list[Note]()
    trainer = choice(options, "trainer") or "raw"
    row = TRAINERS[trainer]
    length = _seq_len(options, chosen, notes)
    # what is trained
    named = [part.strip().lower() for part in str(options.get("method") or "").split(",")]
    if len(named) > 1 and set(named) <= set(METHODS):
        each = " and ".join(f"⟨method⟩ {name}" for name in named)
        raise InputError(
            f"⟨method⟩ {','.join(named)}: a plan and an estimate are of one method; ask once for each "
            f"({each}), or compare them: `zerokit size --method {','.join(named)}`"
        )
    method, inference = (choice(options, "method") or "full"), bool(options.get("inference"))
    quantization = choice(options, "quant") or "none"
    notes += notes_of("quantised-base", _refuse_quantization(options, quantization, method))
    new_tokens = _new_tokens(options, length, row, inference, notes)
    if inference and method != "full":
        raise InputError(
            f"⟨inference⟩ ⟨method⟩ {method}: adapters apply to training only; leave ⟨method⟩ out"
        )
    optimizer, optimizer_notes = resolve_optimizer(options.get("optimizer"))
    notes += notes_of("optimizer", optimizer_notes)
    attention = choice(options, "attention") or "sdpa"
    if attention == "flash_attention_2":
        text = (
            "⟨attention⟩ flash_attention_2: memory and time are those of sdpa without padding; what the "
            "flash_attn package's own kernels and copies take is not modelled"
        )
        notes.append(Note("flash-attention", text))
    loss = loss_of(options)
    if options.get("loss") is None and chosen.shape.head == "causal" and not inference:
        loss = row.loss
    lora = _adapters(options, method, chosen, row, notes)
    notes += row.notes(method, chosen.shape.experts)
    if loss != "standard":
        notes.append(Note("loss", f"{_NOTES[loss]}; {_TIMED}"))
    if options.get("offload_activations"):
        text = (
            "activations on the host as OffloadActivations of TRL 1.16 moves them, each tensor pinned (a "
            "power of two of bytes); the step time counts no copies"
        )
        notes.append(Note("activations-on-host", text))
    return Job(
        seq_len=length,
        global_batch=integer(options, "global_batch"),
        method=method,
        lora=lora,
        optimizer=optimizer,
        torch_adam=options.get("optimizer") == TORCH_ADAMW,
        attention=attention,
        attention_mask_given=bool(options.get("padding")) and attention != "flash_attention_2",
        loss=loss,
        keeps_recomputed=versions.keeps_recomputed(row.older_deepspeed),
        use_reentrant_checkpointing={"on": True, "off": False}.get(choice(options, "reentrant") or ""),
        offload_activations=bool(options.get("offload_activations")),
        eval_batch=integer(options, "eval_batch"),
        inference=inference,
        quantization=quantization,
        new_tokens=new_tokens,
        images=with_room(chosen.images, length),
        trainer=trainer,
    ), tuple(notes)


def _adapters(
    options: Mapping[str, Any], method: str, chosen: Chosen, row: Trainer, notes: list[Note]
) -> Lora | None:
    """The adapters that are trained; ``row``: the trainer's defaults. Raises InputError: they are described
    where all weights are trained, on no module, or with a dropout that peft refuses."""
    rank, targets = integer(options, "lora_rank"), options.get("lora_targets")
    dropout = share(options, "lora_dropout")
    if method == "full":
        if rank or targets or dropout is not None:
            raise InputError("⟨lora_rank⟩, ⟨lora_targets⟩, ⟨lora_dropout⟩: only with ⟨method⟩ lora or qlora")
        return None
    names = tuple(part.strip() for part in str(targets or ALL_LINEAR).split(",") if part.strip())
    if is_pattern(str(targets or "")):
        names = _fitting(str(targets), chosen.shape, notes)
    if names == ("peft",):
        family = chosen.shape.family
        if family not in PEFT_TARGETS:
            raise InputError(
                f"⟨lora_targets⟩ peft: peft 0.21 has none for {family}; name modules, or all-linear"
            )
        names = PEFT_TARGETS[family]
        notes.append(Note("peft-targets", f"adapters on {', '.join(names)}: peft's own choice for {family}"))
    if not names:
        raise InputError(f"⟨lora_targets⟩ {targets}: names no module; use for example q_proj,v_proj")
    lora = Lora(rank=rank or 16, targets=names, dropout=row.lora_dropout if dropout is None else dropout)
    if lora.dropout and row.disables_dropout:
        lora = replace(lora, dropout=0.0)
        text = f"⟨lora_dropout⟩ 0: {row.title} disables dropout (disable_dropout: True)"
        notes.append(Note("no-lora-dropout", text))
    if lora.dropout and chosen.shape.adapts_stacked_experts(lora.targets):
        refused = "peft refuses dropout on experts stacked in one parameter (0.21, ParamWrapper)"
        if dropout is not None:
            raise InputError(
                f"⟨lora_dropout⟩ {lora.dropout:g}: {refused}; use 0, or ⟨lora_targets⟩ without them"
            )
        lora = replace(lora, dropout=0.0)
        notes.append(Note("no-lora-dropout", f"⟨lora_dropout⟩ 0: {refused}; the script must set it"))
    return lora


def _fitting(pattern: str, shape: ModelShape, notes: list[Note]) -> tuple[str, ...]:
    """The modules that a pattern takes; every linear one where those cannot be told. Raises InputError: it is
    no pattern."""
    try:
        names = shape.fitting(pattern)
    except re.error as error:
        raise InputError(f"⟨lora_targets⟩ {pattern}: {error}; a pattern is one of Python's re") from None
    if names:
        notes.append(Note("adapters-by-pattern", f"adapters on {', '.join(names)}: what fits {pattern}"))
        return names
    fits_none = f"it fits no known module of {shape.name}'s layers"
    why = "it takes some layers only" if names is None else fits_none
    text = f"adapters counted on every linear module: ⟨lora_targets⟩ {pattern} is not modelled, {why}"
    notes.append(Note("pattern-not-modelled", text, level="warning"))
    return (ALL_LINEAR,)


def _refuse_quantization(options: Mapping[str, Any], quantization: str, method: str) -> list[str]:
    """Refuse quantised weights that cannot be trained around; what to say of the others. Raises InputError:
    names the argument and the fix."""
    if quantization == "none" or options.get("inference"):
        return []
    if quantization != "int8" or method != "lora":
        raise InputError(
            f"⟨quant⟩ {quantization}: only with ⟨inference⟩, and int8 with ⟨method⟩ lora; to train on 4-bit "
            "weights use ⟨method⟩ qlora"
        )
    if str(options.get("zero")) == "3" or options.get("tp") not in (None, "1", 1):
        raise InputError(
            "⟨quant⟩ int8: ⟨zero⟩ 3 and ⟨tp⟩ divide weights, which leaves bitsandbytes' scales behind; use "
            "⟨zero⟩ 0, 1 or 2 without ⟨tp⟩"
        )
    return [
        "base weights in 8 bits as bitsandbytes keeps them (LLM.int8, threshold 6): columns with outliers, "
        "which depend on the weights, are not counted (2.3 and 5.5 % of two peaks on an H200, where nearly "
        "every input of a layer's last product has one); the step time is that of 16-bit weights"
    ]


def resolve_optimizer(name: str | None) -> tuple[str, list[str]]:
    """DeepSpeed's type of the optimizer or the Trainer's name of one that the script makes, and what to say.
    Raises InputError: there is none of this name, or it is not modelled. The rule for files asks the same of
    a DeepSpeed JSON."""
    from zerokit.domain.client_optimizers import CLIENT_OPTIMIZERS, client_optimizer
    from zerokit.domain.deepspeed_settings import DeepSpeedSettings
    from zerokit.rules import Setup, rule
    from zerokit.rules.known import NOT_MODELLED, TAKEN_AS

    if not name:
        return "AdamW", []
    if name in NOT_MODELLED:
        raise InputError(
            f"⟨optimizer⟩ {name}: not modelled: {NOT_MODELLED[name]}; use AdamW, or adamw_bnb_8bit (under "
            "FSDP2 adamw_torch_8bit), which keeps its states in 8 bits, or measure with zerokit launch"
        )
    if name in TAKEN_AS:
        return TAKEN_AS[name], [f"⟨optimizer⟩ {name}: its states are those of {TAKEN_AS[name]}"]
    if (client := client_optimizer(name)) is not None:
        notes = [
            f"⟨optimizer⟩ {name}: the script makes it, from {client.package} (a Trainer does with "
            f"optim={name})" + ("" if client.tensor_seconds else "; its step is timed as AdamW's")
        ]
        if client.paged:
            notes.append(
                "paged optimizer states are CUDA managed memory, which the figures of GPU memory leave out: "
                "they lie on the GPU while it has room and else in host memory, where all of them are "
                "counted; the time of moving them is not modelled, and none of this was measured on a GPU"
            )
        return name, notes
    details = rule("unknown-optimizer").broken(Setup(settings=DeepSpeedSettings(optimizer=name)))
    if isinstance(details, Mapping):
        from zerokit.suggest import misspelt

        right = str(details["instead"])
        fix = "use Adam, AdamW, Adagrad, Lamb, Lion or Muon, or a name of the Trainer's, such as adamw_8bit"
        if right.startswith("write"):
            fix = right
        elif meant := misspelt(name, CLIENT_OPTIMIZERS):
            fix = f"did you mean {meant[0]}?"
        raise InputError(f"⟨optimizer⟩ {name}: it is neither a DeepSpeed optimizer nor in torch.optim; {fix}")
    return name, note_on_optimizer(name)


def note_on_optimizer(name: str | None) -> list[str]:
    """What is not modelled of one that DeepSpeed makes (runtime/zero/stage_1_and_2.py:410, 0.19.8)."""
    if (name or "").lower() != "muon":
        return []
    return [
        "Muon's step is timed as AdamW's, without the products that make its updates orthogonal; the buffers "
        "through which it gathers whole matrices, up to 256 MiB, are not counted"
    ]


_FLAG, _DTYPE = ("true", "false"), ("fp32", "bf16", "fp16")
_SETTABLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bf16_master_weights_and_grads": ("bf16", _FLAG),
    "bf16_optimizer_states": ("bf16", _FLAG),
    "fp16_master_weights_and_grads": ("fp16", _FLAG),
    "grad_accum_dtype": ("data_types", _DTYPE),
    "contiguous_gradients": ("zero_optimization", _FLAG),
    "reduce_scatter": ("zero_optimization", _FLAG),
    "round_robin_gradients": ("zero_optimization", _FLAG),
    "zero_quantized_weights": ("zero_optimization", _FLAG),
    "zero_quantized_gradients": ("zero_optimization", _FLAG),
}
"""Key → its block, and the values that it takes."""


def _fixed_settings(options: Mapping[str, Any]) -> DeepSpeedSettings:
    """What ⟨set⟩ says, beside DeepSpeed's defaults. Raises InputError: a key that it does not take, or a
    value that the key does not."""
    config: dict[str, dict[str, object]] = {}
    for part in filter(None, str(options.get("set") or "").split(",")):
        key, _, value = part.strip().partition("=")
        name, value = key.rpartition(".")[2], value.strip().lower() or "true"
        if name not in _SETTABLE:
            raise InputError(
                f"⟨set⟩ {key}: use some of {', '.join(_SETTABLE)}; others have options, or are chosen"
            )
        block, allowed = _SETTABLE[name]
        if value not in allowed:
            raise InputError(f"⟨set⟩ {key}={value}: use one of {', '.join(allowed)}")
        config.setdefault(block, {})[name] = value == "true" if allowed == _FLAG else value
    return from_config(config)


def refuse_other_engines(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse an engine that is not among the known ones; ``what``: cannot have it, and what to use. Raises
    InputError: one was asked for."""
    engine = options.get("engine")
    if engine not in (None, *known):
        raise InputError(f"⟨engine⟩ {engine}: {what}")


def _pins(options: Mapping[str, Any], on_cpu: bool) -> Pins:
    zero = options.get("zero")
    stage = None
    if zero not in (None, "auto"):
        if str(zero) not in ("0", "1", "2", "3"):
            raise InputError(f"⟨zero⟩ {zero}: use 0, 1, 2 or 3")
        stage = int(str(zero))
    asks_any, overlap = options.get("engine") == ANY_ENGINE, choice(options, "overlap_comm")
    fixed: dict[str, Any] = {name: choice(options, name) for name in ("offload_optimizer", "offload_param")}
    offloads = [f"⟨{name}⟩ {device}" for name, device in fixed.items() if device not in (None, "none")]
    if on_cpu and offloads:
        raise InputError(
            f"{', '.join(offloads)}: CPU ranks hold everything in host memory already; leave "
            f"{'it' if len(offloads) == 1 else 'them'} out"
        )
    if "nvme" in fixed.values() and not options.get("nvme"):
        raise InputError("offload to nvme: name a folder on a local NVMe disk with ⟨nvme⟩ DIR")
    fixed |= dict.fromkeys(fixed, "none") if on_cpu else {}
    engine = options["engine"] if asks_any else choice(options, "engine") or "deepspeed"
    asked = [name for name in ("sp", "cp") if options.get(name) not in (None, 1, "1")]
    if len(asked) > 1:
        raise InputError("⟨sp⟩ beside ⟨cp⟩: ranks share a sequence in one of the two ways; leave one out")
    shared = asked[0] if asked else Pins(engine=engine).sharing_option
    for name in ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "micro_batch",
                 "gradient_accumulation"):  # fmt: skip
        fixed[name] = integer(options, shared if name == "sequence_parallel" else SETTINGS[name].argument)
    for name in ("reduce_bucket", "prefetch_bucket", "persistence", "sub_group"):
        fixed[f"{name}_{'threshold' if name == 'persistence' else 'size'}"] = count(options, name)
    pins = Pins(
        engine=engine,
        load_dtype=choice(options, "load_dtype"),
        zero_stage=stage,
        checkpointing=choice(options, "checkpointing"),
        overlap_comm=None if overlap is None else overlap == "on",
        pipeline_module=bool(options.get("pipeline_module")),
        settings=_fixed_settings(options),
        # a server is started for the degrees it is given; a training script must do its part
        search_tensor=options.get("tp") == "auto" or bool(options.get("inference")),
        search_sequence=options.get(shared) == "auto",
        shared_by="".join(asked),
        **fixed,
    )
    if not asks_any:
        pins.refuse_sharing()
    return pins
