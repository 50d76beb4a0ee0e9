"""FSDP2's gathers and reductions, hook by hook (torch 2.13, fsdp/_fully_shard/_fsdp_param_group.py).

The caching allocator counts what the host allocates and drops, in the host's order: what streams still read
is waited for by events, which take no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.fsdp2.groups import (
    Group,
    GroupBytes,
    bytes_of,
    groups_of,
    reduce_bytes,
    shares_of,
)
from zerokit.memory.rank_model import RankModel, block

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
