"""What of a plan only the training script can do, by the names that scripts have for it."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.domain.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValues:
    """What of a plan only the script can do.

    Attributes:
        micro_batch: sequences per GPU and forward pass.
        gradient_accumulation: micro-batches per optimizer step.
        precision: ``bf16``, ``fp16`` or ``fp32``, as the ranks will run.
        checkpointing: ``none``, ``full`` or ``selective``.
        gradient_clipping: the largest norm; None leaves the script's.
        optimizer: that the script makes, by the Trainer's name for it; None: DeepSpeed makes its own.
        liger_loss: head and loss are fused by Liger Kernel.
        on_cpu: the ranks run without a GPU.
    """

    micro_batch: int
    gradient_accumulation: int
    precision: str
    checkpointing: str
    gradient_clipping: float | None = None
    optimizer: str | None = None
    liger_loss: bool = False
    on_cpu: bool = False

    @classmethod
    def of(cls, strategy: Strategy) -> PlannedValues:
        """Those of a strategy."""
        settings = strategy.settings
        return cls(
            micro_batch=settings.micro_batch,
            gradient_accumulation=settings.gradient_accumulation,
            precision=settings.precision,
            checkpointing=strategy.checkpointing,
            gradient_clipping=settings.gradient_clipping,
            optimizer=settings.client_optimizer,
        )

    def trainer_values(self) -> dict[str, object]:
        """As TrainingArguments name them; whole layers are all the checkpointing that a Trainer knows."""
        values: dict[str, object] = {
            "per_device_train_batch_size": self.micro_batch,
            "gradient_accumulation_steps": self.gradient_accumulation,
        }
        if self.gradient_clipping is not None:
            values["max_grad_norm"] = self.gradient_clipping
        if self.optimizer is not None:
            values["optim"] = self.optimizer
        values |= {name: self.precision == name for name in ("bf16", "fp16")}
        if self.checkpointing != "selective":
            values["gradient_checkpointing"] = self.checkpointing == "full"
        if self.liger_loss:
            values["use_liger_kernel"] = True
        return values
