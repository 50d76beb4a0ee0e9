"""A pipeline of DeepSpeed in the oracle's ranks."""

from __future__ import annotations

from typing import Any


def pipeline_model(case: dict[str, Any]) -> Any:
    """The tiny Llama as a ``PipelineModule``: embedding, decoder layers, norm with head, loss."""
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule
    from transformers import AutoConfig
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

    config = AutoConfig.for_model(**case["hf_config"], attn_implementation="eager")
    length = case["seq_len"]

    class Layer(LlamaDecoderLayer):  # type: ignore[misc]
        def __init__(self, index: int) -> None:
            super().__init__(config, index)
            self.rotary = LlamaRotaryEmbedding(config)

        def forward(self, hidden: Any) -> Any:
            mask = torch.full((1, 1, length, length), -1e9, dtype=hidden.dtype).triu(1)
            angles = self.rotary(hidden, position_ids=torch.arange(length)[None])
            return super().forward(hidden, attention_mask=mask, position_embeddings=angles)

    class Head(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = LlamaRMSNorm(config.hidden_size)
            self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

        def forward(self, hidden: Any) -> Any:
            return self.head(self.norm(hidden))

    torch.set_default_dtype(torch.bfloat16)
    module = PipelineModule(
        layers=[
            LayerSpec(torch.nn.Embedding, config.vocab_size, config.hidden_size),
            *(LayerSpec(Layer, index) for index in range(config.num_hidden_layers)),
            LayerSpec(Head),
        ],
        num_stages=case["pipeline"],
        loss_fn=lambda logits, labels: ForCausalLMLoss(logits, labels, config.vocab_size),
        partition_method="parameters",
        activation_checkpoint_interval=0,
    )
    torch.set_default_dtype(torch.float32)
    return module
