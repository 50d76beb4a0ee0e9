"""What layers of some families keep for backward beside what all do (``closed_form``).

Figures are of the catalogue's traces (Transformers 5.23), whose activations at several lengths separate what
grows with the pairs of tokens; benchmarks/closed_form.py holds them against every trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.values import frozen_dataclass, replace


@frozen_dataclass
class Kept:
    """What a model keeps more.

    Attributes:
        score_bytes: of attention that keeps its scores whatever kernel is asked for, bytes for each pair of
            tokens and each head: kept for backward, and alive while a layer is worked on.
        gelu_tensors: of the feed-forward width, beside input and output of its activation.
        norms_keys: queries and keys are normalised.
        views_weights: linear modules keep views of their weights, as stacked experts do.
        caps_logits: of each logit also the one before it was capped.
    """

    score_bytes: tuple[float, float] = (0.0, 0.0)
    gelu_tensors: int = 0
    norms_keys: bool = False
    views_weights: bool = False
    caps_logits: bool = False


EAGER_SCORE_BYTES = (8.0, 20.0)
"""Of eager attention: scores, their softmax in fp32 and a 16-bit copy of it; then gradients of them too."""
_SINGLE_KEY_HEAD = (4.4, 16.0)
"""Of one key head that is broadcast over Falcon's queries, for which PyTorch has no fused kernel."""
_GELU_TENSORS = 3
"""Of an activation that Transformers writes out in operators (GPT-2's traces)."""
_PYTHON_GELUS = ("gelu_new", "gelu_fast", "quick_gelu")

_NORMS_KEYS = Kept(norms_keys=True)
_EAGER = Kept(score_bytes=EAGER_SCORE_BYTES)
_KEPT: Mapping[str, Kept] = {
    **dict.fromkeys(
        ("qwen3", "qwen3_moe", "olmo2", "olmo3", "exaone4", "gemma3", "gemma3_text", "minimax_m2"),
        _NORMS_KEYS,
    ),
    **dict.fromkeys(("gemma2", "gptj", "mpt", "switch_transformers"), _EAGER),  # the last three not traced
    "gpt_oss": Kept(score_bytes=(2.0, 9.0)),
    "bloom": Kept(score_bytes=(6.0, 16.0)),
    "falcon": Kept(views_weights=True),  # FalconLinear: input times ``weight.T`` (modeling_falcon.py)
}


def kept_of(hf_config: Mapping[str, Any], kv_heads: int) -> Kept:
    """What a model with this configuration keeps more."""
    model_type = hf_config.get("model_type")
    kept = _KEPT.get(str(model_type), Kept())
    if model_type == "falcon" and kv_heads == 1:
        kept = replace(kept, score_bytes=_SINGLE_KEY_HEAD)
    activation = hf_config.get("activation_function") or hf_config.get("hidden_act")
    return replace(
        kept,
        gelu_tensors=_GELU_TENSORS if activation in _PYTHON_GELUS else 0,
        caps_logits=bool(hf_config.get("final_logit_softcapping")),
    )
