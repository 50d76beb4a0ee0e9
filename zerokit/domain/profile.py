"""A model as the memory model sees it: parameters in order, and activations instant by instant.

A :class:`ModelProfile` comes from a trace of the real model (``zerokit.trace``) or from the
catalogue, where such traces are stored. It holds no tensors and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.images import SequenceImages
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.values import frozen_dataclass, replace


@frozen_dataclass
class Variant:
    """What changes a model's activations apart from batch and sequence. A profile has a trace of each.

    FlashAttention-2 allocates as the flash kernel of SDPA does.

    Attributes:
        attention: the Transformers implementation that is traced: ``sdpa`` or ``eager``.
        precision: ``16`` (bf16, fp16) or ``32`` bits.
        checkpointing: ``none``, ``full`` (each layer), ``reentrant`` or ``selective``.
        by_plan: tensor parallel ranks divide it by Transformers' plan, not as AutoTP does.
        padding: batches carry an attention mask with padding in it.
        lora_rank, lora_targets: of the adapters; rank 0: none.
        zero3_linear: ZeRO-3's linear layers (runtime/zero/linear.py), which keep the inputs of frozen layers
            too; told from PyTorch's only where weights are frozen, and under autocast.
        quantized: linear layers in NF4 under adapters (QLoRA); ``double_quant``: their block constants in 8
            bits, which changes no activations.
        phase: ``train``, or of inference ``prefill`` or ``decode``.
        quantization: of inference: ``none``, ``int8`` or ``int4``; under adapters ``none`` or ``int8``.
        autocast: operators in 16 bits under ``torch.autocast``, on weights of ``precision``.
        offloaded: activations go to the host in forward.
        images: of each sequence, for a model with a vision tower.
        narrow_adapters: ZeRO-3's adapters are in the training dtype, not in fp32.
        wide_adapters: those of training without an engine are in fp32, not in the dtype of the weights.
        wide_ends: norms, embeddings and head are in fp32, layers in ``precision``.
        dropout: wide adapters, or any under autocast, drop some of their input; of others that is added to
            a trace without (``zerokit.memory.adapter_dropout``).
        fused_adapters: they run in axolotl's functions.
        input_grads: what the embeddings give needs a gradient without checkpointing too.
    """

    attention: str = "sdpa"
    precision: str = "16"
    checkpointing: str = "none"
    padding: bool = False
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ("all-linear",)
    tensor_parallel: int = 1
    by_plan: bool = False
    zero3_linear: bool = False
    quantized: bool = False
    double_quant: bool = True
    phase: str = "train"
    quantization: str = "none"
    autocast: bool = False
    offloaded: bool = False
    images: SequenceImages | None = None
    narrow_adapters: bool = False
    wide_adapters: bool = False
    dropout: bool = False
    wide_ends: bool = False
    fused_adapters: bool = False
    input_grads: bool = False

    @staticmethod
    def of(job: Job, strategy: Strategy, phase: str = "train") -> Variant:
        """The variant whose trace this job and strategy need; of inference one for each phase."""
        variant = Variant(
            attention="sdpa" if job.attention == "flash_attention_2" else job.attention,
            precision="32" if strategy.settings.parameter_bytes == 4 else "16",
            padding=job.attention_mask_given,
            tensor_parallel=strategy.tensor_parallel,
            by_plan=strategy.is_loaded_in_parts,
            phase=phase,
            images=job.images,
        )
        if phase != "train":
            return replace(variant, quantization=job.quantization)
        settings = strategy.settings
        reentrant = strategy.checkpointing == "full" and job.is_reentrant(settings)
        lora = job.lora if job.method != "full" else None
        wide = lora is not None and settings.wide_adapters
        fused = job.fuses_adapters and not settings.has_own_linear
        return replace(
            variant,
            checkpointing="reentrant" if reentrant else strategy.recomputed(job.attention),
            lora_rank=lora.rank if lora is not None else 0,
            lora_targets=lora.targets if lora is not None else ("all-linear",),
            zero3_linear=(lora is not None or settings.autocasts) and settings.has_own_linear,
            quantized=job.method == "qlora",
            double_quant=job.defaults.double_quant,
            quantization=job.quantization if job.method == "lora" else "none",
            autocast=settings.autocasts,
            offloaded=job.offload_activations,
            narrow_adapters=job.has_narrow_adapters(settings),
            wide_adapters=wide,
            wide_ends=job.has_wide_ends(settings),
            dropout=lora is not None
            and lora.dropout > 0
            and (wide or fused or (settings.autocasts and settings.zero_stage is None)),
            fused_adapters=fused,
            input_grads=lora is not None and job.defaults.input_grads and strategy.checkpointing == "none",
        )

    @property
    def key(self) -> str:
        """The name under which a stored profile keeps this variant's trace."""
        parts = [self.attention, self.precision, self.checkpointing]
        if self.padding:
            parts.append("padding")
        if self.lora_rank:
            parts.append(f"lora{self.lora_rank}:{','.join(sorted(self.lora_targets))}")
        if self.tensor_parallel > 1:
            parts.append(f"tp{self.tensor_parallel}" + "-plan" * self.by_plan)
        if self.zero3_linear:
            parts.append("zero3" + "narrow" * self.narrow_adapters)
        if self.quantized:
            parts.append("nf4")
        if self.autocast:
            parts.append("autocast")
        if self.wide_adapters:
            parts.append("wide" + "-dropout" * self.dropout)
        elif self.dropout:
            parts.append("dropout")
        if self.wide_ends:
            parts.append("wide-ends")
        if self.fused_adapters:
            parts.append("fused")
        if self.input_grads:
            parts.append("input-grads")
        if self.phase != "train":
            parts.append(self.phase)
        if self.images is not None:
            parts.append(self.images.key)
        if self.quantization != "none":
            parts.append(self.quantization)
        if self.offloaded:
            parts.append("offloaded")
        return "/".join(parts)

    @property
    def words(self) -> str:
        """What sets this variant apart, for people: ``training, sdpa attention, 16 bits``."""
        checkpointing = {"none": "", "reentrant": "full checkpointing (reentrant)"}.get(
            self.checkpointing, f"{self.checkpointing} checkpointing"
        )
        parts = {
            "training" if self.phase == "train" else self.phase: True,
            f"{self.attention} attention": True,
            f"{self.precision} bits": True,
            checkpointing: bool(checkpointing),
            "padded batches": self.padding,
            f"LoRA of rank {self.lora_rank}": bool(self.lora_rank),
            f"one of {self.tensor_parallel} tensor-parallel ranks": self.tensor_parallel > 1,
            "under ZeRO-3": self.zero3_linear,
            "base weights in 4 bits": self.quantized,
            "autocast": self.autocast,
            "adapters in fp32": self.wide_adapters,
            "norms, embeddings and head in fp32": self.wide_ends,
            "dropout of adapters": self.dropout,
            "fused adapters": self.fused_adapters,
            "gradients of the embeddings' output": self.input_grads,
            "with images": self.images is not None,
            f"weights in {self.quantization}": self.quantization != "none",
            "activations offloaded": self.offloaded,
        }
        return ", ".join(words for words, holds in parts.items() if holds)


def inference_phases(head: str | None) -> tuple[str, ...]:
    """The passes that inference with this head takes; of an unknown head all that there may be."""
    return ("prefill", "decode") if head in (None, "", "causal") else ("prefill",)


def needs_graphless(job: Job) -> bool:
    """Whether passes without a graph are counted: through a reference model, of an evaluation, or to
    generate."""
    return job.defaults.reference or job.defaults.generates or job.eval_batch is not None


def generating(job: Job, variant: Variant) -> Variant:
    """The variant that reads a prompt, of one under checkpointing: peft's ``generate`` is that of the model
    inside it, around which no autocast is (trl/trainer/grpo_trainer.py:1873, 1.16)."""
    return replace(variant, dropout=False, autocast=variant.autocast and job.method == "full")


def variants_of(job: Job, strategy: Strategy, head: str | None = None) -> tuple[Variant, ...]:
    """The variants whose traces this job and strategy need; of inference one for each pass of its head, of a
    pass without a graph that under checkpointing, without dropout in an evaluation
    (``zerokit.memory.estimate``)."""
    phases = inference_phases(head) if job.inference else ("train",)
    variants = tuple(Variant.of(job, strategy, phase) for phase in phases)
    if job.inference:
        return variants
    checkpointing = "full" if variants[0].checkpointing == "none" else variants[0].checkpointing
    if job.defaults.reference:
        variants += (replace(variants[0], checkpointing=checkpointing),)
    if job.eval_batch is not None:
        variants += (replace(variants[0], checkpointing=checkpointing, dropout=False),)
    if job.defaults.generates:
        variants += (generating(job, replace(variants[0], checkpointing=checkpointing)),)
    return tuple(dict.fromkeys(variants))


def tokens_of_a_rank(job: Job, strategy: Strategy) -> int:
    """Tokens of a sequence on one rank: Ulysses divides them."""
    return max(1, job.seq_len // strategy.sequence_parallel)


def sequences_of_a_rank(job: Job, strategy: Strategy) -> int:
    """Sequences of a micro-batch on one rank."""
    return strategy.settings.micro_batch * job.defaults.sequences


@frozen_dataclass
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


@frozen_dataclass(slots=False)
class ModelProfile:
    """Everything the memory model knows of a model.

    Attributes:
        parameters: in ``model.parameters()`` order, tied ones once.
        traces: ``Variant.key`` -> traces by rising
            ``max_seq_len``.
        parameter_sets: ``Variant.key`` of a LoRA or tensor-parallel trace -> the parameters as one rank holds
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

    def parameters_for(self, variant: Variant) -> tuple[Parameter, ...]:
        """The parameters as DeepSpeed sees them under this variant (adapters, shards)."""
        return self.parameter_sets.get(variant.key, self.parameters)

    @cached_property
    def has_layer_norms(self) -> bool:
        """Whether some norm has a bias: torch's own, which autocast computes in fp32."""
        modules = (p.name.split(".")[-2:] for p in self.parameters if p.name.endswith(".bias"))
        return any("norm" in names[0] or names[0].startswith("ln_") for names in modules)

    def has(self, variant: Variant) -> bool:
        """Whether this very variant was traced."""
        return variant.key in self.traces

    def has_all(self, job: Job, strategy: Strategy) -> bool:
        """Whether the variants that this job and strategy need were traced, for sequences so long."""
        variants = variants_of(job, strategy, self.head)
        if job.inference:
            return all(self.has(variant) for variant in variants)
        tokens = tokens_of_a_rank(job, strategy)
        batch = sequences_of_a_rank(job, strategy)
        return all(self.trace(variant, tokens, batch) is not None for variant in variants)

    def trace(self, variant: Variant, seq_len: int, micro_batch: int = 2) -> ActivationTrace | None:
        """The trace that holds for this variant, sequence length and micro-batch (every one above one has the
        same), if there is one."""
        found = None
        for trace in self.traces.get(variant.key, ()):
            if trace.min_seq_len <= seq_len and (trace.max_seq_len is None or seq_len <= trace.max_seq_len):
                if trace.of_one_sequence and micro_batch == 1:
                    return trace
                if not trace.of_one_sequence and found is None:
                    found = trace
        return found

    def versions_note(self) -> str:
        """What the model was traced with: another version may run other kernels."""
        return f"transformers {self.transformers_version}, torch {self.torch_version}"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other
