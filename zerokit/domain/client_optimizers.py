"""Optimizers that the script makes and hands to DeepSpeed: what each keeps of a tensor that it steps.

Names are those of the Trainer's ``optim`` (transformers 5.23, trainer_optimizer.py). Under ZeRO the tensor
is a rank's flat fp32 partition; at stage 0 it is a parameter's fp32 copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.values import frozen_dataclass, replace

_PAGED_FROM = 100_000
"""Elements from which a paged state is in managed memory (bitsandbytes 0.50, optim/optimizer.py:383)."""

_CODE_BYTES = 256 * 4
"""Of a table of codes in fp32 (bitsandbytes 0.50, optim/optimizer.py:141)."""


@frozen_dataclass
class ClientOptimizer:
    """How an optimizer keeps its states.

    Attributes:
        values: state values for each element.
        bits: of one value, 32 or 8; with 8 each ``block`` values have a scale in fp32.
        smallest: elements below which an 8-bit optimizer keeps fp32.
        paged: the values of large tensors are in CUDA managed memory, which torch's allocator does not count
            and the driver moves between GPU and host; scales are not.
        temporaries: tensors of the size of what is stepped that a step allocates.
        package, class_name: where its class comes from, and its name.
        like_stepped: states have the dtype of the tensor, which DeepSpeed makes fp32.
        steps_in_init: it can step before training starts, as DeepSpeed makes it do at stage 0 in 16 bits
            (runtime/fp16/unfused_optimizer.py, initialize_optimizer_states).
    """

    values: int
    package: str
    class_name: str
    bits: int = 32
    block: int = 256
    smallest: int = 4096
    paged: bool = False
    temporaries: int = 0
    like_stepped: bool = False
    steps_in_init: bool = True

    def _value_bytes(self, elements: int) -> int:
        narrow = self.bits == 8 and elements >= self.smallest
        return self.values * elements * (1 if narrow else 4)

    def _is_paged(self, elements: int) -> bool:
        return self.paged and elements >= _PAGED_FROM

    def device_bytes(self, elements: int) -> int:
        """What torch allocates for the states of a tensor of so many elements, codes apart."""
        scales = 0
        if self.bits == 8 and elements >= self.smallest:
            scales = self.values * 4 * -(-elements // self.block)
        return scales + (0 if self._is_paged(elements) else self._value_bytes(elements))

    def code_bytes(self, tensors: Iterable[int]) -> int:
        """The tables of 8-bit codes, one for signed values and one for others: once for all tensors."""
        narrow = self.bits == 8 and any(elements >= self.smallest for elements in tensors)
        return min(self.values, 2) * _CODE_BYTES if narrow else 0

    def managed_bytes(self, elements: int) -> int:
        """What lies in CUDA managed memory for a tensor of so many elements."""
        return self._value_bytes(elements) if self._is_paged(elements) else 0


_BNB = "bitsandbytes"
# optim/optimizer.py, init_state of Optimizer1State and Optimizer2State; ademamix.py:139 keeps the fast and
# the slow average in one buffer. 32 or 8 bits by the name alone; RMSprop is never paged
# (trainer_optimizer.py:290)
_ADAMW_32 = ClientOptimizer(values=2, package=_BNB, class_name="AdamW")
_ADAMW_8 = replace(_ADAMW_32, bits=8)
_ADEMAMIX_32 = ClientOptimizer(values=3, package=_BNB, class_name="AdEMAMix")
_ADEMAMIX_8 = replace(_ADEMAMIX_32, bits=8)
_LION_32 = ClientOptimizer(values=1, package=_BNB, class_name="Lion")
_RMSPROP_32 = replace(_LION_32, class_name="RMSprop")
_SCHEDULE_FREE_ADAM = ClientOptimizer(
    values=2,
    package="schedulefree",
    class_name="AdamWScheduleFree",
    temporaries=1,
    like_stepped=True,
    steps_in_init=False,
)

CLIENT_OPTIMIZERS: Mapping[str, ClientOptimizer] = {
    "adamw_bnb_8bit": _ADAMW_8,
    "adamw_8bit": _ADAMW_8,
    "lion_8bit": replace(_LION_32, bits=8),
    "ademamix": _ADEMAMIX_32,
    "ademamix_8bit": _ADEMAMIX_8,
    "rmsprop_bnb": _RMSPROP_32,
    "rmsprop_bnb_8bit": replace(_RMSPROP_32, bits=8),
    "rmsprop_bnb_32bit": _RMSPROP_32,
    "paged_adamw_32bit": replace(_ADAMW_32, paged=True),
    "paged_adamw_8bit": replace(_ADAMW_8, paged=True),
    "paged_ademamix_32bit": replace(_ADEMAMIX_32, paged=True),
    "paged_ademamix_8bit": replace(_ADEMAMIX_8, paged=True),
    "paged_lion_32bit": replace(_LION_32, paged=True),
    "paged_lion_8bit": replace(_LION_32, bits=8, paged=True),
    # schedulefree 1.4: z and the second moment (adamw_schedulefree.py, radam_schedulefree.py), or z alone
    "schedule_free_adamw": _SCHEDULE_FREE_ADAM,
    "schedule_free_radam": replace(_SCHEDULE_FREE_ADAM, class_name="RAdamScheduleFree"),
    "schedule_free_sgd": replace(_SCHEDULE_FREE_ADAM, values=1, temporaries=0, class_name="SGDScheduleFree"),
    # optimi 0.3: both moments; its Triton kernels, taken where the tensors are on a GPU, need no temporaries
    "stable_adamw": ClientOptimizer(values=2, package="torch-optimi", class_name="StableAdamW"),
}
"""Name -> what it keeps."""


def client_optimizer(name: str | None) -> ClientOptimizer | None:
    """What is known of it; None where DeepSpeed or torch has the optimizer itself."""
    return CLIENT_OPTIMIZERS.get(name) if name else None


def with_optimizer(settings: DeepSpeedSettings, name: str | None) -> DeepSpeedSettings:
    """The settings with this optimizer: DeepSpeed's, or the script's."""
    if client_optimizer(name) is not None:
        return replace(settings, optimizer=None, client_optimizer=name)
    return replace(settings, optimizer=name, client_optimizer=None)
