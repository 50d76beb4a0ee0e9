"""What PyTorch itself allocates in a step of a whole model, counted storage by storage."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zerokit.domain.hardware import Processors, partial_column_sums
from zerokit.trace.building.build import AUTO_CLASSES, read_config, transformers_on_gpu
from zerokit.trace.recording.kernels import cuda_kernels
from zerokit.trace.recording.storage import StorageTracker, TraceEvent


def _events(
    head: str, config: dict[str, Any], micro_batch: int, seq_len: int, checkpointing: bool
) -> tuple[list[TraceEvent], int]:
    """A step of the whole model, no layer left out and no hook on a module, and where backward begins.
    Gradients are dropped as they come, as in a trace: where they go is DeepSpeed's part."""
    import transformers

    loaded = read_config(config)
    loaded.use_cache = False
    with FakeTensorMode(allow_non_fake_inputs=True), transformers_on_gpu(), cuda_kernels():
        auto = getattr(transformers, AUTO_CLASSES[head])
        model = auto.from_config(
            loaded,
            dtype=torch.bfloat16,
            attn_implementation="eager" if loaded.model_type in ("gemma2", "mamba2") else "sdpa",
        ).train()
        if checkpointing:
            options = {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        tracker = StorageTracker()

        def drop(name: str, parameter: torch.Tensor) -> None:
            parameter.grad = None
            tracker.mark("grad", name)

        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(drop, name))
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)
        tracker.ignore([*model.parameters(), *model.buffers(), tokens])
        with tracker:
            loss = model(input_ids=tokens, labels=tokens).loss
            middle = len(tracker.events)
            loss.backward()
    return tracker.events, middle


def count_by_torch(
    head: str,
    config: dict[str, Any],
    micro_batch: int,
    seq_len: int,
    checkpointing: bool,
    processors: Processors | None = None,
) -> tuple[int, int, int]:
    """(forward peak, level after forward, backward peak) of the whole model.

    ``processors``: of a GPU, to count what its sums over rows take."""
    events, middle = _events(head, config, micro_batch, seq_len, checkpointing)
    live, levels = 0, []
    for event in events:
        live += _change(event)
        levels.append(live)
        if event.kind == "sum" and processors is not None:
            columns, element_bytes = map(int, str(event.key).split())
            levels[-1] += partial_column_sums(columns, event.size_bytes, element_bytes, processors)
    return max(levels[:middle]), levels[middle - 1], max(levels[middle:])


def levels_by_torch(
    head: str, config: dict[str, Any], micro_batch: int, seq_len: int, checkpointing: bool
) -> list[tuple[str, int]]:
    """Each parameter in the order in which backward makes their gradients, and what is live after it."""
    events, _ = _events(head, config, micro_batch, seq_len, checkpointing)
    live, levels = 0, []
    for event in events:
        live += _change(event)
        if event.kind == "grad":
            levels.append((str(event.key), live))
    return levels


def _change(event: TraceEvent) -> int:
    return {"alloc": event.size_bytes, "free": -event.size_bytes}.get(event.kind, 0)
