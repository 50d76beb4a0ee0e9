"""What every engine of training is told, and what the rooms outside an engine's own ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from zerokit.values import frozen_dataclass

TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Precision -> torch's dtype."""


@frozen_dataclass
class TrainingSettings(ABC):
    """One configuration of an engine, as far as memory and time depend on it.

    Attributes:
        engine: the engine's name, as a plan has it.
        precision: fp32, fp16 or bf16.
        micro_batch: sequences per rank and forward pass.
        gradient_accumulation: forward passes per optimizer step.
        gradient_clipping: highest norm of the gradients; 0 where they are not clipped.
        optimizer: DeepSpeed's type of the optimizer that the configuration asks for.
        client_optimizer: a name of CLIENT_OPTIMIZERS: made by the script, ``optimizer`` is None.
        torch_adam: torch's Adam, not DeepSpeed's own kernel.
        momentum: of torch's SGD.
    """

    engine: ClassVar[str]
    precision: str = "fp32"
    micro_batch: int = 1
    gradient_accumulation: int = 1
    gradient_clipping: float = 0.0
    optimizer: str | None = "AdamW"
    client_optimizer: str | None = None
    torch_adam: bool = False
    momentum: bool = False

    @property
    @abstractmethod
    def title(self) -> str:
        """The engine's way to divide a model, for people: ``ZeRO-3``."""

    @property
    @abstractmethod
    def family(self) -> tuple[object, ...]:
        """What a measured step time speaks for, batch and precision left out."""

    @property
    def zero_stage(self) -> int | None:
        """DeepSpeed's ZeRO stage, as plans publish it; None of another engine."""
        return None

    def published(self, ranks: int) -> dict[str, object]:
        """What plans publish of this engine alone, by key; ``ranks``: that train the same weights."""
        del ranks
        return {}

    @property
    @abstractmethod
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as the forward pass uses it."""

    @property
    @abstractmethod
    def state_element_bytes(self) -> int:
        """Bytes of one element of the optimizer's states."""

    @property
    @abstractmethod
    def divides_weights(self) -> bool:
        """Whether a rank holds between steps only its share of the weights."""

    @property
    @abstractmethod
    def divides_gradients(self) -> bool:
        """Whether a rank holds after backward only its share of the gradients."""

    @property
    @abstractmethod
    def divides_states(self) -> bool:
        """Whether a rank holds only its share of the optimizer's states."""

    @property
    @abstractmethod
    def optimizer_device(self) -> str:
        """Where the optimizer's states are offloaded to: none, cpu or nvme."""

    @property
    @abstractmethod
    def weights_device(self) -> str:
        """Where the weights between their uses are offloaded to: none, cpu or nvme."""

    @property
    def offloads(self) -> bool:
        """Whether weights or states are not on the GPU."""
        return self.optimizer_device != "none" or self.weights_device != "none"

    @property
    @abstractmethod
    def autocasts(self) -> bool:
        """Whether operators run in 16 bits under ``torch.autocast``, on weights of ``parameter_bytes``."""

    @property
    def product_bytes(self) -> int:
        """Bytes of one element of what matrix products take and make."""
        return 2 if self.autocasts else self.parameter_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of one element of what the model returns."""
        return self.product_bytes

    @property
    def wide_adapters(self) -> bool:
        """Whether adapters are in fp32 on weights in 16 bits, where the engine's linear function does not
        say (``has_own_linear``)."""
        return False

    @property
    def mixes_dtypes(self) -> bool:
        """Whether weights in 16 bits may lie beside others in fp32: the engine leaves each as it was
        loaded."""
        return False

    @property
    @abstractmethod
    def has_own_linear(self) -> bool:
        """Whether the engine puts a linear function in the place of torch's, which keeps its input for
        backward even where the weight is frozen."""

    @property
    @abstractmethod
    def has_own_group(self) -> bool:
        """Whether it communicates in another group of ranks than torch's default one."""

    def communicators(self, shared: int) -> int:
        """How many NCCL communicators the engine's collectives of a step take, beside those of model-parallel
        groups; ``shared``: ranks that share a sequence, where they are not all."""
        return 1
