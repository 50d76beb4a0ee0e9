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

_CODE_BYTES = 4
"""Of one of the values that codes stand for, in fp32 (bitsandbytes 0.50, optim/optimizer.py:141; torchao
0.17, optim/subclass_8bit.py:118)."""


@frozen_dataclass
class ClientOptimizer:
    """How an optimizer keeps its states.

    Attributes:
        values: state values for each element.
        bits: of one value, 32, 8 or 4; below 32 each ``block`` values have a scale in fp32.
        smallest: elements below which values are not narrow.
        whole_blocks: values are narrow only where the tensor's elements divide by the block, and have the
            tensor's dtype where they are not; each state has a table of codes of its own.
        paged: the values of large tensors are in CUDA managed memory, which torch's allocator does not count
            and the driver moves between GPU and host; scales are not.
        temporaries: tensors of the size of what is stepped that a step allocates.
        step_bytes: for each element of a tensor with narrow states, what its step allocates beside a second
            copy of the scales; tensors are stepped one after the other.
        tensor_seconds: that the host takes for the step of one tensor, where it steps them one by one.
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
    whole_blocks: bool = False
    paged: bool = False
    temporaries: int = 0
    step_bytes: int = 0
    tensor_seconds: float = 0.0
    like_stepped: bool = False
    steps_in_init: bool = True

    def _is_narrow(self, elements: int) -> bool:
        is_large = self.bits < 32 and elements >= self.smallest
        return is_large and (not self.whole_blocks or elements % self.block == 0)

    def _scale_bytes(self, elements: int) -> int:
        return self.values * 4 * -(-elements // self.block) if self._is_narrow(elements) else 0

    def _value_bytes(self, elements: int, tensor_bytes: int) -> int:
        if self._is_narrow(elements):
            return self.values * elements * self.bits // 8
        return self.values * elements * (tensor_bytes if self.whole_blocks else 4)

    def _is_paged(self, elements: int) -> bool:
        return self.paged and elements >= _PAGED_FROM

    def device_bytes(self, elements: int, tensor_bytes: int = 4) -> int:
        """What torch allocates for the states of a tensor of so many elements of so many bytes each, codes
        apart."""
        values = 0 if self._is_paged(elements) else self._value_bytes(elements, tensor_bytes)
        return self._scale_bytes(elements) + values

    def code_bytes(self, tensors: Iterable[int]) -> int:
        """The tables of codes: one for signed values and one for others, for each tensor or once for all."""
        narrow = sum(map(self._is_narrow, tensors))
        tables = min(self.values, 2) * (narrow if self.whole_blocks else min(narrow, 1))
        return tables * _CODE_BYTES * 2**self.bits if tables else 0

    def step_temporary_bytes(self, tensors: Iterable[int], size: int) -> int:
        """What the step of tensors of so many elements, ``size`` bytes in all, allocates at its peak."""
        if not self.step_bytes:
            return self.temporaries * size
        narrow = max(filter(self._is_narrow, tensors), default=0)
        return self.step_bytes * narrow + self._scale_bytes(narrow)

    def managed_bytes(self, elements: int) -> int:
        """What lies in CUDA managed memory for a tensor of so many elements."""
        return self._value_bytes(elements, 4) if self._is_paged(elements) else 0


BITSANDBYTES = "bitsandbytes"
# optim/optimizer.py, init_state of Optimizer1State and Optimizer2State; ademamix.py:139 keeps the fast and
# the slow average in one buffer. 32 or 8 bits by the name alone; RMSprop is never paged
# (trainer_optimizer.py:290)
_ADAMW_32 = ClientOptimizer(values=2, package=BITSANDBYTES, class_name="AdamW")
_ADAMW_8 = replace(_ADAMW_32, bits=8)
_ADEMAMIX_32 = ClientOptimizer(values=3, package=BITSANDBYTES, class_name="AdEMAMix")
_ADEMAMIX_8 = replace(_ADEMAMIX_32, bits=8)
_LION_32 = ClientOptimizer(values=1, package=BITSANDBYTES, class_name="Lion")
_RMSPROP_32 = replace(_LION_32, class_name="RMSprop")
# optim/adam.py:_new_buffer; steps are compiled, which allocates both moments in fp32, for 4 bits their codes
# in 64 bits too (40 tensors on an H200, torch 2.11: tests/data/h200/torchao-steps.jsonl); the Trainer
# has both take blocks of 256 (trainer_optimizer.py:471)
_TORCHAO_8 = ClientOptimizer(
    values=2, package="torchao", class_name="AdamW8bit", bits=8, whole_blocks=True, step_bytes=8,
    tensor_seconds=0.45e-3,
)  # fmt: skip
_SCHEDULE_FREE_ADAM = ClientOptimizer(
    values=2,
    package="schedulefree",
    class_name="AdamWScheduleFree",
    temporaries=1,
    like_stepped=True,
    steps_in_init=False,
)

CLIENT_OPTIMIZERS: Mapping[str, ClientOptimizer] = {
    "adamw_torch_8bit": _TORCHAO_8,
    "adamw_torch_4bit": replace(_TORCHAO_8, class_name="AdamW4bit", bits=4, step_bytes=24),
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


_FAIL_ON_SHARDS: Mapping[str, str] = {
    BITSANDBYTES: "bitsandbytes' kernels take no DTensors, as FSDP2's weights are: the first step fails",
    "adafactor": "the states of Transformers' Adafactor are no DTensors, as FSDP2's weights are: the first "
    "step fails",
}
"""Package of an optimizer, or its name -> why it cannot step what FSDP2 divides (bitsandbytes 0.50.2,
Transformers 5.23, torch 2.13: "got mixed torch.Tensor and DTensor")."""


def fails_on_shards(name: object) -> str | None:
    """Why the optimizer of this name cannot step FSDP2's shards; None: nothing is known against it."""
    made = CLIENT_OPTIMIZERS.get(str(name))
    return _FAIL_ON_SHARDS.get(made.package if made else str(name).lower())


def client_optimizer(name: str | None) -> ClientOptimizer | None:
    """What is known of it; None where DeepSpeed or torch has the optimizer itself."""
    return CLIENT_OPTIMIZERS.get(name) if name else None


def with_optimizer(settings: DeepSpeedSettings, name: str | None) -> DeepSpeedSettings:
    """The settings with this optimizer: DeepSpeed's, or the script's."""
    if client_optimizer(name) is not None:
        return replace(settings, optimizer=None, client_optimizer=name)
    return replace(settings, optimizer=name, client_optimizer=None)
