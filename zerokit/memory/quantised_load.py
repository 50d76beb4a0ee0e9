"""What quantised weights take: whole on every GPU while ZeRO-3's are loaded; experts as they are."""

from __future__ import annotations

from zerokit.domain.families import can_be_separate
from zerokit.domain.job import QUANTIZED_BYTES, Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.notes import Note
from zerokit.units import GIB

_ADAPTER_BYTES = 4
"""Of an adapter's element: PEFT makes adapters on 16-bit weights in fp32 (``autocast_adapter_dtype``)."""


def loads_whole(strategy: Strategy, job: Job) -> bool:
    """Whether every GPU holds all quantised weights for a while, of which ZeRO-3 then takes away a part.

    Transformers 5.23 leaves ``zero.Init`` out for a quantised model (``modeling_utils.py:3815``) and loads it
    onto the current GPU (``quantizer_bnb_4bit.py``, ``update_device_map``); 5.17 does the same
    (``modeling_utils.py:3741``). Rehearsed with both on two GPUs, a Llama of 0.7 B in NF4 peaks at 552 and
    555 MiB on each while it is loaded, of which all its weights are 516 and the adapters 27.
    """
    settings = strategy.settings
    is_taken_away = strategy.zero_ranks > 1 or settings.weights_device != "none"
    return job.packed_base_bytes is not None and settings.divides_weights and is_taken_away


def not_packed_note(shape: ModelShape, job: Job) -> tuple[Note, ...]:
    """Which weights are not quantised, what they take, and what would quantise them. bitsandbytes 0.50.2,
    ``nn/parametrize.py``, ``replace_parameter_4bit``, which axolotl's option calls."""
    packed_bytes = job.packed_base_bytes or (QUANTIZED_BYTES.get(job.quantization) if job.inference else None)
    left = shape.stacked_parameters or (0 if shape.linear_parameters else shape.block_parameters)
    if packed_bytes is None or not left:
        return ()
    kept, packed = (size * left / GIB for size in (2, packed_bytes))
    which, why = "experts", "they are stacked tensors, and bitsandbytes packs linear modules alone"
    if not shape.stacked_parameters:
        which, why = (
            "layers",
            "their linear modules are of a class of their own, which Transformers leaves out",
        )
    ways = ["Transformers 4, where they are modules that it packs"] if can_be_separate(shape.family) else []
    if shape.stacked_parameters and job.quantization != "int8":
        ways.append("axolotl's quantize_moe_experts")
        ways.append("bitsandbytes.nn.parametrize.replace_parameter_4bit in the script")
    instead = f"; {packed:,.1f} GiB, which is not counted, with {' or '.join(ways)}" if ways else ""
    return (Note("not-packed", f"{which} are not quantised, {kept:,.1f} GiB: {why}{instead}"),)


def loaded_bytes(weight_bytes: float, element_bytes: int, trainable: float) -> float:
    """At the end of the load. ``weight_bytes``: with the adapters (``trainable``), as they are trained."""
    return weight_bytes + (_ADAPTER_BYTES - element_bytes) * trainable


def load_notes(weight_bytes: float, strategy: Strategy, job: Job) -> tuple[Note, ...]:
    """That each GPU needs room for all weights, where ZeRO-3 does not help it."""
    if not loads_whole(strategy, job):
        return ()
    text = (
        "Transformers (5.17 to 5.23) loads the quantised model whole on each GPU, "
        f"{weight_bytes / GIB:.1f} GiB, before ZeRO-3 divides it: each must hold it, however many there are"
    )
    return (Note("loaded-whole", text),)
