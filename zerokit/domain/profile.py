"""A model as the memory model sees it: parameters in order, and activations instant by instant.

A :class:`ModelProfile` comes from a trace of the real model (``zerokit.trace``) or from the
catalogue, where such traces are stored. It holds no tensors and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from zerokit.domain.activations import ActivationTrace


def variant_key(
    *,
    attention: str,
    precision: str,
    checkpointing: str,
    padding: bool = False,
    lora: tuple[int, tuple[str, ...]] | None = None,
    tensor_parallel: int = 1,
    zero3_linear: bool = False,
    quantized: bool = False,
    phase: str = "train",
    quantization: str = "none",
    autocast: bool = False,
) -> str:
    """The name of what changes a model's activations apart from batch and sequence.

    ``precision`` is ``16`` or ``32``; ``checkpointing`` ``none``, ``full``, ``reentrant`` or ``selective``;
    ``lora`` (rank, target modules); ``zero3_linear``: ZeRO-3's linear layers, which keep the inputs of
    frozen layers too; ``quantized``: linear layers in NF4 (QLoRA); ``phase``: of inference ``prefill`` or
    ``decode``, with its ``quantization`` (``int8``, ``int4``); ``autocast``: weights in fp32 under
    ``torch.autocast``. FlashAttention-2 allocates as the flash kernel of SDPA does.
    """
    attention = "sdpa" if attention == "flash_attention_2" else attention
    parts = [attention, precision, checkpointing]
    if padding:
        parts.append("padding")
    if lora:
        parts.append(f"lora{lora[0]}:{','.join(sorted(lora[1]))}")
    if tensor_parallel > 1:
        parts.append(f"tp{tensor_parallel}")
    if zero3_linear:
        parts.append("zero3")
    if quantized:
        parts.append("nf4")
    if autocast:
        parts.append("autocast")
    if phase != "train":
        parts.append(phase)
    if quantization != "none":
        parts.append(quantization)
    return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter tensor of the full model.

    ``element_bytes``: where its dtype is another than the training dtype; ``stored_bytes``: what it takes
    with its block constants where it is quantised; ``communication_bytes``: of an element in which its
    gradient travels, where DeepSpeed's ``torch_autocast`` decides that. 0: none of these.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool = True
    stored_bytes: int = 0
    element_bytes: int = 0
    communication_bytes: int = 0

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """Everything the memory model knows of a model.

    Attributes:
        parameters: in ``model.parameters()`` order, tied ones once.
        traces: variant key (see :class:`zerokit.trace.recording.record.Variant`) -> traces by rising
            ``max_seq_len``.
        parameter_sets: variant key of a LoRA or tensor-parallel trace -> the parameters as one rank holds
            them then, in their order.
        ties: another name of a parameter -> the name under which ``parameters`` lists it.
        buffer_bytes: of all buffers (causal masks, position tables): on the GPU always.
        views: parameters of which operators save views for backward, by the last two parts of their names.
        leaves: last parts of the names of modules that ZeRO-3 hooks as one with all they contain.
        basis: ``traced``; or ``scaled`` when the traces are another size's, scaled.
    """

    name: str
    family: str
    head: str
    hf_config: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    traces: Mapping[str, tuple[ActivationTrace, ...]]
    parameter_sets: Mapping[str, tuple[Parameter, ...]] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    buffer_bytes: int = 0
    views: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    basis: str = "traced"
    torch_version: str = ""
    transformers_version: str = ""

    @cached_property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return sum(p.numel for p in self.parameters)

    def parameters_for(self, variant: str) -> tuple[Parameter, ...]:
        """The parameters as DeepSpeed sees them under this variant (adapters, shards)."""
        return self.parameter_sets.get(variant, self.parameters)

    def trace(self, variant: str, seq_len: int) -> ActivationTrace | None:
        """The trace that holds for this variant and sequence length, if there is one."""
        for trace in self.traces.get(variant, ()):
            if trace.max_seq_len is None or seq_len <= trace.max_seq_len:
                return trace
        return None

    def versions_note(self) -> str:
        """What the model was traced with: another version may run other kernels."""
        return f"transformers {self.transformers_version}, torch {self.torch_version}"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other
