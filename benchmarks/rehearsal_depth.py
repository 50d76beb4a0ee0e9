"""What few layers tell beside all of them: the scripts of the public lists, rehearsed both ways.

    python -m benchmarks.rehearsal_depth --copies DIR [NAME…] [--list public …] [--jsonl OUT]

The lists are `benchmarks/rehearsal/public*.json`, with TRL's, Transformers', PEFT's and Accelerate's scripts
in them that train a decoder; DIR holds copies of their repositories as OWNER/NAME. Models have 28 layers of
2,048 features here, data sets are made up. A line says with how many layers a script was rehearsed, and by
how much its peaks and its reserved memory differ from those with all. The exit code is 1 where a peak is
more than 0.05 % off. `few-layers.jsonl` beside the lists has the rows of the page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.common import append, options_of
from benchmarks.rehearsal.inputs import Inputs
from benchmarks.rehearsal_page import PREDICTED

MOST = 0.0005
SHAPE = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    name: {"model_type": name, **SHAPE}
    for name in ("llama", "qwen2", "qwen3", "olmo2", "granite", "phi3", "mistral", "starcoder2")
}
MODELS |= {
    "pythia": {"model_type": "gpt_neox", **SHAPE},
    "gpt2": {"model_type": "gpt2", "n_layer": 28, "n_embd": 2048, "n_head": 16, "n_positions": 4096},
}  # fmt: skip
_ORDER = "second third fourth fifth sixth seventh eighth ninth tenth eleventh"
LISTS = ("", *(f"-{one}" for one in _ORDER.split()))
OWNERS = (
    "huggingface/trl",
    "huggingface/peft",
    "huggingface/accelerate",
    "PerforatedAI/PerforatedAI-Transformers",
)
_MODEL = re.compile(r"model\S*(?: |=)([a-z0-9_]+?)(?:-small)?(?= |$)")


def _rows(inputs: Inputs) -> dict[str, Callable[[], dict[str, Any]]]:
    """A row of each data set that the lists name."""
    text = inputs.text

    def talk(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text(200)} for role in roles]

    pair = ("user", "assistant")
    return {
        "preference": lambda: {"prompt": text(100), "chosen": text(500), "rejected": text(500)},
        "triple": lambda: {
            "prompt": text(100), "reference": text(500), "chosen": text(500), "rejected": text(500)
        },
        "unpaired": lambda: {"prompt": text(100), "completion": text(500), "label": True},
        "steps": lambda: {
            "prompt": text(100), "completions": [text(50) for _ in range(4)], "labels": [True] * 4
        },
        "chat": lambda: {"messages": talk(*pair)},
        "turns": lambda: {"messages": talk(*pair, *pair)},
        "chat-prompts": lambda: {"prompt": talk("user")},
        "chat-privileged": lambda: {"prompt": talk("user"), "privileged_context": text(50)},
    }  # fmt: skip


def _folder(inputs: Inputs) -> None:
    """What the scripts find where they are started."""
    folder = inputs.folder
    for name, row in _rows(inputs).items():
        (folder / name).mkdir()
        for split in ("train", "test"):
            lines = [json.dumps(row()) + "\n" for _ in range(64)]
            (folder / name / f"{split}.jsonl").write_text("".join(lines))
    for name, config in MODELS.items():
        for alias in (name, f"{name}-small"):
            (folder / alias).symlink_to(inputs.model(config))
    for stage in (1, 2, 3):
        automatic: Any = dict.fromkeys(
            ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
        )
        automatic |= {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}
        for suffix in ("", ".auto"):
            (folder / f"zero{stage}{suffix}.json").write_text(json.dumps(automatic))


def scripts(lists: list[str], names: list[str], copies: Path) -> Iterator[dict[str, Any]]:
    """Entries of the lists that train a decoder that is made here."""
    for one in lists:
        for entry in json.loads((PREDICTED / f"public{one}.json").read_text()):
            found = _MODEL.search(entry["arguments"])
            known = entry["repository"] in OWNERS or entry["script"].startswith("trl.scripts.")
            if known and found and found[1] in MODELS and (not names or entry["name"] in names):
                path = copies / entry["repository"] / entry["script"]
                yield {**entry, "script": str(path.resolve()) if entry["repository"] else entry["script"]}


def row(entry: dict[str, Any]) -> dict[str, Any]:
    """One script, rehearsed with few layers where that is proved, and with all."""
    told, seen = (
        zerokit.rehearse(
            **{"script" if entry["repository"] else "module": entry["script"]},
            arguments=shlex.split(entry["arguments"]), gpu="h200", gpus=entry.get("gpus", 1),
            no_cache=True, whole=whole,
        ).to_dict()
        for whole in (False, True)
    )  # fmt: skip
    if seen["stopped"] or told["depth"] == "whole":
        return {"name": entry["name"], "depth": told["depth"], "stopped": seen["stopped"]}
    few, all_layers = told["ranks"][0], seen["ranks"][0]
    sizes = [{**one["phases"], "reserved": one["peak_reserved_bytes"]} for one in (few, all_layers)]
    off = {name: sizes[0].get(name, 0) / size - 1 for name, size in sizes[1].items() if size >= 1 << 20}
    seconds = [one["step_seconds"] for one in (told, seen)]
    return {
        "name": entry["name"], "depth": told["depth"], "off": off,
        "step_off": seconds[0] / seconds[1] - 1 if None not in seconds else None,
        "cpu_seconds": [round(one["cpu_seconds"], 1) for one in (told, seen)],
    }  # fmt: skip


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("names", nargs="*", help="of scripts; all if none is named")
    parser.add_argument("--copies", type=Path, required=True)
    parser.add_argument("--list", action="append", choices=[f"public{one}" for one in LISTS])
    parser.add_argument("--jsonl", type=Path, help="append a line for each script")
    options = parser.parse_args()
    lists = [one.removeprefix("public") for one in options.list or ()] or list(LISTS)
    found = list(scripts(lists, options.names, options.copies.resolve()))
    jsonl = options.jsonl.resolve() if options.jsonl else None
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder, zerokit.shared_imports():
        inputs = Inputs(Path(folder) / "inputs")
        _folder(inputs)
        os.chdir(inputs.folder)
        for entry in found:
            one = row(entry)
            if "off" in one:
                phases = {name: value for name, value in one["off"].items() if name != "reserved"}
                furthest = max(phases, key=lambda name: abs(phases[name]))
                worst = max(worst, abs(phases[furthest]))
                said = f"{phases[furthest]:+.4%} ({furthest}), reserved {one['off']['reserved']:+.2%}"
                said = f"layers {one['depth']['layers']}: {said}, CPU seconds {one['cpu_seconds']}"
            else:
                said = one["stopped"]["reason"] if one["stopped"] else "whole"
            print(f"{one['name']}: {said}", flush=True)
            if jsonl:
                append(jsonl, one)
    return 1 if worst > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
