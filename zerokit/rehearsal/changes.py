"""What would lower a rehearsed peak, read from what is live there and what allocated it; what to type next.

The bytes are those that the change would free of the peak as it is; another peak may then be the highest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.commands import DEFAULT_FOLDER
from zerokit.domain.hardware import Gpu
from zerokit.domain.phases import BEFORE_TRAINING, BY_NAME, TRAINING_PHASES
from zerokit.rehearsal.result import (
    ACTIVATIONS,
    BACKWARD,
    FROZEN,
    GATHERED,
    GRADIENTS,
    LOSS,
    QUANTISED,
    WEIGHTS,
    Change,
    Fed,
    RankMemory,
    Rehearsal,
)
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import read_target

CHECKPOINTING = (
    "activation checkpointing (a Trainer's --gradient_checkpointing True): of each layer only its input is "
    "kept"
)
_LEAST_SHARE = 0.03
"""Of the peak, below which a change is not worth a line."""
_FOUR_BITS_OF_16 = 4.127 / 16
"""NF4 with double quantisation, as QLoRA has it (arXiv 2305.14314, section 3: 0.127 bits of constants)."""


def could_halve(gpu: Gpu, fed: Fed | None) -> str | None:
    """The 16-bit precision in which a GPU would compute what a script computes in fp32; None: it does not."""
    if fed is None or fed.precision != "fp32":
        return None
    return "bf16" if gpu.supports("bf16") else "fp16"


def changes(
    rank: RankMemory,
    gpus: int,
    engine: Mapping[str, Any] | None,
    *,
    batch_rows: int | None = None,
    checkpointing: bool | None = None,
    unwrapped: tuple[Sequence[str], float] = ((), 1.0),
    fully_sharded: bool = False,
    halved: str | None = None,
) -> tuple[Change, ...]:
    """What would lower the rank's peak, most first.

    Args:
        engine: what the engine ran with, DeepSpeed's or FSDP2; None: there was none.
        batch_rows: of a batch per GPU, where DeepSpeed did not train; None: not known.
        checkpointing: whether layers recompute already, where DeepSpeed did not train; None: not known.
        unwrapped: classes of layers that are no FSDP units, and the largest share of the model that is
            gathered at once where they are.
        fully_sharded: FSDP divided the model.
        halved: as of :func:`could_halve`.
    """
    if not rank.peak_allocated_bytes:
        return ()
    deepspeed = None if fully_sharded else engine
    gpus //= (deepspeed or {}).get("tensor_parallel") or 1
    options = [
        *_of_phase(rank),
        *_of_activations(
            rank, deepspeed or {"micro_batch": batch_rows, "gradient_checkpointing": checkpointing}
        ),
    ]
    live = _live(rank)
    if halved is not None:  # under autocast the weights, their states and the loss stay in fp32
        what = f"{halved} in place of fp32 (a Trainer's --{halved} True, or torch.autocast)"
        options.append(Change(what=what, saves_bytes=live[ACTIVATIONS] // 2))
    options += _of_shards(rank, engine or {}) if fully_sharded else _of_states(rank, gpus, deepspeed)
    if not live[QUANTISED]:  # beside quantised weights, what is in 16 bits is what bitsandbytes leaves
        what = "the frozen weights in 4 bits (QLoRA: `load_in_4bit` of BitsAndBytesConfig)"
        options.append(Change(what=what, saves_bytes=int(live[FROZEN] * (1 - _FOUR_BITS_OF_16))))
    classes, left = unwrapped
    for name in classes:
        what = (
            f"each {name} as an FSDP unit of its own (Accelerate's `transformer_cls_names_to_wrap`, or "
            "`fully_shard` of each): one unit gathers them all"
        )
        options.append(Change(what=what, saves_bytes=int(live[GATHERED] * (1 - left))))
    if not rank.expandable_segments:
        what = (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which `zerokit launch` sets: less is reserved "
            "and not used"
        )
        unused = rank.smallest_reserved_bytes - rank.peak_allocated_bytes
        options.append(Change(what=what, saves_bytes=unused))
    least = _LEAST_SHARE * rank.peak_allocated_bytes
    worth = [option for option in options if option.saves_bytes >= least]
    return tuple(sorted(worth, key=lambda option: -option.saves_bytes))


def _live(rank: RankMemory) -> Counter[str]:
    parts: Counter[str] = Counter()
    for row in rank.at_peak:
        parts[row.what] += row.bytes
    return parts


def _of_phase(rank: RankMemory) -> Iterator[Change]:
    """A peak outside of training: as much as all other phases stay below it. What comes before training is
    known to be the peak only where something came after it."""
    if rank.peak_phase in TRAINING_PHASES or rank.phases.keys() <= {*BEFORE_TRAINING}:
        return
    next_largest = max((size for name, size in rank.phases.items() if name != rank.peak_phase), default=0)
    phase = BY_NAME.get(rank.peak_phase)
    advice = phase.lowers if phase is not None else f"less in {rank.peak_phase}"
    if rank.peak_phase == "load" and _live(rank)[QUANTISED]:
        advice = "loading the quantised weights straight to where they stay"
    yield Change(what=advice, saves_bytes=rank.peak_allocated_bytes - next_largest)


def _of_activations(rank: RankMemory, engine: Mapping[str, Any]) -> Iterator[Change]:
    live = _live(rank)
    activations = live[ACTIVATIONS]
    half = (activations + live[LOSS] + live[BACKWARD]) // 2
    activations = min(activations, rank.freed.get("checkpointing", activations))
    half = min(half, rank.freed.get("batch", half))
    if engine.get("gradient_checkpointing") is not True:
        yield Change(what=CHECKPOINTING, saves_bytes=activations)
    rows = engine.get("micro_batch")
    if rows is None or rows > 1:
        of = f" ({rows // 2} in place of {rows})" if rows else ""
        yield Change(what=f"half the batch size per GPU{of}", saves_bytes=half)
    else:
        what = "half the sequence length (the batch size per GPU is 1 already)"
        yield Change(what=what, saves_bytes=half)


def _of_states(rank: RankMemory, gpus: int, engine: Mapping[str, Any] | None) -> Iterator[Change]:
    """What ZeRO divides over the ranks, and what may move to the host."""
    live = _live(rank)
    stage = (engine or {}).get("zero_stage") or 0
    weights = live[WEIGHTS] + live[FROZEN] + live[QUANTISED]
    states = live["optimizer states"] + (live["engine and its buffers"] if engine else 0)
    words = ["optimizer states", *(["fp32 weights"] if engine else [])]
    divided = ((1, words, states), (2, [GRADIENTS], live[GRADIENTS]), (3, ["weights"], weights))
    names, size = list[str](), 0
    for number, parts, of_parts in divided if gpus > 1 else ():
        if stage < number:
            names += parts
            size += of_parts
            yield Change(
                what=f"ZeRO-{number}: {_listed(names)} divided over {gpus} GPUs",
                saves_bytes=size * (gpus - 1) // gpus,
            )
    if (engine or {}).get("offload_optimizer") in (None, "none"):
        of = "" if engine else "DeepSpeed's "
        yield Change(what=f"{_listed(words)} in host memory ({of}`offload_optimizer`)", saves_bytes=states)


def _of_shards(rank: RankMemory, sharded: Mapping[str, Any]) -> Iterator[Change]:
    """Nothing is left to divide, and all that is divided moves to the host together."""
    live = _live(rank)
    if sharded.get("offload_optimizer") in (None, "none"):
        yield Change(
            what="weights, gradients and optimizer states in host memory (Accelerate's "
            "`fsdp_offload_params`, or `CPUOffloadPolicy` of `fully_shard`)",
            saves_bytes=live[WEIGHTS] + live[FROZEN] + live[GRADIENTS] + live["optimizer states"],
        )


def _listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A command, and what it is for."""

    purpose: str
    words: tuple[str, ...]


def next_steps(
    done: Rehearsal, target: Target, hardware: Sequence[str], typed: Sequence[str]
) -> tuple[NextStep, ...]:
    """The commands to type where a script without a plan does not fit, the most likely remedy first.
    ``hardware``: the options of ``plan`` for the GPUs of the rehearsal. ``typed``: the words of the
    rehearsal."""
    if done.fits is not False:
        return ()
    facts = read_target(target)
    options = ScriptOptions.read(facts, facts.style, target.arguments)
    return (*_checkpointed(done, options, typed), *_planned(done, options, target, hardware))


def _checkpointed(done: Rehearsal, options: ScriptOptions, typed: Sequence[str]) -> tuple[NextStep, ...]:
    """The rehearsal with the script's option for checkpointing, where it is estimated to fit with it."""
    saved = next((change.saves_bytes for change in done.changes if change.what == CHECKPOINTING), 0)
    added = options.words_for_checkpointing()
    if not saved or not added or "--" in options.user_arguments:
        return ()
    if (done.min_vram_bytes or 0) - saved > (done.vram_bytes or 0):
        return ()
    purpose = "with activation checkpointing it may fit, which another rehearsal tells"
    return (NextStep(purpose=purpose, words=("zerokit", *typed, *added)),)


def _planned(
    done: Rehearsal, options: ScriptOptions, target: Target, hardware: Sequence[str]
) -> tuple[NextStep, ...]:
    """The search of what fits. None where no plan reaches the script: a plain loop, what FSDP shards, a
    DeepSpeed file that is not named among its arguments."""
    if options.style == "none" or done.fully_sharded:
        return ()
    arguments, without = target.arguments, ""
    if options.own_deepspeed_file is not None or done.config_files:
        file, where = options.own_deepspeed_file or ("", "")
        option = where.partition(" ")[0]
        arguments = _without(option, file, target.arguments)
        if arguments == target.arguments:
            return ()
        without = f" in place of {file}"
    under = " under DeepSpeed" if done.engine is None else ""
    if done.engine is None and done.bf16:
        under += ", with its fp32 master weights"
    script = ("-m", target.module) if target.module is not None else (str(target.script),)
    return (
        NextStep(
            purpose=f"which batch size, checkpointing, ZeRO stage and offload fit{under}{without}",
            words=("zerokit", "plan", *hardware, *_folder(target), "--", *script, *arguments),
        ),
    )


def _without(option: str, value: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments without an option and its value."""
    for at, word in enumerate(arguments):
        if word == option and arguments[at + 1 : at + 2] == (value,):
            return (*arguments[:at], *arguments[at + 2 :])
        if word == f"{option}={value}":
            return (*arguments[:at], *arguments[at + 1 :])
    return tuple(arguments)


def _folder(target: Target) -> tuple[str, ...]:
    """``--out`` with a folder that does not exist, where the usual one holds a plan already."""
    if not Path(DEFAULT_FOLDER).exists():
        return ()
    name = f"{DEFAULT_FOLDER}-{Path(target.name).stem if target.script else target.name.rpartition('.')[2]}"
    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    return ("--out", next((one for one in names if not Path(one).exists()), name))
