"""More of what public scripts look for where they run: the models and data sets of ``public-fifth.json``."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.rehearsal.entry_point_inputs import EntryPointInputs

_OLMO3 = {
    "model_type": "olmo3", "vocab_size": 100352, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16, "sliding_window": 256,
    "max_position_embeddings": 4096,
}  # fmt: skip
_STARCODER2 = {
    "model_type": "starcoder2", "vocab_size": 49152, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip
_OPT = {
    "model_type": "opt", "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096,
    "word_embed_proj_dim": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
    "max_position_embeddings": 2048, "dtype": "float32",
}  # fmt: skip
_GPT_OSS = {
    "model_type": "gpt_oss", "vocab_size": 100352, "hidden_size": 1024, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128,
}  # fmt: skip
_DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 64000, "hidden_size": 1024, "intermediate_size": 2816,
    "moe_intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "first_k_dense_replace": 1, "q_lora_rank": 384, "kv_lora_rank": 256, "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64, "v_head_dim": 64, "max_position_embeddings": 4096,
}  # fmt: skip
_LFM2 = {
    "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 4608,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8, "dtype": "float32",
    "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention", "conv"],
}  # fmt: skip
_MISTRAL = {
    "model_type": "mistral", "vocab_size": 32768, "hidden_size": 1536, "intermediate_size": 5120,
    "num_hidden_layers": 5, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
    "sliding_window": 512, "max_position_embeddings": 8192,
}  # fmt: skip
_COHERE = {
    "model_type": "cohere", "vocab_size": 128000, "hidden_size": 1024, "intermediate_size": 3584,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip
_BLOOM = {"model_type": "bloom", "vocab_size": 100352, "hidden_size": 1024, "n_layer": 6, "n_head": 16}
_BART = {
    "model_type": "bart", "vocab_size": 50265, "d_model": 768, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072, "decoder_start_token_id": 2, "forced_eos_token_id": 2, "dtype": "float32",
}  # fmt: skip
_RESNET = {"model_type": "resnet", "dtype": "float32"}
_CONVNEXT = {"model_type": "convnext", "dtype": "float32"}

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "olmo3-small": (_OLMO3, "Olmo3ForCausalLM"),
    "starcoder2-small": (_STARCODER2, "Starcoder2ForCausalLM"),
    "opt-small": (_OPT, "OPTForCausalLM"),
    "opt-reward": (_OPT | {"num_labels": 1}, "OPTForSequenceClassification"),
    "gpt_oss-small": (_GPT_OSS, "GptOssForCausalLM"),
    "deepseek-small": (_DEEPSEEK, "DeepseekV3ForCausalLM"),
    "lfm2-small": (_LFM2, "Lfm2ForCausalLM"),
    "mistral-small": (_MISTRAL, "MistralForCausalLM"),
    "cohere-small": (_COHERE, "CohereForCausalLM"),
    "bloom-small": (_BLOOM, "BloomForCausalLM"),
    "bart-small": (_BART, "BartForConditionalGeneration"),
    "resnet-50": (_RESNET, "ResNetForImageClassification"),
    "convnext-tiny": (_CONVNEXT, "ConvNextForImageClassification"),
}

_CHAT = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} </s> "
    "{% endgeneration %}{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
)
_ENGINE = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
}
"""As the documentation of Transformers has it."""
_CPU = {"device": "cpu", "pin_memory": True}
_ZERO: dict[str, dict[str, Any]] = {
    "zero2.offload": {"stage": 2, "offload_optimizer": _CPU},
    "zero3.offload": {"stage": 3, "offload_optimizer": _CPU, "offload_param": _CPU},
}


def add(inputs: EntryPointInputs) -> None:
    """Put them beside the others; words come from a generator of their own."""
    words = random.Random(5)

    def text(count: int) -> str:
        return " ".join(f"w{words.randrange(200)}" for _ in range(count))

    folder = inputs.folder
    (folder / "starcoder2-small" / "chat_template.jinja").write_text(_CHAT)
    kind = {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}}
    for name in ("resnet-50", "convnext-tiny"):
        (folder / name / "preprocessor_config.json").write_text(json.dumps(kind))
    for name, settings in _ZERO.items():
        (folder / f"{name}.json").write_text(json.dumps(_ENGINE | {"zero_optimization": settings}))
    turns = [
        {"messages": [{"role": role, "content": text(count)} for role, count in _TURNS]} for _ in range(64)
    ]
    sums = [{"question": text(60), "answer": f"{text(30)} #### {number}"} for number in range(64)]
    for name, rows in (("turns", turns), ("sums", sums)):
        (folder / name).mkdir()
        for split in ("train", "test"):
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _seen_preference(folder, text)


_TURNS = (("user", 80), ("assistant", 150), ("user", 40), ("assistant", 200))


def _seen_preference(folder: Path, text: Any) -> None:
    """Preferences between answers to a question about a picture."""
    from datasets import Dataset, Image, Sequence

    pictures = sorted((folder / "pictures" / "train").rglob("*.png"))
    asked = [{"type": "image", "text": None}, {"type": "text", "text": text(30)}]

    def answer(count: int) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": [{"type": "text", "text": text(count)}]}]

    rows = [
        {
            "images": [str(picture)],
            "prompt": [{"role": "user", "content": asked}],
            "chosen": answer(120),
            "rejected": answer(90),
        }
        for picture in pictures * 2
    ]
    (folder / "seen-preference").mkdir()
    observed = Dataset.from_list(rows).cast_column("images", Sequence(Image()))
    observed.to_parquet(str(folder / "seen-preference" / "train.parquet"))
