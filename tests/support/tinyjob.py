"""A tiny model with its tokenizer, and data, in the layout that public training scripts expect."""

from __future__ import annotations

import json
from pathlib import Path

CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def make_model(folder: Path, *, layers: int = 2, width: int = 64, vocabulary: int = 512) -> Path:
    """Write a Llama of ``layers`` layers with random weights, and a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator(["a small text for a small tokenizer"] * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_rows(folder: Path, rows: list[dict[str, object]], *, test_rows: int = 8) -> Path:
    """Write ``train.jsonl`` and ``test.jsonl``: ``load_dataset(folder)`` finds both as its splits."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", rows), ("test", rows[:test_rows])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def texts(count: int = 64, words: int = 40) -> list[dict[str, object]]:
    """Rows for language modelling."""
    return [{"text": f"row {number} " + "some words of a text " * (words // 5)} for number in range(count)]


def preferences(count: int = 64) -> list[dict[str, object]]:
    """Rows for preference training."""
    return [
        {"prompt": f"question {n}?", "chosen": " a good answer " * 5, "rejected": " a bad answer " * 5}
        for n in range(count)
    ]


def prompts(count: int = 64) -> list[dict[str, object]]:
    """Rows for reinforcement learning: conversations that wait for an answer."""
    return [{"prompt": [{"role": "user", "content": f"question {number}?"}]} for number in range(count)]
