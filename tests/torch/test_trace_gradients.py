"""The pass below ZeRO-3, which hooks no module: what is live after each gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tests.support.models import MODELS  # noqa: E402
from tests.support.torch_counts import levels_by_torch  # noqa: E402
from zerokit.domain.profile import ModelProfile, Variant  # noqa: E402
from zerokit.trace.profile import profile_from_config  # noqa: E402
from zerokit.trace.recording.kernels import attention, cuda_kernels  # noqa: E402
from zerokit.trace.recording.storage import StorageTracker  # noqa: E402


def model(name: str) -> tuple[str, dict[str, Any]]:
    """With layers enough that a trace leaves some out."""
    head, config = MODELS[name]
    return head, config | ({"num_layers": 8} if name == "t5" else {})


@cache
def traced(name: str, checkpointing: bool) -> ModelProfile:
    head, config = model(name)
    variant = Variant(checkpointing="full" if checkpointing else "none")
    return profile_from_config(dict(config), [variant], name=name, head=head)


@pytest.mark.parametrize(
    ("name", "checkpointing", "micro_batch"),
    [
        ("llama", True, 5),
        pytest.param("llama", False, 1, marks=pytest.mark.slow),
        pytest.param("t5", True, 1, marks=pytest.mark.slow),
        pytest.param("t5", True, 5, marks=pytest.mark.slow),
    ],
)
def test_what_is_live_after_each_gradient_is_told_without_the_hooks_of_zero_3(
    name: str, checkpointing: bool, micro_batch: int
) -> None:
    """Below ZeRO-3 DeepSpeed hooks no module. T5's layers share a position bias and the encoder's output,
    whose gradients are added up from layer to layer."""
    head, config = model(name)
    variant = Variant(checkpointing="full" if checkpointing else "none")
    found = traced(name, checkpointing).trace(variant, 384, micro_batch)
    assert found is not None
    order = [key for kind, key in found.marks_gradients if kind == "grad"]
    expected = levels_by_torch(head, dict(config), micro_batch, 384, checkpointing)
    assert order == [key for key, _ in expected]
    inputs = 2 * 8 * micro_batch * 384
    levels = found.timeline(micro_batch, 384).gradients.afters
    for (key, level), told in zip(expected, levels, strict=False):
        assert abs(told - level) <= inputs, key


def test_the_memory_efficient_kernel_reads_its_output_in_backward() -> None:
    """``_scaled_dot_product_efficient_attention_backward(grad_out_, query, key, value, attn_bias, out,
    logsumexp, …)``: with checkpointing nothing else holds the output then."""
    schema = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default._schema
    taken = {argument.name for argument in schema.arguments}
    assert {"grad_out_", "query", "key", "value", "attn_bias", "out", "logsumexp"} <= taken
    batch, heads, length, dim = 2, 4, 64, 16
    with FakeTensorMode(), cuda_kernels():
        shape = (batch, heads, length, dim)
        inputs = [torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        bias = torch.zeros(1, heads, length, length, dtype=torch.bfloat16, requires_grad=True)
        tracker = StorageTracker()
        tracker.ignore([*inputs, bias])
        with tracker:
            out = torch.utils.checkpoint.checkpoint(
                lambda *args: attention(*args), *inputs, bias, use_reentrant=False, preserve_rng_state=False
            )
            out.sum().backward()
    live, most = 0, 0
    for event in tracker.events:
        live += {"alloc": event.size_bytes, "free": -event.size_bytes}.get(event.kind, 0)
        most = max(most, live)
    one, scores = 2 * batch * heads * length * dim, 2 * batch * heads * length * length
    rows = 4 * batch * heads * length
    forward = one  # the output of the first forward, which the caller holds; the sum's gradient is a view
    again = one + rows  # the output and log-sum-exp of the second
    gradients = 3 * one + scores
    workspace = rows + 2 * one
    scalars = 2 * 2  # the sum, and the gradient of it
    assert abs(most - (forward + again + gradients + workspace)) <= scalars
