"""The facts about parameters and precision that every stage's bookkeeping needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import add

from zerokit.domain.activations import ActivationTrace, Pass
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.hardware import HOPPER_CUBLAS_WORKSPACE_BYTES
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, Parameter, Variant
from zerokit.domain.strategy import Strategy
from zerokit.notes import Note
from zerokit.values import frozen_dataclass, replace

# Frozen weights that ZeRO-3 gathers to compute a layer again, and what releases them.
#
# DeepSpeed leaves them to the module whose backward began last (from 0.19.3 on,
# runtime/zero/partitioned_param_coordinator.py:393). Within a reentrant checkpoint of a layer's call, as of
# Transformers before 5.23, no hook of the layer has begun one: they are left to the whole model, and stay
# until its backward ends. Seen with 5.17 on two H200s (``qwen3-4b.lora.documented`` of
# benchmarks/measure/data/race.jsonl) and on CPU ranks.


def recomputed_weights_stay(job: Job, strategy: Strategy) -> bool:
    """Whether all frozen weights that are gathered again are there at the end of backward."""
    settings = strategy.settings
    is_reentrant = strategy.checkpointing == "full" and job.is_reentrant(settings)
    has_frozen = job.method != "full" and not job.inference
    divides = settings.divides_weights and strategy.zero_ranks > 1
    return job.keeps_recomputed and is_reentrant and has_frozen and divides


def recomputed_notes(job: Job, strategy: Strategy) -> tuple[Note, ...]:
    """What to say where they stay."""
    if not recomputed_weights_stay(job, strategy):
        return ()
    text = (
        "reentrant checkpoints of Transformers before 5.23, under DeepSpeed 0.19.3 or newer: ZeRO-3 keeps "
        "every frozen weight that it gathers until backward ends, and that is counted; ⟨reentrant⟩ off, or "
        "Transformers 5.23, releases them layer by layer"
    )
    return (Note("recomputed-weights-stay", text),)


FP64 = 8  # bytes; gradient norms accumulate in it (zero/utils.py:59 get_norm_dtype)
DTYPE_BYTES = {
    "fp32": 4, "float32": 4, "float": 4, "torch.float32": 4,
    "fp16": 2, "float16": 2, "half": 2, "torch.float16": 2,
    "bf16": 2, "bfloat16": 2, "torch.bfloat16": 2,
}  # fmt: skip


def prepared_bytes(packed_bytes: float, kept: float, trainable: float) -> int:
    """Bytes of a model after ``prepare_model_for_kbit_training`` (peft 0.21, utils/other.py:205), which casts
    every 16-bit parameter to fp32, stacked experts too, and with its adapters, which are made in fp32.
    DeepSpeed's engine casts one after another back (runtime/engine.py:1851, 0.19.8).

    Args:
        packed_bytes: of quantised weights. kept, trainable: elements of the others, and of the adapters.
    """
    return int(packed_bytes + DTYPE_BYTES["fp32"] * (kept + trainable))


@frozen_dataclass(slots=False)
class RankModel:
    """One rank's model: which parameters it holds, in what order their gradients come.

    Attributes:
        parameters: as this rank holds them (tensor-parallel shards already taken).
        trace: the activations, or ``None`` for a profile without them.
        checkpointing: ``none``, ``full``, ``reentrant`` or ``selective``.
        is_stage: whether it is one stage of a pipeline.
        loss: one of ``zerokit.domain.job.LOSSES``.
        cublas_bytes: what cuBLAS keeps on its GPU for each thread that multiplies; 0: there is no cuBLAS.
        loads_on_gpu: see ``Job.loads_on_gpu``.
        kbit_prepared: see ``Job.kbit_prepared``.
        keeps_recomputed: see ``zerokit.memory.rank_model``.
        optimizer_groups: see ``Job.optimizer_groups``.
        reference: the model of a pass without a graph between forward and backward: ``copy``, which lies
            beside it, ``narrow copy`` or ``wide copy``, without an engine in 16 bits or in fp32, ``base``,
            the same without its adapters, or none.
        passes_again: whether the model that is trained runs without a graph between its forward and its
            backward: as its own reference, or over other answers.
        untied: the embedding of a trace whose head is tied to it, where the loss's own head is not.
    """

    profile: ModelProfile
    parameters: tuple[Parameter, ...]
    trace: ActivationTrace
    checkpointing: str = "none"
    is_stage: bool = False
    loss: str = "standard"
    cublas_bytes: int = HOPPER_CUBLAS_WORKSPACE_BYTES
    loads_on_gpu: bool = False
    kbit_prepared: bool = False
    reference: str = ""
    keeps_recomputed: bool = False
    optimizer_groups: tuple[str, ...] = ()
    untied: str = ""
    passes_again: bool = False

    @property
    def has_copy(self) -> bool:
        """Whether the reference model has weights of its own."""
        return self.reference.endswith("copy")

    @property
    def copy_bytes(self) -> int:
        """Bytes of an element of these, without an engine; 0: those of the weights."""
        return {"narrow copy": 2, "wide copy": 4}.get(self.reference, 0)

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """Parameters with gradients, in optimizer order."""
        return tuple(p for p in self.parameters if p.trainable)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of every parameter."""
        return tuple(p.numel for p in self.parameters)

    def element_bytes(self, element_bytes: int) -> tuple[int, ...]:
        """Bytes an element of every parameter; ``element_bytes``: of the training dtype."""
        return tuple(p.element_bytes or element_bytes for p in self.parameters)

    def gathered_element_bytes(self, settings: DeepSpeedSettings) -> tuple[int, ...]:
        """Bytes an element in which every parameter is gathered at stage 3: under ``torch_autocast`` 16 bits
        for those of linear layers."""
        element_bytes = self.element_bytes(settings.parameter_bytes)
        if settings.torch_autocast is None:
            return element_bytes
        return tuple(p.communication_bytes or w for p, w in zip(self.parameters, element_bytes, strict=True))

    def reduced_element_bytes(self, settings: DeepSpeedSettings) -> tuple[int, ...]:
        """Bytes an element in which the gradient of every parameter is reduced at stage 3."""
        if settings.torch_autocast is None:
            return (ElementBytes.of(settings).communication,) * len(self.parameters)
        return self.gathered_element_bytes(settings)

    def bucket_element_bytes(self, settings: DeepSpeedSettings) -> tuple[int, ...]:
        """Bytes an element of every bucket of gradients at stage 3 (``ipg_buckets``, stage3.py:477)."""
        pairs = zip(self.parameters, self.reduced_element_bytes(settings), strict=True)
        return tuple(sorted({element_bytes for p, element_bytes in pairs if p.trainable}))

    @cached_property
    def trainable_sizes(self) -> tuple[int, ...]:
        """Elements of every trainable parameter."""
        return tuple(p.numel for p in self.trainable)

    @cached_property
    def numel_beside_matrices(self) -> int:
        """Trainable elements of vectors, embeddings and the head."""
        return sum(
            p.numel
            for p in self.trainable
            if len(p.shape) < 2 or any(word in p.name.lower() for word in ("embed", "lm_head"))
        )

    @cached_property
    def largest(self) -> int:
        """Elements of the largest trainable parameter."""
        return max(self.trainable_sizes, default=0)

    @cached_property
    def frozen_numel(self) -> int:
        """Elements without gradients."""
        return sum(p.numel for p in self.parameters if not p.trainable)

    def frozen_bytes(self, element_bytes: int) -> int:
        """Bytes of the parameters without gradients; ``element_bytes``: of those that are not quantised."""
        numel, stored = self._frozen
        return numel * element_bytes + stored

    @cached_property
    def _frozen(self) -> tuple[int, int]:
        """(elements of the training dtype, bytes of quantised parameters)."""
        frozen = [p for p in self.parameters if not p.trainable]
        return sum(p.numel for p in frozen if not p.stored_bytes), sum(p.stored_bytes for p in frozen)

    @cached_property
    def prepared_bytes(self) -> int:
        """Before DeepSpeed's engine, where the script prepared the model for k-bit training; else 0."""
        numel, stored = self._frozen
        return prepared_bytes(stored, numel, self.trainable_numel) if self.kbit_prepared else 0

    @cached_property
    def _biases(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(shape of the weight, elements of the bias) of each layer that multiplies and adds a bias."""
        shapes = {p.name: p.shape for p in self.parameters}
        pairs = (
            (shapes.get(f"{name.removesuffix('.bias')}.weight", ()), shape)
            for name, shape in shapes.items()
            if name.endswith(".bias") and len(shape) == 1
        )
        return tuple((weight, bias[0]) for weight, bias in pairs if len(weight) == 2)

    def adds_bias_in_product(self, stage: int) -> bool:
        """Whether some layer's product and bias are one operator (``addmm``).

        Below stage 3 that is every linear layer with a bias; stage 3's add it afterwards
        (``LinearFunctionForZeroStage3``, runtime/zero/linear.py). GPT-2's ``Conv1D``, whose weight is
        (in, out), is one always.
        """
        return any(stage < 3 or weight[0] != bias for weight, bias in self._biases)

    @cached_property
    def trainable_numel(self) -> int:
        """Elements with gradients."""
        return sum(self.trainable_sizes)

    @cached_property
    def trainable_index(self) -> dict[str, int]:
        """Parameter name -> position among the trainable ones."""
        return {p.name: i for i, p in enumerate(self.trainable)}

    @cached_property
    def gradient_indexes(self) -> tuple[int, ...]:
        """Map every mark of backward below ZeRO-3 to the trainable parameter with a gradient there, or -1."""
        indexes = self.trainable_index
        return tuple(
            indexes.get(name, -1) if kind == "grad" else -1 for kind, name in self.trace.marks_gradients
        )

    @cached_property
    def unused(self) -> frozenset[int]:
        """Trainable parameters that the loss does not depend on (a tower's layers behind the one that is
        read): backward makes no gradient of them. Told of whole models only: the last stage of a pipeline
        gets the gradient of a tied embedding without a mark of its own."""
        names = {name for kind, name in self.trace.marks_gradients if kind == "grad"}
        if not names or self.is_stage:
            return frozenset()
        return frozenset(index for name, index in self.trainable_index.items() if name not in names)

    def accumulated_gradients(self, element_bytes: int) -> tuple[int, ...]:
        """Bytes of the gradients up to every such mark; ``element_bytes``: of the training dtype."""
        if element_bytes not in self._accumulated:
            sizes = self.trainable_sizes
            bytes_of_gradients = (sizes[i] * element_bytes if i >= 0 else 0 for i in self.gradient_indexes)
            self._accumulated[element_bytes] = tuple(accumulate(bytes_of_gradients))
        return self._accumulated[element_bytes]

    @cached_property
    def _accumulated(self) -> dict[int, tuple[int, ...]]:
        return {}

    @cached_property
    def trainable_groups(self) -> tuple[tuple[int, ...], ...]:
        """Trainable parameters by the optimizer's groups; DeepSpeed takes none that is empty."""
        patterns = [re.compile(pattern) for pattern in self.optimizer_groups]
        groups: list[list[int]] = [[] for _ in (None, *patterns)]
        for index, parameter in enumerate(self.trainable):
            found = (n for n, pattern in enumerate(patterns, 1) if pattern.fullmatch(parameter.name))
            groups[next(found, 0)].append(index)
        return tuple(tuple(group) for group in groups if group)

    @cached_property
    def layer_numel(self) -> dict[str, int]:
        """Stack path -> elements of its smallest layer."""
        totals: dict[tuple[str, str], int] = {}
        stacks = {run.stack for run in self.trace.forward if run.stack}
        for parameter in self.parameters:
            for stack in stacks:
                if parameter.name.startswith(stack + "."):
                    layer = parameter.name[len(stack) + 1 :].split(".", 1)[0]
                    totals[stack, layer] = totals.get((stack, layer), 0) + parameter.numel
        by_layer: dict[str, int] = {}
        for (stack, _), numel in totals.items():
            by_layer[stack] = min(by_layer.get(stack, numel), numel)
        return by_layer

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@frozen_dataclass
class ElementBytes:
    """Bytes per element of each kind of tensor, as DeepSpeed chooses them. ``engine.get_data_types`` and
    ``communication_data_type`` (runtime/engine.py:1799, 0.19.8)."""

    parameter: int
    gradient: int
    accumulation: int
    communication: int
    master: int

    @property
    def compact(self) -> bool:
        """Whether 16-bit gradients are added up in fp32, in one flat buffer of the rank's partition
        (``_use_compact_grad_partition_buffer``, zero/stage_1_and_2.py:1260)."""
        return self.accumulation == 4 and self.parameter == 2

    @staticmethod
    def of(settings: DeepSpeedSettings) -> ElementBytes:
        """The element sizes under these settings."""
        parameter = settings.parameter_bytes
        accumulation = DTYPE_BYTES.get(settings.grad_accum_dtype or "", parameter)
        communication = DTYPE_BYTES.get(settings.communication_data_type or "", parameter)
        low = settings.bf16_master_weights_and_grads or settings.fp16_master_weights_and_grads
        return ElementBytes(
            parameter=parameter,
            gradient=parameter,
            accumulation=accumulation,
            communication=communication,
            master=2 if low else 4,
        )


@lru_cache(maxsize=64)
def rank_model(
    profile: ModelProfile,
    variant: Variant,
    trace: ActivationTrace,
    ranks_of_adapters: tuple[int, int] | None = None,
    loss: str = "standard",
    cublas_bytes: int = HOPPER_CUBLAS_WORKSPACE_BYTES,
    kbit_prepared: bool = False,
    reference: str = "",
    keeps_recomputed: bool = False,
    optimizer_groups: tuple[str, ...] = (),
    compares: bool = False,
) -> RankModel:
    """What one rank holds under a variant; cached, so that a search pays once. ``ranks_of_adapters``:
    (traced, wanted) LoRA rank, where the trace is another rank's."""
    parameters = profile.parameters_for(variant)
    if ranks_of_adapters is not None:
        parameters = tuple(_with_rank(p, *ranks_of_adapters) for p in parameters)
    if variant.quantized and not variant.double_quant:
        parameters = tuple(_with_plain_constants(p) for p in parameters)
    return RankModel(
        profile=profile, parameters=parameters, trace=trace, checkpointing=variant.checkpointing, loss=loss,
        cublas_bytes=cublas_bytes, loads_on_gpu=variant.quantized or variant.quantization != "none",
        kbit_prepared=kbit_prepared and variant.precision == "16", reference=reference,
        keeps_recomputed=keeps_recomputed, optimizer_groups=optimizer_groups,
        passes_again=compares or reference == "base",
    )  # fmt: skip


def _with_plain_constants(parameter: Parameter) -> Parameter:
    """A parameter in NF4, whose constants were counted as doubly quantised, with one in fp32 for each block
    of 64 and a code book of 16 (bitsandbytes 0.50.2, functional.py, ``QuantState``)."""
    if not parameter.stored_bytes:
        return parameter
    return replace(parameter, stored_bytes=parameter.numel + 4 * -(-2 * parameter.numel // 64) + 4 * 16)


def _with_rank(parameter: Parameter, traced: int, rank: int) -> Parameter:
    """An adapter matrix, (rank, in) or (out, rank), of another rank."""
    if not parameter.trainable or ".lora_" not in parameter.name:
        return parameter
    axis = 0 if ".lora_A." in parameter.name else 1
    shape = list(parameter.shape)
    if shape[axis] != traced:
        return parameter
    shape[axis] = rank
    return replace(parameter, shape=tuple(shape))


@frozen_dataclass(slots=False, eq=False)
class Overlay:
    """DeepSpeed's bytes over one pass, to be laid over the activations: one entry a mark.

    ``during[i]`` is the most while mark i is handled, ``after[i]`` what stays; both count the
    persistent state too. Between marks i−1 and i, ``after[i−1]`` holds (``start`` before the first).
    """

    start: int
    during: tuple[int, ...]
    after: tuple[int, ...]

    def raised(self, size: int) -> Overlay:
        """The same with so many bytes more at every instant."""
        return Overlay(
            start=self.start + size,
            during=tuple([size + d for d in self.during]),
            after=tuple([size + a for a in self.after]),
        )

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Bytes on the way to each mark."""
        return (self.start, *self.after[:-1])

    @cached_property
    def stretches(self) -> tuple[tuple[tuple[int, int], int], ...]:
        """Marks on the way to which the level is the same: first, one past the last; bytes."""
        before = self.before
        starts = [0, *(i for i in range(1, len(before)) if before[i] != before[i - 1])]
        return tuple(((a, b), before[a]) for a, b in pairwise([*starts, len(before)]))

    @cached_property
    def bursts(self) -> tuple[tuple[int, int], ...]:
        """Marks while whose handling more is live than on the way to them, and how much."""
        pairs = zip(self.during, self.before, strict=True)
        return tuple((i, during) for i, (during, before) in enumerate(pairs) if during > before)


_LAYER = re.compile(r"^(?:.*?\.)?(?:layers|layer|h|blocks|block)\.\d+(?=\.|$)")


def block(size_bytes: int) -> int:
    """What the caching allocator gives for a tensor (``kMinBlockSize``, c10/core/AllocatorConfig.h)."""
    return -(-size_bytes // 512) * 512


def layers_of(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """The decoder layers, by the names of their modules, in order."""
    matches = (_LAYER.match(parameter.name) for parameter in parameters)
    return tuple(dict.fromkeys(match.group() for match in matches if match is not None))


def stacks_of(parameters: Iterable[Parameter]) -> frozenset[str]:
    """The lists that hold the layers."""
    return frozenset(layer.rpartition(".")[0] for layer in layers_of(parameters))


def embeddings_of(model: RankModel) -> tuple[str | None, str | None]:
    """The input embedding and the head, by the names of their modules."""
    layers = tuple(f"{layer}." for layer in layers_of(model.parameters))
    names = [p.name for p in model.parameters if len(p.shape) == 2 and not p.name.startswith(layers)]
    names = [name for name in names if ".lora_" not in name]
    if not names:
        return None, None
    embedding = names[0].rpartition(".")[0]
    tied = [alias for alias, name in model.profile.ties.items() if name == names[0]]
    head = tied[-1] if tied else names[-1]
    return embedding, head.rpartition(".")[0]


def highest(activations: Pass, overlay: Overlay) -> float:
    """The most live at once over the pass. Bytes."""
    peaks, levels = activations.peaks, activations.levels
    best = 0.0
    if len(overlay.stretches) * 4 < len(peaks):
        highest_known = activations.highest
        for marks, level in overlay.stretches:
            top = highest_known.get(marks)
            if top is None:
                top = highest_known[marks] = max(peaks[marks[0] : marks[1]])
            if top + level > best:
                best = top + level
    else:
        best = max(map(add, peaks, overlay.before))
    for index, during in overlay.bursts:
        total = levels[index] + during
        if total > best:
            best = total
    return best


def where(activations: Pass, overlay: Overlay) -> tuple[int, bool]:
    """(mark, whether on the way to it rather than at it) of the highest instant."""
    best, instant = -1.0, (0, True)
    before = overlay.start
    for index, (during, after) in enumerate(zip(overlay.during, overlay.after, strict=True)):
        if activations.peaks[index] + before > best:
            best, instant = activations.peaks[index] + before, (index, True)
        if activations.levels[index] + during > best:
            best, instant = activations.levels[index] + during, (index, False)
        before = after
    return instant
