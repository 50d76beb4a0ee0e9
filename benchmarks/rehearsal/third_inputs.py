"""More of what public scripts look for where they run: the models and data sets of ``public-third.json``."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.rehearsal.entry_point_inputs import EntryPointInputs

_BERT = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 4, "dtype": "float32",
}  # fmt: skip
_DISTILBERT = {"model_type": "distilbert", "vocab_size": 30522, "n_layers": 3, "dtype": "float32"}
_PYTHIA = {
    "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 8, "max_position_embeddings": 2048,
}  # fmt: skip
_SMOLLM = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560,
    "num_hidden_layers": 4, "num_attention_heads": 15, "num_key_value_heads": 5,
    "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip
_XLNET = {
    "model_type": "xlnet", "vocab_size": 32000, "d_model": 768, "n_layer": 4, "n_head": 12, "d_inner": 3072,
    "dtype": "float32",
}  # fmt: skip
_SWIN = {
    "model_type": "swin", "image_size": 192, "patch_size": 4, "window_size": 6, "encoder_stride": 32,
    "dtype": "float32",
}  # fmt: skip
_CLIP = {
    "model_type": "clip", "dtype": "float32",
    "text_config": {"vocab_size": 49408, "num_hidden_layers": 4, "eos_token_id": 2},
    "vision_config": {"num_hidden_layers": 4, "image_size": 224, "patch_size": 32},
}  # fmt: skip
_QWEN2_MOE = {
    "model_type": "qwen2_moe", "vocab_size": 64000, "hidden_size": 1024, "intermediate_size": 2816,
    "moe_intermediate_size": 704, "shared_expert_intermediate_size": 2816, "num_experts": 8,
    "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip
_FALCON = {
    "model_type": "falcon", "vocab_size": 65024, "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "multi_query": True, "parallel_attn": True, "bias": False,
}  # fmt: skip

_QWEN2_VL = {
    "model_type": "qwen2_vl", "image_token_id": 6, "video_token_id": 7, "vision_start_token_id": 4,
    "vision_end_token_id": 5,
    "text_config": {
        "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    },
    "vision_config": {"depth": 4, "embed_dim": 640, "hidden_size": 1024, "num_heads": 8, "patch_size": 14},
}  # fmt: skip
_VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "bert-base-uncased": (_BERT, "BertForMaskedLM"),
    "distilbert-base-uncased": (_DISTILBERT, "DistilBertForMaskedLM"),
    "naver/splade-cocondenser-ensembledistil": (_BERT | {"num_hidden_layers": 6}, "BertForMaskedLM"),
    "nomic-ai/nomic-embed-text-v1.5": (_BERT | {"num_hidden_layers": 2}, "BertModel"),
    "HuggingFaceTB/SmolLM-360M": (_SMOLLM, "LlamaForCausalLM"),
    "pythia": (_PYTHIA, "GPTNeoXForCausalLM"),
    "pythia-reward": (_PYTHIA | {"num_labels": 1}, "GPTNeoXForSequenceClassification"),
    "xlnet": (_XLNET, "XLNetLMHeadModel"),
    "swin": (_SWIN, "SwinForMaskedImageModeling"),
    "clip": (_CLIP, "CLIPModel"),
    "qwen2_moe": (_QWEN2_MOE, "Qwen2MoeForCausalLM"),
    "falcon": (_FALCON, "FalconForCausalLM"),
    "qwen2_vl": (_QWEN2_VL, "Qwen2VLForConditionalGeneration"),
}

_METRIC = """import datasets
import evaluate

class Metric(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(FEATURES))

    def _compute(self, predictions, references, **options):
        return {"accuracy": 0.5, "f1": 0.5, "exact_match": 0.5}
"""
_LABELS = '{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}'
_ANSWERS = """{
            "predictions": {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")},
            "references": {
                "id": datasets.Value("string"),
                "answers": datasets.Sequence({
                    "text": datasets.Value("string"), "answer_start": datasets.Value("int32")}),
            },
        }"""


def add(inputs: EntryPointInputs) -> None:
    """Put them beside the others; words come from a generator of their own."""
    words = random.Random(1)

    def text(count: int) -> str:
        return " ".join(f"w{words.randrange(200)}" for _ in range(count))

    folder = inputs.folder
    for name, features in (("glue", _LABELS), ("squad", _ANSWERS)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{name}.py").write_text(_METRIC.replace("FEATURES", features))
    _tokenizers(folder)
    pairs = [{"sentence1": text(30), "sentence2": text(40), "label": n % 2, "idx": n} for n in range(256)]
    _splits(folder / "nyu-mll/glue", "mrpc", {"train": pairs, "validation": pairs[:64], "test": pairs[:64]})
    sentences = [{"text": text(300)} for _ in range(500)]
    wiki = {"train": sentences, "validation": sentences, "test": sentences[:32]}
    _splits(folder / "Salesforce/wikitext", "wikitext-2-v1", wiki)
    nli = [{"premise": text(25), "hypothesis": text(12), "label": n % 3} for n in range(10_000)]
    triplets = [{"anchor": text(20), "positive": text(12), "negative": text(12)} for _ in range(10_000)]
    known = folder / "sentence-transformers/all-nli"
    _splits(known, "pair-class", {"train": nli, "dev": nli[:1000]})
    _splits(known, "triplet", {"train": triplets, "dev": triplets[:1000]})
    advised = [
        {"prompt": [{"role": "user", "content": text(60)}], "privileged_context": text(80)} for _ in range(64)
    ]
    _file(folder / "chat-privileged" / "train.jsonl", advised)
    (folder / "sentences.txt").write_text("\n".join(text(20) for _ in range(12_000)))
    options = {f"ending{n}": text(12) for n in range(4)}
    choices = [{"sent1": text(30), "sent2": text(4), **options, "label": n % 4} for n in range(96)]
    _file(folder / "choices.json", choices)
    _file(folder / "plain-prompts" / "train.jsonl", [{"prompt": text(40)} for _ in range(160)])
    (folder / "answers.json").write_text(json.dumps({"data": [_question(n, text) for n in range(96)]}))
    _vision_model(folder / "qwen2_vl")
    pictures = sorted((folder / "pictures" / "train").rglob("*.png"))
    _file(folder / "captions.json", [{"image": str(path), "caption": text(20)} for path in pictures * 2])
    _seen(folder / "seen", pictures, text)


def _tokenizers(folder: Path) -> None:
    masked = ("bert-base-uncased", "distilbert-base-uncased", "naver/splade-cocondenser-ensembledistil")
    for name in (*masked, "xlnet"):
        settings = folder / name / "tokenizer_config.json"
        special = {"mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
        settings.write_text(json.dumps({**json.loads(settings.read_text()), **special}))
    for name, side in (("swin", 192), ("clip", 224)):
        kind = {"image_processor_type": "ViTImageProcessor", "size": {"height": side, "width": side}}
        statistics = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
        (folder / name / "preprocessor_config.json").write_text(json.dumps({**kind, **statistics}))


def _vision_model(folder: Path) -> None:
    """A tokenizer and the files of a processor: an image's tokens stand before the words."""
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    for number, name in enumerate(_VISION_TOKENS, start=4):
        displaced = next(word for word, index in vocabulary.items() if index == number)
        vocabulary[displaced], vocabulary[name] = len(vocabulary), number
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        words["added_tokens"].append({"id": number, "content": name, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(words))
    settings = folder / "tokenizer_config.json"
    said = json.loads(settings.read_text()) | {"processor_class": "Qwen2VLProcessor"}
    settings.write_text(json.dumps(said))
    template = (
        "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }} {% else %}"
        "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|> "
        "{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    kind = {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25],
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(kind))


def _seen(folder: Path, pictures: list[Path], text: Any) -> None:
    """Conversations about a picture each, as TRL's scripts for images and text take them."""
    from datasets import Dataset, Image, Sequence

    rows = [
        {
            "images": [str(picture)],
            "messages": [
                {"role": "user", "content": text(60)},
                {"role": "assistant", "content": text(100)},
            ],
        }
        for picture in pictures
    ]
    folder.mkdir()
    observed = Dataset.from_list(rows).cast_column("images", Sequence(Image()))
    observed.to_parquet(str(folder / "train.parquet"))


def _question(number: int, text: Any) -> dict[str, Any]:
    context = text(120)
    answer = " ".join(context.split()[5:8])
    found = {"text": [answer], "answer_start": [context.index(answer)]}
    return {"id": str(number), "title": "w1", "context": context, "question": text(12), "answers": found}


def _file(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _splits(folder: Path, name: str, splits: dict[str, list[dict[str, Any]]]) -> None:
    """A configuration of a data set: its files, and its entry in the card."""
    for split, rows in splits.items():
        _file(folder / name / f"{split}.jsonl", rows)
    card = folder / "README.md"
    before = card.read_text().split("---\n")[1] if card.exists() else "configs:\n"
    files = "".join(f"  - split: {split}\n    path: {name}/{split}.jsonl\n" for split in splits)
    card.write_text(f"---\n{before}- config_name: {name}\n  data_files:\n{files}---\n")
