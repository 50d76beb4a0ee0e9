"""Values of options, as text of a command line or as a script's code has them."""

from __future__ import annotations

from zerokit.rules.trainer_optimizers import is_same_optimizer

NO = ("false", "0", "no", "none", "off", "null", "")
"""How a switch is turned off."""

LENGTHS = ("max_length", "max_seq_length", "max_seq_len", "seq_len", "seq_length", "cutoff_len",
           "sequence_len", "block_size", "model_max_length")  # fmt: skip
"""What scripts call the option at which they cut their sequences."""

MODELS = ("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model_id", "base_model",
          "model")  # fmt: skip
"""What scripts call the option that names their model."""

MICRO_BATCH = ("per_device_train_batch_size", "micro_batch_size", "micro_batch",
               "train_batch_size_per_device")  # fmt: skip
ACCUMULATION = ("gradient_accumulation_steps", "gradient_accumulation", "grad_accum_steps")
CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")
SAME_OPTIONS = (LENGTHS, MODELS, MICRO_BATCH, ACCUMULATION, CHECKPOINTING)
"""What scripts call one option, each."""


def truth(value: object) -> bool | None:
    """Of a switch, as text or as a value; None: neither (``auto``)."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    return None if text == "auto" else text not in NO


def number(value: object) -> int | None:
    """A positive whole number, as text or as a value; None: anything else."""
    if isinstance(value, str):
        value = int(value) if value.isdigit() else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def differs(actual: object, planned: object) -> bool:
    """Whether a value contradicts the plan's; what is computed or ``auto`` is not known to."""
    if isinstance(planned, bool):
        return actual is not None and truth(actual) not in (None, planned)
    if isinstance(planned, str):  # an optimizer, some of which have two names
        return actual is not None and not is_same_optimizer(str(actual), planned)
    count = number(actual)
    return count is not None and count != planned
