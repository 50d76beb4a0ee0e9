"""What a DeepSpeed file leaves to the script that reads it: keys that say ``"auto"``, or that it lacks.

A Trainer fills them from TrainingArguments and Accelerate from its plugin, so an estimate of the file alone
takes an option, else what is likely, and names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import AUTO, DeepSpeedSettings, ZeroSettings
from zerokit.errors import InputError
from zerokit.notes import Note
from zerokit.search.plan import choose_precision
from zerokit.search.space import Request
from zerokit.units import counted
from zerokit.values import replace


def _left_open(what: str, why: str) -> Note:
    """A note on a value that the file leaves open; in short the value alone."""
    return Note("left-open", f"{what}: the file {why}", short=what)


TRAINERS_MICRO_BATCH = 8
"""Of a file that says ``"auto"``: TrainingArguments.per_device_train_batch_size, in 4.56 to 5.23."""
_STAGE = 2
"""Of a file whose stage is ``"auto"`` (accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin)."""
_SAYS_AUTO = 'says "auto"'
_BUCKETS = {
    "reduce_bucket": "reduce_bucket_size",
    "prefetch_bucket": "stage3_prefetch_bucket_size",
    "persistence": "stage3_param_persistence_threshold",
}
"""Option -> key that a Trainer and Accelerate fill from the hidden size."""
_NO_MEMORY = ("optimizer.params.", "scheduler.", "gradient_clipping", "steps_per_print", "autotuning.")
"""Keys whose value moves neither memory nor time."""


def open_options(config: Mapping[str, Any]) -> frozenset[str]:
    """The options that a DeepSpeed JSON leaves to whoever reads it."""
    zero = _block(config, "zero_optimization")
    found = {option for option, key in _BUCKETS.items() if zero.get(key) == AUTO}
    if _open_precisions(config):
        found.add("precision")
    if zero.get("stage") == AUTO:
        found.add("zero")
    for name in ("offload_optimizer", "offload_param"):
        if _block(zero, name).get("device") == AUTO:
            found |= {name, "nvme"}
    if config.get("gradient_accumulation_steps") == AUTO:
        found.add("gradient_accumulation")
    for option, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("global_batch", "train_batch_size"),
    ):
        if config.get(key) in (None, AUTO):
            found.add(option)
    if _block(config, "optimizer").get("type") in (None, AUTO):
        found.add("optimizer")
    return frozenset(found)


def with_open_values(
    settings: DeepSpeedSettings, config: Mapping[str, Any], request: Request
) -> tuple[DeepSpeedSettings, tuple[Note, ...]]:
    """The settings with what the file leaves open, batch sizes apart, and a note for each.

    Raises:
        InputError: a precision that the GPU lacks, or that the file turns off.
    """
    notes: list[Note] = []
    precision, note = _precision(settings.precision, config, request)
    notes += note
    zero = _zero(settings.zero, config, request, notes)
    zero = _with_buckets(zero, config, request, notes)
    if settings.optimizer is None and settings.client_optimizer is None:
        why = "names none, so the script makes it; ⟨optimizer⟩ to change"
        notes.append(_left_open("optimizer AdamW", why))
    filled = f"{_SAYS_AUTO}, which nobody fills; DeepSpeed's default"
    notes += (_left_open(key, filled) for key in _unfilled(config))
    return replace(settings, precision=precision, zero=zero), tuple(notes)


def batch_note(config: Mapping[str, Any], key: str, value: int) -> tuple[Note, ...]:
    """What to say of a batch size per GPU or an accumulation that no option and no batch decides."""
    says = config.get(key) == AUTO
    if key == "gradient_accumulation_steps":
        if not says:
            return ()
        what, option, argument = "gradient accumulation", "gradient_accumulation", f"--{key}, 1"
    else:
        what, option = "micro-batch", "micro_batch"
        argument = f"--per_device_train_batch_size, {TRAINERS_MICRO_BATCH}"
    why = f'says "auto" (a Trainer\'s {argument} unless given)' if says else "does not say"
    return (_left_open(f"{what} {value}", f"{why}; give ⟨{option}⟩"),)


def trainers_micro_batch(train: int | None, ranks: int, steps: int | None) -> int:
    """What a Trainer takes per GPU: its default, or the next size below with which ``train`` can be met.

    Args:
        steps: of accumulation; None: the script decides them, too.
    """
    if train is None or train % (ranks * (steps or 1)):
        return TRAINERS_MICRO_BATCH
    share = train // (ranks * (steps or 1))
    if steps is not None:
        return share
    return next(size for size in range(TRAINERS_MICRO_BATCH, 0, -1) if share % size == 0)


def beside_auto(config: Mapping[str, Any], micro: int, steps: int, ranks: int) -> tuple[str, ...]:
    """What to say of a ``train_batch_size`` in numbers where the script fills its parts.

    A Trainer holds it against its own arguments, and ends where it differs (transformers 5.24,
    integrations/deepspeed.py, trainer_config_process).
    """
    train = config.get("train_batch_size")
    parts = {
        "--per_device_train_batch_size": ("train_micro_batch_size_per_gpu", micro, TRAINERS_MICRO_BATCH),
        "--gradient_accumulation_steps": ("gradient_accumulation_steps", steps, 1),
    }
    if not isinstance(train, int) or not any(config.get(key) == AUTO for key, _, _ in parts.values()):
        return ()
    what = f'train_batch_size {train:,} beside "auto": a Trainer refuses the file'
    if micro * steps * ranks != train:
        return (f"{what}, as {micro} per GPU × {steps} accumulation × {ranks} is {micro * steps * ranks:,}",)
    given = [f"{argument} {value}" for argument, (_, value, default) in parts.items() if value != default]
    return (f"{what} unless it is given {' '.join(given)} on {counted(ranks, 'rank')}",) if given else ()


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    block = config.get(key)
    return block if isinstance(block, Mapping) else {}


def _open_precisions(config: Mapping[str, Any]) -> dict[str, bool]:
    """Precision -> whether its block says ``"auto"``, rather than that the file has none, which Accelerate
    adds; empty where the file decides."""
    bf16 = "bfloat16" if config.get("bf16") is None else "bf16"
    values = {
        name: AUTO if config.get(key) == AUTO else _block(config, key).get("enabled")
        for name, key in (("bf16", bf16), ("fp16", "fp16"))
        if config.get(key) is not None
    }
    if True in values.values() or _block(config, "torch_autocast").get("enabled") is True:
        return {}
    return {name: name in values for name in ("bf16", "fp16") if values.get(name, AUTO) == AUTO}


def _precision(decided: str, config: Mapping[str, Any], request: Request) -> tuple[str, tuple[Note, ...]]:
    precisions = _open_precisions(config)
    if not precisions:
        return decided, ()
    given = request.precision
    if given != AUTO:
        if given not in precisions and given != "fp32":
            raise InputError(f"⟨precision⟩ {given}: the file of ⟨deepspeed⟩ turns it off; leave it out")
        return choose_precision(given, request.cluster, request.on_cpu)[0], ()
    autos = [name for name, says in precisions.items() if says]
    if not autos:
        why = "names none (Accelerate's mixed_precision, or a Trainer's --bf16, would set it); "
        return decided, (_left_open("precision fp32", f"{why}⟨precision⟩ to change"),)
    best = choose_precision(AUTO, request.cluster, request.on_cpu)[0]
    if best not in autos and ("fp16" not in autos or request.on_cpu):
        lacks = "these CPUs lack" if request.on_cpu else f"{request.cluster.gpu.name} lacks"
        why = f"{_SAYS_AUTO} for {autos[0]}, which {lacks} in hardware"
        return "fp32", (_left_open("precision fp32", why),)
    chosen = best if best in autos else "fp16"
    why = (
        f"{_SAYS_AUTO}, which a Trainer's --{chosen} or Accelerate's mixed_precision turns on; a run without "
        "them is in fp32: ⟨precision⟩ fp32"
    )
    return chosen, (_left_open(f"precision {chosen}", why),)


def _zero(zero: ZeroSettings, config: Mapping[str, Any], request: Request, notes: list[Note]) -> ZeroSettings:
    """Stage and offload; what to say is added to ``notes``."""
    block, pins = _block(config, "zero_optimization"), request.pins
    if block.get("stage") == AUTO:
        zero = replace(zero, stage=_STAGE if pins.zero_stage is None else pins.zero_stage)
        if pins.zero_stage is None:
            why = (
                f"{_SAYS_AUTO} for the stage (Accelerate's zero_stage, {_STAGE} unless given; "
                "deepspeed.initialize alone runs stage 0); ⟨zero⟩ to change"
            )
            notes.append(_left_open(f"ZeRO-{_STAGE}", why))
    for name in ("offload_optimizer", "offload_param"):
        if _block(block, name).get("device") != AUTO:
            continue
        device = getattr(pins, name)
        offload = replace(getattr(zero, name), device=device or "none")
        zero = replace(zero, **{name: offload})
        if device is None:
            why = f"{_SAYS_AUTO} (Accelerate's {name}_device); ⟨{name}⟩ to change"
            notes.append(_left_open(f"{name} none", why))
    return zero


def _with_buckets(
    zero: ZeroSettings, config: Mapping[str, Any], request: Request, notes: list[Note]
) -> ZeroSettings:
    """What a Trainer and Accelerate fill from the hidden size; what to say is added to ``notes``.

    transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``; accelerate 1.15,
    accelerator.py, ``_prepare_deepspeed``. ``deepspeed.initialize`` takes its defaults.
    """
    block = _block(config, "zero_optimization")
    hidden, fixed = request.shape.hidden, request.pins.sizes()
    values = {
        "reduce_bucket": ("reduce_bucket_size", "reduce_bucket_size", hidden * hidden),
        "prefetch_bucket": ("prefetch_bucket_size", "prefetch_bucket_size", int(0.9 * hidden * hidden)),
        "persistence": ("param_persistence_threshold", "persistence_threshold", 10 * hidden),
    }
    filled: list[tuple[str, str]] = []
    for option, (name, pin, value) in values.items():
        key = _BUCKETS[option]
        if block.get(key) != AUTO or zero.stage < (1 if option == "reduce_bucket" else 3):
            continue
        zero = replace(zero, **{name: fixed.get(pin, value)})
        if pin not in fixed:
            filled.append((f"{key} {value:,}", f"⟨{option}⟩"))
    if filled:
        why = (
            f"{_SAYS_AUTO}, which a Trainer and Accelerate fill from "
            f"the hidden size {hidden:,} (deepspeed.initialize takes its defaults); "
            f"{', '.join(option for _, option in filled)} to change"
        )
        notes.append(_left_open(", ".join(text for text, _ in filled), why))
    return zero


def _unfilled(config: Mapping[str, Any]) -> Iterator[str]:
    """Keys with ``"auto"`` that neither a Trainer nor Accelerate fills, for which DeepSpeed has a default."""
    from zerokit.linter.deepspeed.autos import autos, fills

    for path in autos(config):
        key = ".".join(path)
        if not key.startswith(_NO_MEMORY) and not any(
            fills(reader, key) for reader in ("trainer", "accelerate")
        ):
            yield key
