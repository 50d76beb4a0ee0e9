"""The settings of training without an engine: one GPU, or DistributedDataParallel (torch 2.9 to 2.13)."""

from __future__ import annotations

from typing import ClassVar

from zerokit.domain.training_settings import TrainingSettings
from zerokit.values import frozen_dataclass


@frozen_dataclass
class DdpSettings(TrainingSettings):
    """One configuration of plain PyTorch.

    Attributes:
        weight_bytes: of an element of the weights as the script loads them.
        adapter_bytes: of an element of adapters: peft makes those on 16-bit weights in fp32
            (``autocast_adapter_dtype``, tuners/tuners_utils.py, 0.21).
        autocast: forward runs under ``torch.autocast``.
        by_trainer: Transformers' Trainer trains, over Accelerate: under autocast what forward returns becomes
            fp32 (``convert_outputs_to_fp32``, accelerate/accelerator.py:1830, 1.15), and embeddings keep 32
            bits of what an optimizer keeps in 8 (``create_optimizer``, transformers/trainer.py:1328, 5.23).
    """

    engine: ClassVar[str] = "ddp"
    weight_bytes: int = 2
    adapter_bytes: int = 4
    autocast: bool = False
    by_trainer: bool = False

    @property
    def title(self) -> str:
        """The name, whatever the ranks: one has nothing to reduce."""
        return "DDP"

    @property
    def family(self) -> tuple[object, ...]:
        """The name, and what decides the kernels."""
        return (self.engine, self.weight_bytes, self.autocast)

    def published(self, ranks: int) -> dict[str, object]:
        """The dtype of the weights, and what DeepSpeed has in its file."""
        del ranks
        dtype = self.precision if self.weight_bytes == 2 else "fp32"
        return {
            "load_dtype": dtype,
            "autocast": self.autocast,
            "gradient_clipping": self.gradient_clipping,
        }

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as the forward pass is given it."""
        return self.weight_bytes

    @property
    def state_element_bytes(self) -> int:
        """Bytes of an element of the weights: torch's optimizers make states like them (``zeros_like``)."""
        return self.weight_bytes

    @property
    def divides_weights(self) -> bool:
        """False."""
        return False

    @property
    def divides_gradients(self) -> bool:
        """False."""
        return False

    @property
    def divides_states(self) -> bool:
        """False."""
        return False

    @property
    def optimizer_device(self) -> str:
        """None: nothing is offloaded."""
        return "none"

    @property
    def weights_device(self) -> str:
        """None: nothing is offloaded."""
        return "none"

    @property
    def autocasts(self) -> bool:
        """True under ``torch.autocast``, whatever the weights are in."""
        return self.autocast

    @property
    def output_bytes(self) -> int:
        """Bytes of one element of what the model returns: Accelerate makes them fp32 under autocast."""
        return 4 if self.by_trainer and self.autocast else self.product_bytes

    @property
    def wide_adapters(self) -> bool:
        """Whether adapters are in fp32 on weights in 16 bits."""
        return self.adapter_bytes > self.weight_bytes

    @property
    def mixes_dtypes(self) -> bool:
        """True of weights in 16 bits."""
        return self.weight_bytes == 2

    @property
    def has_own_linear(self) -> bool:
        """False: modules stay torch's."""
        return False

    @property
    def has_own_group(self) -> bool:
        """False: the default group reduces."""
        return False


def ddp(settings: TrainingSettings) -> DdpSettings:
    """The settings as plain PyTorch's, for what is true of it alone. Raises TypeError: they are another
    engine's."""
    if not isinstance(settings, DdpSettings):
        raise TypeError(f"settings of {settings.engine}, not of plain PyTorch")
    return settings
