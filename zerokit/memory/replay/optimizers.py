"""What optimizers keep beside the master weights, and what their step allocates."""

from __future__ import annotations

from collections.abc import Container, Sequence

from zerokit.domain.client_optimizers import ClientOptimizer, client_optimizer
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.rank_model import block
from zerokit.values import replace

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
