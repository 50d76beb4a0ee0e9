"""Model states: what stays allocated, and the peak while DeepSpeed sets it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby

from zerokit.domain.client_optimizers import ClientOptimizer, client_optimizer
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import ElementBytes, Overlay, RankModel, block
from zerokit.values import frozen_dataclass, replace

OPTIMIZER_STATES = {
    "adam": 2, "adamw": 2, "fusedadam": 2, "onebitadam": 2, "lamb": 2, "fusedlamb": 2,
    "lion": 1, "sgd": 0, "adagrad": 1, "muon": 1, "cpuadam": 2, "deepspeedcpuadam": 2,
    "adadelta": 2, "adafactor": 1, "adamax": 2, "asgd": 1, "nadam": 2, "radam": 2, "rmsprop": 1, "rprop": 2,
}  # fmt: skip
"""Values per parameter that the optimizer keeps beside the master weight. ZeRO steps flat partitions, of
which Adafactor, made for rows and columns of matrices, keeps a whole variance
(torch/optim/_adafactor.py)."""

FOREACH_TEMPORARIES = {
    "adagrad": 2, "adadelta": 2, "adafactor": 1, "adamax": 1, "asgd": 1, "nadam": 1, "radam": 1, "rmsprop": 1,
    "rprop": 3,
}  # fmt: skip
"""Lists of temporaries of torch's own optimizers that work on lists of tensors, where it is not none (torch
2.13, measured; Rprop's 2.25 rounded up)."""


def optimizer_name(settings: TrainingSettings) -> str:
    """Type of the optimizer in the configuration, in lower case."""
    return (settings.optimizer or "AdamW").lower()


def client(settings: TrainingSettings) -> ClientOptimizer | None:
    """The optimizer that the script makes, where it is one that is known."""
    return client_optimizer(settings.client_optimizer)


def optimizer_values(settings: TrainingSettings) -> int:
    """State values per parameter of the configured optimizer."""
    if (client_made := client(settings)) is not None:
        return client_made.values
    name = optimizer_name(settings)
    if name == "sgd" and settings.momentum:
        return 1
    return OPTIMIZER_STATES.get(name, 2)


def optimizer_bytes(settings: TrainingSettings) -> int:
    """Bytes of state per parameter of an optimizer that keeps its values as its engine's optimizers do."""
    return optimizer_values(settings) * settings.state_element_bytes


def state_bytes(settings: TrainingSettings, tensors: Sequence[int]) -> int:
    """Bytes of optimizer state that torch allocates for tensors of so many elements each."""
    client_made = client(settings)
    if client_made is None:
        return sum(tensors) * optimizer_bytes(settings)
    return client_made.code_bytes(tensors) + sum(client_made.device_bytes(elements) for elements in tensors)


def own_state_bytes(
    settings: TrainingSettings, tensors: Sequence[tuple[int, int]], wide: Container[int] = ()
) -> int:
    """Bytes of the states of tensors, (elements, bytes of one) each, that are stepped as the script has them:
    torch's are like the tensors, and a fused Adam keeps its step counters on the GPU too
    (torch/optim/adamw.py); others have dtypes of their own. ``wide``: positions of those in 32 bits."""
    made = client(settings)
    if made is None or made.like_stepped:
        fused = made is None and "adam" in optimizer_name(settings) and not settings.torch_adam
        counters = len(tensors) * block(4) if fused else 0
        return optimizer_values(settings) * sum(block(numel * size) for numel, size in tensors) + counters
    rows = [(replace(made, bits=32) if i in wide else made, *tensor) for i, tensor in enumerate(tensors)]
    codes = made.code_bytes(numel for row, numel, _ in rows if row is made)
    return codes + sum(block(row.device_bytes(numel, size)) for row, numel, size in rows)


def managed_bytes(settings: TrainingSettings, tensors: Sequence[int]) -> int:
    """Bytes of optimizer state in CUDA managed memory, which torch does not count."""
    client_made = client(settings)
    return sum(client_made.managed_bytes(elements) for elements in tensors) if client_made is not None else 0


def least_state_bytes(settings: TrainingSettings) -> int:
    """Bytes of state per parameter that torch allocates at least."""
    client_made = client(settings)
    if client_made is None:
        return optimizer_bytes(settings)
    return 0 if client_made.paged else client_made.values * client_made.bits // 8


def step_temporary_bytes(settings: TrainingSettings, tensors: Sequence[int], size: int) -> int:
    """What the step of tensors of so many elements, ``size`` bytes in all, allocates at its peak. DeepSpeed's
    fused kernels need nothing, nor does torch's SGD."""
    if (client_made := client(settings)) is not None:
        return client_made.step_temporary_bytes(tensors, size)
    name = optimizer_name(settings)
    adam = settings.torch_adam and "adam" in name
    return (1 if adam else FOREACH_TEMPORARIES.get(name, 0)) * size


@frozen_dataclass(eq=False)
class Share:
    """What of a group's flat parameter buffer one data-parallel rank owns.

    ``fragments[i]`` is how many elements of trainable parameter i lie in it; whole parameters that
    touch it are held (``get_partition_info``).
    """

    size: int
    fragments: Mapping[int, int]
    whole: int


@frozen_dataclass(eq=False)
class Partition:
    """What one data-parallel rank owns of the flat buffers, of which each of the optimizer's groups has one.
    ``size``, ``fragments``, ``whole``: as of one group, of all of them. ``placed``: of each trainable
    parameter, where it ends in its group's buffer, and the size of that one's partitions."""

    rank: int
    count: int
    groups: tuple[Share, ...]
    size: int
    fragments: Mapping[int, int]
    whole: int
    placed: Mapping[int, tuple[int, int]]

    def owners(self, index: int, size: int) -> tuple[int, int]:
        """The first and the last rank that own some of a parameter with so many elements."""
        end, share = self.placed[index]
        return (end - size) // share, (end - 1) // share


@lru_cache(maxsize=256)
def _buffers(
    model: RankModel, count: int, round_robin: bool
) -> tuple[tuple[Sequence[int], Sequence[int], int], ...]:
    """Of each group its parameters, where they end in its buffer, and the size of a partition: padded to
    2·count elements.

    ``round_robin``: parameters 0, count, 2·count, … come first, then 1, … (``_round_robin_reorder``).
    """
    buffers = []
    for group in model.trainable_groups:
        order = [i for first in range(count) for i in group[first::count]] if round_robin else group
        ends = list(accumulate(model.trainable_sizes[i] for i in order))
        alignment = 2 * count
        buffers.append((order, ends, -(-ends[-1] // alignment) * alignment // count))
    return tuple(buffers)


@lru_cache(maxsize=1024)
def partition(model: RankModel, rank: int, count: int, *, round_robin: bool = False) -> Partition:
    """The partition of data-parallel ``rank`` of ``count``; ``round_robin``: ``round_robin_gradients``."""
    sizes, buffers = model.trainable_sizes, _buffers(model, count, round_robin)
    groups = []
    for order, ends, size in buffers:
        low, high = rank * size, (rank + 1) * size
        fragments: dict[int, int] = {}
        position = bisect_right(ends, low)
        while position < len(order) and (start := ends[position] - sizes[order[position]]) < high:
            fragments[order[position]] = min(ends[position], high) - max(start, low)
            position += 1
        groups.append(Share(size=size, fragments=fragments, whole=sum(sizes[i] for i in fragments)))
    placed = {
        index: (end, size) for order, ends, size in buffers for index, end in zip(order, ends, strict=True)
    }
    return Partition(
        rank=rank,
        count=count,
        groups=tuple(groups),
        size=sum(group.size for group in groups),
        fragments={index: owned for group in groups for index, owned in group.fragments.items()},
        whole=sum(group.whole for group in groups),
        placed=placed,
    )


class GradientReduction(ABC):
    """One rank's gradients over the micro-steps of an optimizer step, and the step. Bytes go to the ledger.
    ``boundary``: the last micro-step before the optimizer's; ``first``: the first after it."""

    def __init__(
        self, model: RankModel, settings: DeepSpeedSettings, part: Partition, ledger: Ledger
    ) -> None:
        self.model = model
        self.settings = settings
        self.zero = settings.zero
        self.part = part
        self.ledger = ledger
        self.element_bytes = ElementBytes.of(settings)
        self.sizes = model.trainable_sizes

    def backward(self, boundary: bool, first: bool) -> Overlay:
        """Every gradient in the order of the backward pass."""
        return self._held(first)

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """Autograd has made the gradient of trainable parameter ``index``: it is kept, or added to what is
        there."""
        if first:
            self.ledger.adopt(Component.GRADIENTS, self.sizes[index] * self.element_bytes.gradient)

    @abstractmethod
    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """What the engine does when the last gradient is there."""

    @abstractmethod
    def step(self) -> None:
        """The optimizer's step; the gradients are gone afterwards."""

    def _open_buckets(self) -> None:
        """Allocate the buckets at the first gradient. This base has none."""
        return

    def _held(self, first: bool) -> Overlay:
        """Gradients add up until the end of backward, or are added to those that are there."""
        ledger, marks = self.ledger, self.model.gradient_indexes
        start = ledger.total
        opening = next((i for i, index in enumerate(marks) if index >= 0), len(marks))
        if opening < len(marks):
            self._open_buckets()
        level = ledger.total
        if first:
            accumulated = self.model.accumulated_gradients(self.element_bytes.gradient)
            after = [level + size for size in accumulated]
            ledger.adopt(Component.GRADIENTS, accumulated[-1])
        else:
            after = [level] * len(marks)
        after[:opening] = [start] * opening
        during = [*after[:opening], *chain([level], after[opening:])][: len(marks)]
        return Overlay(start=start, during=tuple(during), after=tuple(after))


def runs_bf16_optimizer(settings: DeepSpeedSettings) -> bool:
    """Whether the engine takes ``BF16_Optimizer`` (``_do_optimizer_sanity_check``; engine.py:2305, 0.19.8)
    in place of the ZeRO optimizer: states are divided, but every rank keeps one flat fp32 buffer of all
    gradients for good, and no bucket."""
    element_bytes = ElementBytes.of(settings)
    return (
        settings.zero.stage == 1
        and settings.precision == "bf16"
        and (element_bytes.parameter, element_bytes.accumulation) == (2, 4)
        and settings.zero.offload_optimizer.device == "none"
    )


class Bf16OptimizerGradients(GradientReduction):
    """One rank's gradients: held as they come until the step, added into the flat buffer after each
    backward pass. The buffer is one of the rank's persistent states."""

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``update_hp_grads`` (bf16_optimizer.py:523), then ``buffered_allreduce_fallback`` of the groups'
        buffers: views of them, joined up to a limit and converted for communication (engine.py:3801)."""
        self.ledger.burst(Component.GRADIENT_COPY, self.model.largest * 4)
        joined: list[int] = []
        for group in self.part.groups if boundary else ():
            joined.append(group.size * self.part.count)
            if sum(joined) > ALL_REDUCE_ELEMENTS or group is self.part.groups[-1]:
                sent = self.element_bytes.communication
                each = 4 * (len(joined) > 1) + sent * (sent != 4)
                self.ledger.burst(Component.REDUCE_COPY, sum(joined) * each)
                joined = []

    def step(self) -> None:
        """``step``: the partitions' gradients are views of the buffers."""
        for group in self.part.groups:
            temporaries = step_temporary_bytes(self.settings, [group.size], group.size * 4)
            self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
        self.ledger.set(Component.GRADIENTS, 0)


ALL_REDUCE_ELEMENTS = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py

CUBLAS_THREADS = 2
"""Threads that multiply in training, each with a workspace from its first product on: the script's and
autograd's."""

LT_WORKSPACE_BYTES = 1 << 20
"""cublasLt's, through which products with a bias go: one for each thread that makes such
(``_getWorkspaceSize``, aten/src/ATen/cuda/CUDABlas.cpp, torch 2.11 to 2.13)."""


@frozen_dataclass
class Persistent:
    """Bytes on the GPU between steps once the optimizer has stepped, by component."""

    components: Mapping[Component, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.components.values())


def second_state_bytes(model: RankModel, settings: DeepSpeedSettings, owned: int) -> int:
    """Bytes for ``owned`` trainable elements: what DeepSpeed's Muon keeps beyond one momentum, 0 of all
    others.

    What is no matrix, and embeddings and the head, it steps with Adam, which keeps two values
    (deepspeed/__init__.py:369, ``set_optimizer_flags``).
    """
    if optimizer_name(settings) != "muon" or client(settings) is not None or not model.trainable_numel:
        return 0
    return optimizer_bytes(settings) * model.numel_beside_matrices * owned // model.trainable_numel


def _first_adagrad_bytes(model: RankModel, settings: DeepSpeedSettings) -> int:
    """What the engine's own Adagrad keeps: its state is made with it, of the whole model, before ZeRO-1/2
    make another of the partition (stage_1_and_2.py:948); ``engine.basic_optimizer`` is never released."""
    if optimizer_name(settings) != "adagrad" or settings.zero.stage == 3:
        return 0
    return model.trainable_numel * ElementBytes.of(settings).parameter


@lru_cache(maxsize=256)
def shares(model: RankModel, ranks: int) -> tuple[int, int]:
    """(elements of this rank's ZeRO-3 shard of trainable, of frozen parameters), each padded."""
    trainable = frozen = 0
    for size, parameter in zip(model.sizes, model.parameters, strict=True):
        share = -(-size // ranks)
        if parameter.trainable:
            trainable += share
        else:
            frozen += share
    return trainable, frozen


@lru_cache(maxsize=256)
def share_bytes(model: RankModel, ranks: int, element_bytes: int) -> int:
    """Bytes of this rank's ZeRO-3 shard of all parameters; ``element_bytes``: of the training dtype."""
    return sum(
        -(-size // ranks) * width
        for size, width in zip(model.sizes, model.element_bytes(element_bytes), strict=True)
    )


def reference_bytes(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> int:
    """Bytes of the reference model's weights and buffers, which has an engine of its own: of stage 3 like the
    policy's, else of stage 0 (trl/models/utils.py:246, 1.16, ``prepare_deepspeed``)."""
    zero = settings.zero
    if not model.has_copy:
        return 0
    if zero.stage < 3:
        return sum(model.sizes) * settings.parameter_bytes + model.profile.buffer_bytes
    own = 0 if zero.offload_param.device != "none" else share_bytes(model, ranks, settings.parameter_bytes)
    return own + model.profile.buffer_bytes


def second_copy_bytes(model: RankModel, zero: ZeroSettings, element_bytes: int) -> int:
    """hpZ's share of every weight inside a group, made with its partition (``_partition_param_sec``,
    runtime/zero/partition_parameters.py:1900); it lies where offloaded weights do. It comes layer by layer in
    forward and goes with the step (stage3.py:2846): peaks are those with all of it."""
    if zero.zero_hpz_partition_size <= 1 or zero.offload_param.device != "none":
        return 0
    return share_bytes(model, zero.zero_hpz_partition_size, element_bytes)


def stepped_tensors(
    model: RankModel, settings: DeepSpeedSettings, part: Partition, ranks: int
) -> Sequence[int]:
    """Elements of each tensor that a rank's optimizer steps; together, where their sum is all that counts."""
    stage = settings.zero.stage
    if client(settings) is None:
        return (shares(model, ranks)[0] if stage == 3 else part.size if stage else model.trainable_numel,)
    if stage == 3:
        return sub_groups(model, settings.zero, ranks)
    return [part.size] if stage else model.trainable_sizes


def beside_states(model: RankModel, stage: int = 0) -> dict[Component, int]:
    """Workspaces of cuBLAS and cublasLt, and buffers; ``stage``: of ZeRO, 0 under another engine. Autograd's
    thread makes products with a bias where it runs layers again."""
    size = CUBLAS_THREADS * model.cublas_bytes
    if size and model.adds_bias_in_product(stage):
        size += LT_WORKSPACE_BYTES * (2 if model.checkpointing in ("full", "reentrant") else 1)
    sizes = {Component.CUBLAS_WORKSPACE: size, Component.BUFFERS: model.profile.buffer_bytes}
    return {part: size for part, size in sizes.items() if size}


def persistent(model: RankModel, settings: DeepSpeedSettings, part: Partition, ranks: int) -> Persistent:
    """The steady state of one rank, before a step's gradients and activations."""
    zero, element_bytes = settings.zero, ElementBytes.of(settings)
    components = beside_states(model, zero.stage)
    if reference := reference_bytes(model, settings, ranks):
        components[Component.SCRIPT] = reference
    if zero.stage == 3:
        trainable, _ = shares(model, ranks)
        if zero.offload_param.device == "none":
            components[Component.PARAMETERS] = share_bytes(model, ranks, element_bytes.parameter)
            if second := second_copy_bytes(model, zero, element_bytes.parameter):
                components[Component.SECOND_COPY] = second
        on_gpu = sum(on_device(model, zero, ranks))
        if zero.offload_optimizer.device == "none":
            # a copy in fp32 training too: _create_fp32_partitions compares a device with its name, in vain
            components[Component.MASTER_WEIGHTS] = trainable * element_bytes.master
            components[Component.OPTIMIZER_STATES] = state_bytes(
                settings, stepped_tensors(model, settings, part, ranks)
            ) + second_state_bytes(model, settings, trainable)
            components[Component.GRADIENT_PARTITION] = trainable * element_bytes.accumulation
        elif on_gpu:
            components[Component.MASTER_WEIGHTS] = on_gpu * element_bytes.master
            components[Component.OPTIMIZER_STATES] = state_bytes(settings, [on_gpu]) + second_state_bytes(
                model, settings, on_gpu
            )
            components[Component.FP32_GRADIENT] = on_gpu * element_bytes.master
        if zero.contiguous_gradients:
            components[Component.GRADIENT_BUCKET] = zero.reduce_bucket_size * sum(
                model.bucket_element_bytes(settings)
            )
        return Persistent(components=components)
    components[Component.PARAMETERS] = model.trainable_numel * element_bytes.parameter + model.frozen_bytes(
        element_bytes.parameter
    )
    if first := _first_adagrad_bytes(model, settings):
        components[Component.FIRST_OPTIMIZER] = first
    if zero.stage == 0:
        if element_bytes.parameter == 2:
            components[Component.MASTER_WEIGHTS] = 4 * model.trainable_numel
        components[Component.OPTIMIZER_STATES] = state_bytes(
            settings, stepped_tensors(model, settings, part, ranks)
        ) + second_state_bytes(model, settings, model.trainable_numel)
        return Persistent(components=components)
    if zero.offload_optimizer.device == "none":
        components[Component.MASTER_WEIGHTS] = part.size * element_bytes.master
        states = state_bytes(settings, [part.size]) + second_state_bytes(model, settings, part.size)
        components[Component.OPTIMIZER_STATES] = states
        if runs_bf16_optimizer(settings):
            components[Component.FP32_GRADIENT] = part.size * part.count * 4
    else:
        largest = model.largest
        components[Component.OFFLOAD_BUFFER] = largest * element_bytes.parameter
    return Persistent(components=components)


def flattening_bytes(model: RankModel, settings: DeepSpeedSettings) -> int:
    """Allocated while ZeRO-1/2 copies the trained weights into a flat buffer of each group on the GPU. Bytes.

    It does so only where the card has room for the copy: else the weights move to the CPU, are joined there
    and come back (``stage_1_and_2.py:446-520``, 0.19.8). Stages 0 and 3 and ``BF16_Optimizer`` never ask: 0.
    """
    if settings.zero.stage not in (1, 2) or runs_bf16_optimizer(settings):
        return 0
    groups = (sum(model.trainable_sizes[index] for index in group) for group in model.trainable_groups)
    trained = (model.trainable_numel + max(groups, default=0)) * settings.parameter_bytes
    weights = model.frozen_bytes(settings.parameter_bytes) + _first_adagrad_bytes(model, settings)
    reference = reference_bytes(model, settings, ranks=1)
    return weights + trained + model.profile.buffer_bytes + reference


def init_peak(model: RankModel, settings: DeepSpeedSettings, part: Partition, ranks: int) -> int:
    """The most allocated while ``deepspeed.initialize`` runs, :func:`flattening_bytes` apart. Bytes. Below
    stage 3 the model comes from the CPU; at stage 3 it is built under ``deepspeed.zero.Init``."""
    zero, element_bytes = settings.zero, ElementBytes.of(settings)
    parameters = model.trainable_numel * element_bytes.parameter + model.frozen_bytes(element_bytes.parameter)
    flat = model.trainable_numel * element_bytes.parameter
    offload = zero.offload_optimizer.device != "none"
    if zero.stage == 3:
        return _init_stage3(model, settings, ranks)
    if zero.stage == 0:
        if element_bytes.parameter == 4:
            return parameters
        master = 4 * model.trainable_numel
        stepped = stepped_tensors(model, settings, part, ranks)
        states = state_bytes(settings, stepped)
        if settings.torch_adam or client(settings) is not None:
            # FP16_UnfusedOptimizer: gradients in both precisions, what the optimizer's step allocates
            return parameters + flat + 2 * master + states + step_temporary_bytes(settings, stepped, master)
        # clones and the flat copy of them; the flat copy cloned into fp32; gradients and Adam's first step
        return max(
            parameters + 2 * flat,
            parameters + flat + master,
            parameters + 2 * master + 2 * flat * states // (4 * model.trainable_numel),
        )
    share, master = part.size * element_bytes.parameter, part.size * element_bytes.master
    first = _first_adagrad_bytes(model, settings)
    parameters += first
    if offload:
        # the clone is converted to fp32 on the GPU before it goes to the CPU
        largest = model.largest * element_bytes.parameter
        return max(parameters + share, parameters + largest)
    if runs_bf16_optimizer(settings):
        gradients = part.size * part.count * 4
        return max(parameters + flat, parameters + share + master, parameters + master + gradients)
    state = (
        state_bytes(settings, [part.size]) if first else 0
    )  # Adagrad's appears with it, before the first step
    return max(parameters + share + master, parameters + 2 * master + state)


def _init_stage3(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> int:
    zero, element_bytes = settings.zero, ElementBytes.of(settings)
    trainable, _ = shares(model, ranks)
    on_gpu = zero.offload_param.device == "none"
    weights = share_bytes(model, ranks, element_bytes.parameter) if on_gpu else 0
    weights += second_copy_bytes(model, zero, element_bytes.parameter)
    building = most_while_building(model, ranks, on_gpu) * element_bytes.parameter
    bucket = (
        zero.reduce_bucket_size * sum(model.bucket_element_bytes(settings))
        if zero.contiguous_gradients
        else 0
    )
    # create_reduce_and_remove_grad_hooks gathers every trainable parameter once, one after the other
    gathered = model.largest * element_bytes.parameter
    if not on_gpu:
        gathered += -(-model.largest // ranks) * element_bytes.parameter
    if zero.offload_optimizer.device != "none":
        return max(building, weights + bucket + gathered)
    master = converting = trainable * element_bytes.master
    if element_bytes.parameter != element_bytes.master:
        # `_create_fp32_partitions`: each group is converted, then cloned; the one before is held till then
        groups = sub_groups(model, zero, ranks)
        cloned = before = most = 0
        for group in groups:
            most = max(most, cloned + before + group, cloned + 2 * group)
            cloned, before = cloned + group, group
        converting = most * element_bytes.master
    gradients = trainable * element_bytes.accumulation
    return max(building, weights + converting, weights + master + bucket + gradients + gathered)


def most_while_building(model: RankModel, ranks: int, on_gpu: bool) -> int:
    """Elements at most while ``zero.Init`` makes one module after the other: what is tied to another once the
    model stands is made too, after all others; adapters come last."""
    sizes = dict(zip((p.name for p in model.parameters), model.sizes, strict=True))
    base = [name for name in sizes if ".lora_" not in name]
    built = [(name, sizes[name]) for name in base]
    built += [(alias, sizes[name]) for alias, name in model.profile.ties.items() if name in sizes]
    adapters = [(name, size) for name, size in sizes.items() if ".lora_" in name]
    shares = sum(-(-sizes[name] // ranks) for name in base) if on_gpu else 0
    return max(
        _most_while_sharing(built, ranks, on_gpu),
        shares + _most_while_sharing(adapters, ranks, on_gpu),
    )


def _most_while_sharing(built: Iterable[tuple[str, int]], ranks: int, on_gpu: bool) -> int:
    """Parameters of a module are whole until all are made; then each leaves its share."""
    shared = most = 0
    for _, layer in groupby(built, key=lambda pair: pair[0].rpartition(".")[0]):
        sizes = [size for _, size in layer]
        shares = [-(-size // ranks) if on_gpu else 0 for size in sizes]
        most = max(most, shared + sum(sizes) + shares[0])
        shared += sum(shares)
    return most


def sub_groups(model: RankModel, zero: ZeroSettings, ranks: int) -> list[int]:
    """Elements of a rank's optimizer sub-groups, whole parameters of one group each
    (``_create_fp16_sub_groups``)."""
    found: list[int] = []
    for group in model.trainable_groups:
        current = 0
        for index in group:
            current += -(-model.trainable_sizes[index] // ranks)
            if current >= zero.sub_group_size:
                found.append(current)
                current = 0
        found += [current] if current else []
    return found


def on_device(model: RankModel, zero: ZeroSettings, ranks: int) -> list[int]:
    """Elements of the sub-groups whose optimizer step stays on the GPU under a partial offload
    (``ratio``, ZeRO-Offload++): the first ones, rounded down (stage3.py:1100)."""
    groups = sub_groups(model, zero, ranks)
    return groups[: int((1 - zero.offload_optimizer.ratio) * len(groups))]
