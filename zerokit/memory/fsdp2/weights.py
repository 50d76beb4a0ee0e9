"""FSDP2's gathers and reductions, hook by hook (torch 2.13, fsdp/_fully_shard/_fsdp_param_group.py).

The caching allocator counts what the host allocates and drops, in the host's order: what streams still read
is waited for by events, which take no memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import DTYPE_BYTES, RankModel, block, embeddings_of, layers_of
from zerokit.values import frozen_dataclass

_ADAPTED = "base_model.model."


@frozen_dataclass
class Group:
    """Parameters that travel in one collective (``FSDPParamGroup``).

    Attributes:
        modules: that were handed to one call of ``fully_shard``, in its order.
        first, last: those that run first and last.
        parameters: their positions in the model, in the order of the modules.
        reshards: what forward gathered is freed after it.
    """

    modules: tuple[str, ...]
    first: str
    last: str
    parameters: tuple[int, ...]
    reshards: bool


@frozen_dataclass
class Share:
    """One parameter on one rank: dimension 0 is divided, each rank's chunk is padded to the first one's.

    Attributes:
        numel: elements of the chunk, padding included; ``whole``: of all ranks' chunks.
        kept: bytes of an element between steps; ``used``: as forward uses it.
        size: elements of the parameter itself.
        padded: ranks whose chunks are smaller than the first one's, or empty.
        made: elements of its gradient as autograd makes it: DTensor's of an embedding whose rows ranks
            divide has all rows (torch/distributed/tensor/_ops/_embedding_ops.py:62, 2.13).
        is_alias: of a weight that was tied after it was divided: it travels by itself, and its chunk is the
            other's.
    """

    name: str
    numel: int
    whole: int
    size: int
    kept: int
    used: int
    trainable: bool
    padded: int
    made: int
    is_alias: bool = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of the chunk between steps."""
        return block(self.numel * self.kept)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the gathered parameter."""
        return block(self.whole * self.used)


def shares_of(model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[Share, ...]:
    """Every parameter on rank 0 of ``ranks``, which has no padding where others have (``torch.chunk``,
    fsdp/_fully_shard/_fsdp_param.py:278)."""
    names = ("precision", "master_bytes", "frozen_bytes", "tp_size")
    return _shares_of(model, Fsdp2Settings(**{name: getattr(settings, name) for name in names}), ranks)


@lru_cache(maxsize=256)
def _shares_of(model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[Share, ...]:
    used = settings.parameter_bytes
    # as they were loaded: Accelerate upcasts what is trained (accelerate/utils/fsdp_utils.py, 1.15), PEFT its
    # adapters (peft/tuners/tuners_utils.py, autocast_adapter_dtype, 0.18)
    frozen = 4 if model.kbit_prepared else settings.frozen_bytes or used
    found = []
    embedding = f"{embeddings_of(model)[0]}.weight" if settings.tp_size > 1 else ""
    whole = next((one.numel for one in model.profile.parameters if one.name == embedding), 0)
    for parameter in model.parameters:
        rows = parameter.shape[0] if parameter.shape else 1
        each = parameter.numel // max(1, rows)
        if parameter.stored_bytes:  # bytes in a column of forward's dtype, so that no gather converts them
            rows, each = -(-parameter.numel // used), 1
        chunk = -(-rows // ranks)
        share = chunk * each
        kept = settings.master_bytes if parameter.trainable else used if parameter.stored_bytes else frozen
        found.append(
            Share(
                name=parameter.name, numel=share, whole=share * ranks, size=rows * each, kept=kept,
                used=used, trainable=parameter.trainable, padded=ranks - rows // max(1, chunk),
                made=whole if parameter.name == embedding else rows * each,
                is_alias=parameter.name in model.profile.ties,
            )
        )  # fmt: skip
    return tuple(found)


def own_shares(model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[Share, ...]:
    """List what is in memory between steps, each chunk once."""
    return tuple(share for share in shares_of(model, settings, ranks) if not share.is_alias)


_BLOCK, _NESTED_BLOCK = 64, 256
_CODES = (4 * 16, 4 * 256, 4)


def constant_bytes(model: RankModel) -> int:
    """Bytes of what is needed to unpack 4-bit weights: no parameters of a module, so that each rank holds
    them whole, on its GPU. A scale for each block in fp32, or in 8 bits with one for each of their own
    blocks, and tables of codes (bitsandbytes 0.50.2, functional.py, ``QuantState``)."""
    total = 0
    for parameter in model.parameters:
        blocks = -(-2 * parameter.numel // _BLOCK)
        plain = [4 * blocks, _CODES[0]]
        nested = [blocks, 4 * -(-blocks // _NESTED_BLOCK), *_CODES]
        is_nested = parameter.stored_bytes - parameter.numel < sum(plain)
        if parameter.stored_bytes:
            total += sum(map(block, nested if is_nested else plain))
    return total


@lru_cache(maxsize=256)
def groups_of(model: RankModel, settings: Fsdp2Settings) -> tuple[Group, ...]:
    """The groups as ``fully_shard`` makes them: of every module what no group inside it holds. The root's is
    the last, and may hold nothing."""
    calls: list[tuple[tuple[str, ...], bool]] = []
    for name in layers_of(model.parameters):
        calls.append(((name,), settings.reshard_after_forward))
    embedding, head = embeddings_of(model)
    if settings.wrapping == "accelerate":
        calls += _around_layers(model, settings, embedding, head)
    inside = _inside(model)
    taken: set[int] = set()
    groups = []
    for modules, reshards in calls:
        own = [index for module in modules for index in inside.get(module, ())]
        own = [index for index in dict.fromkeys(own) if index not in taken]
        taken |= set(own)
        first = embedding if embedding in modules else modules[0]
        last = modules[-1] if modules[-1] != embedding else modules[0]
        groups.append(
            Group(modules=modules, first=first or "", last=last, parameters=tuple(own), reshards=reshards)
        )
    rest = tuple(index for index in range(len(model.parameters)) if index not in taken)
    return (*groups, Group(modules=("",), first="", last="", parameters=rest, reshards=False))


def _inside(model: RankModel) -> dict[str, list[int]]:
    """The parameters of every module, those of the modules in it among them."""
    aliases = {name: alias for alias, name in model.profile.ties.items()}
    found = defaultdict[str, list[int]](list)
    for index, parameter in enumerate(model.parameters):
        modules: dict[str, None] = {}
        for name in (parameter.name, aliases.get(parameter.name, "")):
            while name := name.rpartition(".")[0]:
                modules[name] = None
        for module in modules:
            found[module].append(index)
    return found


def _around_layers(
    model: RankModel, settings: Fsdp2Settings, embedding: str | None, head: str | None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The input embedding by itself, and final norm and head together, gathered to the end of backward
    (``fsdp2_prepare_model``, accelerate/utils/fsdp_utils.py:741, 1.15): tied ones all three. Transformers
    does the same, but leaves a tied head to the root."""
    tied = f"{embedding}.weight" == model.profile.ties.get(f"{head}.weight")
    if embedding is not None and not tied:
        yield (embedding,), settings.reshard_after_forward
    is_roots = tied and settings.tp_size > 1
    tail = (_final_norm(model), embedding if tied else None, None if is_roots else head)
    modules = tuple(module for module in tail if module is not None)
    if modules:
        yield modules, False


def _final_norm(model: RankModel) -> str | None:
    """The last norm among the direct children of the base model; under adapters none is found, since the
    model around it is taken for the base."""
    if any(p.name.startswith(_ADAPTED) for p in model.parameters):
        return None
    found = None
    for parameter in model.parameters:
        module, _, _ = parameter.name.rpartition(".")
        if module.count(".") == 1 and len(parameter.shape) == 1:
            found = module
    return found


@frozen_dataclass
class GroupBytes:
    """Bytes of one group on one rank, as its collectives allocate them.

    Attributes:
        shares: of its parameters.
        copied: of the shares in the dtype that travels, made before the gather; 0: they travel as they are.
        flat: of the buffer that the gather writes to.
        gathered: of the whole parameters, copied out of it.
        reduced: of the buffer that the reduction reads, and ``scattered`` of what it writes.
        kept: of the rank's share of the gradients, in the dtype of the shards.
    """

    shares: tuple[Share, ...]
    copied: int
    flat: int
    gathered: int
    reduced: int
    scattered: int
    kept: int


def reduce_bytes(settings: Fsdp2Settings) -> int:
    """Bytes of an element of a gradient that travels."""
    return DTYPE_BYTES[settings.reduce_dtype] if settings.reduce_dtype else settings.parameter_bytes


def bytes_of(group: Group, shares: tuple[Share, ...], settings: Fsdp2Settings, ranks: int) -> GroupBytes:
    """Bytes of one group (``foreach_all_gather``, ``foreach_reduce`` of _fsdp_collectives.py)."""
    own = tuple(shares[index] for index in group.parameters)
    trained = [share for share in own if share.trainable]
    travels = reduce_bytes(settings)
    reduced = sum(share.whole for share in trained)
    scattered = reduced // ranks
    return GroupBytes(
        shares=own,
        copied=block(sum(share.numel * share.used for share in own if share.kept != share.used)),
        flat=block(sum(share.whole * share.used for share in own)),
        gathered=sum(share.gathered_bytes for share in own),
        reduced=block(reduced * travels),
        scattered=block(scattered * travels),
        kept=block(scattered * (trained[0].kept if trained else travels)),
    )


_IDLE, _IN_BACKWARD, _REDUCED = 0, 1, 2


@dataclass(slots=True, eq=False)
class _State:
    """Of one group: ``flying``: its gather has begun and nobody has waited for it."""

    group: Group
    bytes: GroupBytes
    gathered: bool = False
    flying: bool = False
    phase: int = _IDLE
    running: set[str] = field(default_factory=set)
    uses: list[int] = field(default_factory=list)
    made: int = 0  # gradients of this backward pass, as autograd made them, in bytes
    whole: int = 0  # gradients of earlier micro-batches that were not reduced, in bytes
    held_in_all_reduce: int = 0
    has_share: bool = False  # of the gradients of an earlier micro-batch


class Weights:
    """One rank's groups over the passes of an optimizer step. Components go into the ledger given. ``ranks``:
    that a parameter is divided over."""

    def __init__(self, model: RankModel, settings: Fsdp2Settings, ranks: int, ledger: Ledger) -> None:
        self.settings = settings
        self.ranks = ranks
        self.ledger = ledger
        shares = shares_of(model, settings, ranks)
        self.states = [
            _State(group, bytes_of(group, shares, settings, ranks))
            for group in groups_of(model, settings)
            if group.parameters
        ]
        self.of_module = {name: state for state in self.states for name in state.group.modules}
        self.of_parameter = {
            share.name: (state, share) for state in self.states for share in state.bytes.shares
        }
        # ``all_states``: the root, then in the order of named_modules (_fsdp_state.py:205)
        by_position = sorted(self.states, key=lambda state: min(state.group.parameters))
        self.in_order = sorted(by_position, key=lambda state: state.group.modules != ("",))
        self.order: list[_State] = []  # of the forward passes that ended
        self.last_gather = 0  # bytes of the buffer that is held until the next copy-out
        self.reduction_input = 0  # of the last one, held until the next

    # forward

    def in_forward(self, kind: str, name: str) -> None:
        """What the hooks do at a mark of the forward pass."""
        state = self.of_module.get(name)
        if state is not None and kind == "fwd_pre":
            if not state.running:
                state.running = set(state.group.modules)
            self._unshard(state)
            self._wait(state, in_forward=True)
        elif state is not None and kind == "fwd_post":
            state.running.discard(name)
            if not state.running:
                if state.group.reshards:
                    self._reshard(state)
                state.uses.append(len(self.order))
                self.order.append(state)
        if kind == "fwd_post" and not name:
            self._drop_last_gather()

    def _unshard(self, state: _State) -> None:
        """``foreach_all_gather``."""
        if state.gathered or state.flying:
            return
        state.flying = True
        if self.ranks == 1:
            return
        copied = self._copy_in(state.bytes)
        self.ledger.add(Component.GATHER_BUFFERS, state.bytes.flat)
        self.ledger.add(Component.GATHER_COPY, -copied)

    def _copy_in(self, sizes: GroupBytes) -> int:
        """What is copied before the gather; offloaded shares one after another, then converted."""
        if not self.settings.offload:
            self.ledger.add(Component.GATHER_COPY, sizes.copied)
            return sizes.copied
        total = 0
        for share in sizes.shares:
            moved, converted = block(share.numel * share.kept), block(share.numel * share.used)
            self.ledger.add(Component.GATHER_COPY, moved)
            if share.kept != share.used:
                self.ledger.add(Component.GATHER_COPY, converted)
                self.ledger.add(Component.GATHER_COPY, -moved)
            total += converted
        return total

    def _wait(self, state: _State, *, in_forward: bool) -> None:
        """``wait_for_unshard``: in forward the buffer of a gather outlives the copy out of it, up to the end
        of the next one (a local holds it so long)."""
        if not state.flying:
            return
        state.flying, state.gathered = False, True
        if self.ranks == 1:
            # gather on one rank alone: each share is converted and copied, and held until the next one is
            before = 0
            for share in state.bytes.shares:
                moved = block(share.numel * share.kept) if self.settings.offload else 0
                converted = share.gathered_bytes if share.kept != share.used else 0
                self.ledger.add(Component.GATHER_COPY, moved + converted)
                self.ledger.add(Component.GATHER_COPY, -before - (moved if converted else 0))
                before = converted or moved
                self.ledger.add(Component.GATHERED_PARAMETERS, share.gathered_bytes)
            self.ledger.add(Component.GATHER_COPY, -before)
            return
        self.ledger.add(Component.GATHERED_PARAMETERS, state.bytes.gathered)
        if in_forward:
            self._drop_last_gather()
            self.last_gather = state.bytes.flat
        else:
            self.ledger.add(Component.GATHER_BUFFERS, -state.bytes.flat)

    def _drop_last_gather(self) -> None:
        self.ledger.add(Component.GATHER_BUFFERS, -self.last_gather)
        self.last_gather = 0

    def _reshard(self, state: _State) -> None:
        if state.gathered:
            state.gathered = False
            self.ledger.add(Component.GATHERED_PARAMETERS, -state.bytes.gathered)

    # backward

    def in_backward(self, kind: str, name: str, *, reduces: bool) -> None:
        """What the hooks do at a mark of the backward pass; ``reduces``: gradients are reduced in it."""
        if kind == "grad":
            self._gradient(name)
            return
        state = self.of_module.get(name)
        if state is None:
            return
        if kind == "bwd_pre" and name == state.group.last:
            self._before_backward(state)
        elif kind == "bwd_post" and name == state.group.first:
            self._after_backward(state, reduces=reduces)

    def _before_backward(self, state: _State) -> None:
        """``pre_backward``, with the one group that it gathers ahead (``_backward_prefetch``)."""
        if state.phase == _IN_BACKWARD:
            return
        state.phase = _IN_BACKWARD
        self._unshard(state)
        self._wait(state, in_forward=False)
        if state.uses and (position := state.uses.pop()) > 0:
            self._unshard(self.order[position - 1])

    def _gradient(self, name: str) -> None:
        """Autograd hands a gradient over; to one that is there it is added in place."""
        state, share = self.of_parameter[name]
        if state.whole and reduce_bytes(self.settings) == share.used:
            return
        size = block(share.made * share.used)
        state.made += size
        self.ledger.adopt(Component.GRADIENTS, size)

    def _after_backward(self, state: _State, *, reduces: bool) -> None:
        """``post_backward``."""
        state.phase = _REDUCED
        if not reduces:
            self._reshard(state)
            self._keep_whole(state)
            return
        if state.whole and state.made:  # added to what is there, in the dtype that travels
            self._drop_gradients(state)
        has_gradients = bool(state.made or state.whole)
        self._cut(state)
        self._reshard(state)
        self.ledger.add(Component.REDUCE_COPY, -self.reduction_input)
        self.reduction_input = 0
        if has_gradients:
            self._reduce(state)

    def _keep_whole(self, state: _State) -> None:
        """``to_accumulated_grad_if_needed``, one after another."""
        travels = reduce_bytes(self.settings)
        if state.whole:
            self._drop_gradients(state)
            return
        if not state.made:
            return
        for share in state.bytes.shares:
            if share.trainable and travels != share.used:
                converted, made = block(share.made * travels), block(share.made * share.used)
                self.ledger.add(Component.GRADIENTS, converted)
                self.ledger.add(Component.GRADIENTS, -made)
                state.made += converted - made
        state.whole, state.made = state.made, 0

    def _drop_gradients(self, state: _State) -> None:
        self.ledger.add(Component.GRADIENTS, -state.made)
        state.made = 0

    def _cut(self, state: _State) -> None:
        """``_get_grad_inner_tensor``: this rank's rows of a gradient that has all of them, copied."""
        for share in state.bytes.shares if state.made or state.whole else ():
            element_bytes = reduce_bytes(self.settings) if state.whole else share.used
            made, own = block(share.made * element_bytes), block(share.size * element_bytes)
            if made > own:
                self.ledger.add(Component.GRADIENTS, own)
                self.ledger.add(Component.GRADIENTS, -made)
                if state.whole:
                    state.whole -= made - own
                else:
                    state.made -= made - own

    def _reduce(self, state: _State) -> None:
        """``foreach_reduce``: whole gradients into one buffer, the rank's share of their mean out of it. A
        local holds the last gradient until the end where there are several ranks (``unsharded_grad``)."""
        sizes, ledger = state.bytes, self.ledger
        ledger.add(Component.REDUCE_COPY, sizes.reduced)
        self.reduction_input = sizes.reduced
        last = [share for share in sizes.shares if share.trainable][-1]
        element_bytes = reduce_bytes(self.settings) if state.whole else last.used
        held = block(last.size * element_bytes) if self.ranks > 1 else 0
        ledger.add(Component.GRADIENTS, held - state.made - state.whole)
        state.made = state.whole = 0
        ledger.add(Component.GRADIENT_PARTITION, sizes.scattered)
        is_converted = sizes.kept != sizes.scattered
        ledger.add(Component.GRADIENT_PARTITION, sizes.kept if is_converted else 0)
        goes = self.settings.offload or state.has_share  # copied to the CPU, or added to what is there
        freed = sizes.scattered if is_converted else 0
        if (
            self.settings.replicas > 1
        ):  # what they reduced is held to the end of backward (``AllReduceState``)
            state.held_in_all_reduce = sizes.scattered if is_converted or goes else 0
            freed = 0
        ledger.add(Component.GRADIENTS, -held)
        ledger.add(Component.GRADIENT_PARTITION, -freed)
        if goes and (is_converted or self.settings.replicas == 1):
            ledger.add(Component.GRADIENT_PARTITION, -sizes.kept)
        state.has_share = True

    def end_of_backward(self, *, reduces: bool) -> None:
        """``_root_post_backward_final_callback``: what no hook has reduced."""
        for state in self.in_order:
            if state.phase != _REDUCED:
                self._after_backward(state, reduces=reduces)
            state.phase = _IDLE
            state.uses.clear()
            if state.flying:
                state.flying = False
                if self.ranks > 1:
                    self.ledger.add(Component.GATHER_BUFFERS, -state.bytes.flat)
            self.ledger.add(Component.GRADIENT_PARTITION, -state.held_in_all_reduce)
            state.held_in_all_reduce = 0
        self.order.clear()
        self.ledger.add(Component.REDUCE_COPY, -self.reduction_input)
        self.reduction_input = 0

    def zero_grad(self) -> None:
        """After the optimizer's step."""
        self.ledger.set(Component.GRADIENT_PARTITION, 0)
        for state in self.states:
            state.has_share = False
