"""ZeRO stage 3: gradients into the partition, and the optimizer's step (``zero/stage3.py``, 0.19.8)."""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import FP64, ElementBytes, RankModel
from zerokit.memory.replay.model_states import on_device, sub_groups
from zerokit.memory.replay.optimizers import optimizer_temporaries
from zerokit.memory.replay.zero_3_fetch_order import modules_of

_NORM_ELEMENTS = 250_000_000  # _constant_buffered_norm2


class Gradients:
    """One rank's gradients, and the optimizer's step. Components go into the ledger given."""

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int, ledger: Ledger) -> None:
        self.model = model
        self.settings = settings
        self.zero = settings.zero
        self.ranks = ranks
        self.ledger = ledger
        self.element_bytes = ElementBytes.of(settings)
        self.modules = modules_of(model)
        parameter_bytes = model.element_bytes(self.element_bytes.parameter)
        self.trained_bytes = max(
            (w for w, t in zip(parameter_bytes, self.modules.trainable, strict=True) if t),
            default=self.element_bytes.parameter,
        )
        self.offload_optimizer = self.zero.offload_optimizer.device != "none"
        self.reduced_bytes = model.reduced_element_bytes(settings)
        self.buckets: dict[int, list[int]] = {
            comm_bytes: [] for comm_bytes in model.bucket_element_bytes(settings)
        }
        self.elements = dict.fromkeys(self.buckets, 0)
        self.unbuffered_bytes = dict.fromkeys(self.buckets, 0)  # bytes of gradients that are in no buffer

    def gradient_ready(self, index: int, boundary: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads`` and ``__add_grad_to_ipg_bucket``."""
        size, comm_bytes = self.modules.sizes[index], self.reduced_bytes[index]
        if self.elements[comm_bytes] + size > self.zero.reduce_bucket_size and self.elements[comm_bytes]:
            self._reduce(comm_bytes, boundary)
        fits = (
            self.zero.contiguous_gradients
            and self.elements[comm_bytes] + size <= self.zero.reduce_bucket_size
        )
        if not fits:
            self.ledger.adopt(Component.GRADIENTS, size * self.trained_bytes)
            self.unbuffered_bytes[comm_bytes] += size * self.trained_bytes
        self.buckets[comm_bytes].append(index)
        self.elements[comm_bytes] += size

    def flush(self, boundary: bool) -> None:
        """What is left in the buckets at the end of backward."""
        for comm_bytes in self.buckets:
            self._reduce(comm_bytes, boundary)

    def _reduce(self, comm_bytes: int, boundary: bool) -> None:
        """``__reduce_and_partition_ipg_grads``: reduce-scatter, then into the partition."""
        bucket = self.buckets[comm_bytes]
        if not bucket:
            return
        sizes = [self.modules.sizes[i] for i in bucket]
        shares = [-(-size // self.ranks) for size in sizes]
        converted = interleaved = 0
        is_unbuffered = not self.zero.contiguous_gradients or sum(sizes) > self.zero.reduce_bucket_size
        if is_unbuffered and comm_bytes != self.trained_bytes:  # the bucket's precision is this already
            converted = sum(sizes) * comm_bytes
        if len(sizes) > 1 or sizes[0] % self.ranks:  # reduce_scatter_coalesced interleaves
            interleaved = sum(shares) * self.ranks * comm_bytes
        self.ledger.add(Component.REDUCE_COPY, converted + interleaved)
        if self.element_bytes.accumulation != comm_bytes:
            kept_bytes = sum(shares) * self.element_bytes.accumulation
            self.ledger.add(Component.REDUCE_COPY, kept_bytes)
        else:  # the shares are views
            kept_bytes = interleaved or converted
        self.ledger.set(
            Component.REDUCE_COPY, kept_bytes
        )  # __avg_scatter_grads has returned (stage3.py:1678)
        if self.offload_optimizer and boundary:
            # .to(device); of it the norm, piece by piece, then the fp32 copy
            share = max(shares)
            norm = FP64 * min(share, _NORM_ELEMENTS)
            self.ledger.add(Component.OFFLOAD_COPY, share * self.element_bytes.accumulation)
            self.ledger.burst(Component.OFFLOAD_COPY, max(norm, share * self.element_bytes.master))
            self.ledger.add(Component.OFFLOAD_COPY, -share * self.element_bytes.accumulation)
        self.ledger.set(Component.REDUCE_COPY, 0)
        self.ledger.add(Component.GRADIENTS, -self.unbuffered_bytes[comm_bytes])
        self.unbuffered_bytes[comm_bytes] = self.elements[comm_bytes] = 0
        bucket.clear()

    def step(self) -> None:
        """``step``: one sub-group at a time."""
        trainable = [s for s, t in zip(self.modules.sizes, self.modules.trainable, strict=True) if t]
        shares = [-(-size // self.ranks) for size in trainable]
        if self.offload_optimizer:
            for elements in on_device(self.model, self.zero, self.ranks):  # torch's AdamW (stage3.py:317)
                self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, elements * self.element_bytes.master)
        else:
            self.ledger.burst(Component.GRADIENT_NORM, FP64 * max(shares, default=0))
            for elements in sub_groups(self.model, self.zero, self.ranks):
                flat = elements * self.element_bytes.accumulation if len(trainable) > 1 else 0
                self.ledger.add(Component.FLAT_GRADIENT, flat)
                if self.element_bytes.accumulation != self.element_bytes.master:
                    self.ledger.add(Component.FP32_GRADIENT, elements * self.element_bytes.master)
                    self.ledger.add(Component.FLAT_GRADIENT, -flat)
                    flat = 0
                temporaries = elements * self.element_bytes.master * optimizer_temporaries(self.settings)
                self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
                self.ledger.add(Component.FLAT_GRADIENT, -flat)
                self.ledger.set(Component.FP32_GRADIENT, 0)
