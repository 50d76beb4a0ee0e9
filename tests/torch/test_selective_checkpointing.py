"""Attention computed again in backward: what a script calls, what it changes, and what a trace says of it."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("transformers")

import zerokit  # noqa: E402
from tests.oracle.ranks import live_bytes  # noqa: E402
from tests.support.models import MODELS  # noqa: E402
from zerokit.domain.profile import Variant  # noqa: E402
from zerokit.errors import InputError  # noqa: E402
from zerokit.trace.building.build import read_config  # noqa: E402
from zerokit.trace.profile import profile_from_config  # noqa: E402
from zerokit.trace.recording import record  # noqa: E402


def model(name: str = "llama", attention: str = "eager") -> Any:
    import transformers

    torch.manual_seed(0)
    config = read_config(dict(MODELS[name][1]))
    config.use_cache = False
    auto = transformers.AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.float32, attn_implementation=attention).train()


def measured(selective: bool, batch: int, length: int) -> tuple[dict[str, int], Any]:
    """Live bytes beside weights after forward and at the peaks, and the gradients, on the CPU."""
    own = model()
    if selective:
        assert zerokit.selective_checkpointing(own) == 9
    for parameter in own.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    gradients: list[Any] = []
    own.model.layers[0].self_attn.q_proj.weight.register_hook(lambda g: gradients.append(g.clone()))
    tracker = live_bytes(explain=False)
    tracker.ignore([*own.parameters(), *own.buffers()])
    torch.manual_seed(1)
    tokens = torch.randint(0, 777, (batch, length))
    tracker.ignore([tokens])
    with tracker:
        loss = own(input_ids=tokens, labels=tokens).loss
        forward = tracker.phase()
        loss.backward()
        backward = tracker.phase()
    return {"forward": forward["peak"], "level": forward["level"], "backward": backward["peak"]}, gradients


def test_gradients_are_the_same_and_memory_is_less() -> None:
    plain, gradients = measured(False, 2, 96)
    less, again = measured(True, 2, 96)
    assert torch.equal(gradients[0], again[0])
    scores = 2 * 4 * 96 * 96 * 4
    assert plain["level"] - less["level"] >= 9 * scores
    assert less["backward"] < plain["backward"]


def test_the_trace_is_torchs_own_count() -> None:
    """At a size that was never traced, with every layer there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "cuda_kernels", contextlib.nullcontext)
        variant = Variant(attention="eager", precision="32", checkpointing="selective")
        own = profile_from_config(dict(MODELS["llama"][1]), [variant], name="llama", head="causal")
    found = own.trace(variant, 96)
    assert found is not None
    timeline = found.timeline(3, 96)
    observed, _ = measured(True, 3, 96)
    inputs = 8 * 3 * 96
    assert abs(timeline.after_forward - inputs - observed["level"]) <= 1024
    assert abs(timeline.forward_peak - inputs - observed["forward"]) <= 1024
    assert abs(max(timeline.backward.peaks) - inputs - observed["backward"]) <= observed["backward"] // 100


def test_other_models_of_the_process_go_on_as_before() -> None:
    own, other = model(), model()
    zerokit.selective_checkpointing(own)
    zerokit.selective_checkpointing(own)  # once more changes nothing
    tokens = torch.zeros(1, 8, dtype=torch.long)
    losses = [one(input_ids=tokens, labels=tokens).loss.item() for one in (own, other)]
    assert losses[0] == losses[1]
    names = [node.__class__.__name__ for node in other.modules()]
    assert "LlamaAttention" in names


def test_models_without_scores_to_compute_again_are_refused() -> None:
    with pytest.raises(InputError, match="sdpa attention keeps no scores"):
        zerokit.selective_checkpointing(model(attention="sdpa"))
    with pytest.raises(InputError, match="has no attention module"):
        zerokit.selective_checkpointing(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_it_is_documented() -> None:
    text = inspect.getdoc(zerokit.selective_checkpointing) or ""
    assert len(text.split("\n\n")) > 1
