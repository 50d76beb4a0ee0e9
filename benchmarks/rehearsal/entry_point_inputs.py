"""What public scripts look for where they run: models without weights, data sets of made-up words.

``load_dataset("tatsu-lab/alpaca")`` and ``from_pretrained("bert-base-cased")`` take a local folder of that
name before they ask the Hub, so unmodified scripts find these.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from pathlib import Path
from typing import Any

from benchmarks.rehearsal import fifth_inputs, third_inputs, tool_inputs
from benchmarks.rehearsal.gpu.cases import CaseInputs

LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True, "max_position_embeddings": 40960,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 4, "n_head": 12}
BERT = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 4}
T5 = {
    "model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_ff": 1024, "num_layers": 4, "num_heads": 8,
    "decoder_start_token_id": 3,
}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
GEMMA2 = {
    "model_type": "gemma2", "vocab_size": 64000, "hidden_size": 1152, "intermediate_size": 4608,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "vocab_size": 32064, "hidden_size": 1536, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16, "pad_token_id": 3,
}  # fmt: skip
OLMO2 = {
    "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16,
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "vocab_size": 128256, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "pad_token_id": 3,
}  # fmt: skip
GRANITE = {
    "model_type": "granite", "vocab_size": 49152, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2048,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 4,
}  # fmt: skip

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": (LLAMA, "LlamaForCausalLM"),
    "qwen3": (QWEN3, "Qwen3ForCausalLM"),
    "gpt2": (GPT2, "GPT2LMHeadModel"),
    "bert-base-cased": (BERT, "BertForMaskedLM"),
    "distilroberta-base": (BERT, "BertForMaskedLM"),
    "t5": (T5, "T5ForConditionalGeneration"),
    "vit": (VIT, "ViTForImageClassification"),
    "gemma2": (GEMMA2, "Gemma2ForCausalLM"),
    "phi3": (PHI3, "Phi3ForCausalLM"),
    "olmo2": (OLMO2, "Olmo2ForCausalLM"),
    "smollm3": (SMOLLM3, "SmolLM3ForCausalLM"),
    "granite": (GRANITE, "GraniteForCausalLM"),
    "mixtral": (MIXTRAL, "MixtralForCausalLM"),
    "reward": (LLAMA | {"num_labels": 1}, "LlamaForSequenceClassification"),
    **third_inputs.MODELS,
    **fifth_inputs.MODELS,
}
_PREFERENCE = ("prompt", "chosen", "rejected")
_MNIST = {"train": 2048, "t10k": 512}


METRIC = """import datasets
import evaluate

class Metric(evaluate.Metric):
    def _info(self):
        kind = datasets.Value("string")
        if "NAME" == "accuracy":
            kind = datasets.Value("int64")
        elif "NAME" == "seqeval":
            kind = datasets.Sequence(kind)
        references = datasets.Sequence(kind) if "NAME" == "sacrebleu" else kind
        features = datasets.Features({"predictions": kind, "references": references})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references, **options):
        return {"NAME": 0.5, "score": 0.5, "overall_precision": 0.5, "overall_recall": 0.5, "overall_f1": 0.5,
                "overall_accuracy": 0.5}
"""
"""Stands for a script on the Hub, which ``evaluate.load("accuracy")`` would download."""


class EntryPointInputs(CaseInputs):
    """A folder in which the scripts of :mod:`benchmarks.rehearsal.entry_points` run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name, (config, architecture) in MODELS.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.model({**config, "architectures": [architecture]}))
        for name in ("accuracy", "rouge", "sacrebleu", "seqeval"):
            (folder / name).mkdir()
            (folder / name / f"{name}.py").write_text(METRIC.replace("NAME", name))
        (folder / "results").mkdir()
        (folder / "vit" / "preprocessor_config.json").write_text(
            json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}})
        )
        settings = folder / "bert-base-cased" / "tokenizer_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "mask_token": "<mask>"}))
        self._texts()
        self._pictures()
        third_inputs.add(self)
        fifth_inputs.add(self)
        tool_inputs.add(self)

    def _write(
        self, name: str, rows: list[dict[str, Any]], splits: tuple[str, ...] = ("train", "test")
    ) -> None:
        target = self.folder / name
        target.mkdir(parents=True, exist_ok=True)
        for split in splits:
            (target / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def _texts(self) -> None:
        text = self._text
        say = lambda role, words: {"role": role, "content": text(words)}  # noqa: E731
        chat = [{"messages": [say("user", 100), say("assistant", 300)]} for _ in range(64)]
        self._write("chat", chat)
        prompts = [{"prompt": [say("user", 100)]} for _ in range(64)]
        self._write("trl-lib/ultrafeedback-prompt", prompts)
        self._write("trl-lib/DeepMath-103K", [{**row, "solution": "$1$"} for row in prompts])
        self._write("chat-prompts", prompts)
        triples = [{"prompt": text(60), "chosen": text(300), "rejected": text(200)} for _ in range(64)]
        self._write("triple", [{**row, "reference": text(250)} for row in triples])
        steps = {"completions": [text(20) for _ in range(5)], "labels": [True, True, False, True, False]}
        self._write("steps", [{"prompt": text(80), **steps} for _ in range(64)])
        self._write(
            "dolly", [{"instruction": text(60), "context": "", "response": text(200)} for _ in range(64)]
        )
        pairs = [{"sentence1": text(30), "sentence2": text(30), "label": n % 2} for n in range(64)]
        self._write("pairs", pairs)
        scored = [{k: v for k, v in row.items() if k != "label"} | {"score": 0.5} for row in pairs]
        self._write("sentence-transformers/stsb", scored, ("train", "validation", "test"))
        self._write("summaries", [{"document": text(300), "summary": text(60)} for _ in range(64)])
        self._write("translations", [{"translation": {"en": text(100), "ro": text(100)}} for _ in range(64)])
        tags = [{"tokens": text(40).split(), "ner_tags": ["O", "B"] * 20} for _ in range(64)]
        self._write("tags", tags)
        for name in ("pairs", "tags", "summaries", "translations"):  # examples that take a file ask for .json
            for split in ("train", "test"):
                rows = self.folder / name / f"{split}.jsonl"
                rows.rename(rows.with_suffix(".json"))
        (self.folder / "data" / "local").mkdir(parents=True)
        answers = [
            {"prompt": f"Human: {text(60)} Assistant:", "chosen": text(90), "rejected": text(80)}
            for _ in range(64)
        ]
        for split in ("train", "eval"):
            (self.folder / "data" / f"{split}.json").write_text(
                "".join(json.dumps(row) + "\n" for row in answers)
            )
        (self.folder / "words.txt").write_text("\n".join(text(200) for _ in range(400)))
        words = self.folder / "data" / "wikitext-2"
        words.mkdir(parents=True)
        for split in ("train", "valid", "test"):
            (words / f"{split}.txt").write_text("\n".join(text(50) for _ in range(400)))
        (self.folder / "data" / "made-up").mkdir()
        for split, count in (("train", 200_000), ("val", 20_000)):  # nanoGPT reads tokens of 16 bits
            tokens = array("H", (number % 50257 for number in range(count)))
            (self.folder / "data" / "made-up" / f"{split}.bin").write_bytes(tokens.tobytes())

    def _pictures(self) -> None:
        """MNIST's own files, and folders of pictures by class."""
        for folder in (self.folder / "data" / "MNIST" / "raw", self.folder.parent / "data" / "MNIST" / "raw"):
            folder.mkdir(parents=True, exist_ok=True)
            for split, count in _MNIST.items():
                images = struct.pack(">IIII", 2051, count, 28, 28) + bytes(count * 784)
                labels = struct.pack(">II", 2049, count) + bytes(n % 10 for n in range(count))
                (folder / f"{split}-images-idx3-ubyte").write_bytes(images)
                (folder / f"{split}-labels-idx1-ubyte").write_bytes(labels)
        for split in ("train", "val"):
            for label in ("cat", "dog"):
                folder = self.folder / "pictures" / split / label
                folder.mkdir(parents=True)
                for number in range(16):
                    (folder / f"{label}_{number}.png").write_bytes(_picture(256, number))


def _picture(side: int, red: int) -> bytes:
    """A PNG file of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\x00" + bytes((red, 0, 0)) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
