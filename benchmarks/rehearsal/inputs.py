"""What the measured scripts were given: a model's folder without weights, data sets of made-up words."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

WORDS = 200
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


class Inputs:
    """A folder with models and data, made once.

    Rows: ``sft`` {"text"} of 4,200 words; ``dpo`` prompts of 500, answers of 1,600 words; ``grpo`` prompts of
    200 words; ``tatsu-lab/alpaca`` instructions of 60 and outputs of 500 words;
    ``words.txt`` lines of 1,000 words. One word is one token.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._random = random.Random(0)
        self._data()

    def text(self, words: int) -> str:
        return " ".join(f"w{self._random.randrange(WORDS)}" for _ in range(words))

    def _data(self) -> None:
        text = self.text
        kinds: dict[str, Any] = {
            "sft": lambda: {"text": text(4200)},
            "dpo": lambda: {"prompt": text(500) + " ", "chosen": text(1600), "rejected": text(1600)},
            "grpo": lambda: {"prompt": text(200)},
            "tatsu-lab/alpaca": lambda: {"instruction": text(60), "input": "", "output": text(500)},
        }
        for name, row in kinds.items():
            (self.folder / name).mkdir(parents=True)
            for split, count in (("train", 64), ("test", 32)):
                lines = [json.dumps(row()) + "\n" for _ in range(count)]
                (self.folder / name / f"{split}.jsonl").write_text("".join(lines))
        (self.folder / "words.txt").write_text("".join(text(1000) + "\n" for _ in range(256)))

    def model(self, config: dict[str, Any]) -> Path:
        """A folder with config.json and a word-level tokenizer, and no weights."""
        name = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
        folder = self.folder / f"model-{name}"
        if not folder.exists():
            self._write_model(config, folder)
        return folder

    def _write_model(self, config: dict[str, Any], folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        words = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
        tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<pad>",
            unk_token="<unk>",
            model_max_length=131072,
        )
        fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        fast.save_pretrained(folder)
        shape = AutoConfig.for_model(**config)
        if not shape.architectures:
            mapped = AutoModelForCausalLM._model_mapping.get(type(shape), None)
            shape.architectures = [mapped.__name__] if mapped is not None else None
        shape.bos_token_id, shape.eos_token_id, shape.pad_token_id = 1, 2, 3
        shape.dtype = config.get("dtype", "bfloat16")
        shape.save_pretrained(folder)
