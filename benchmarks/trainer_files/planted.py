"""Plant mistakes into trainers' public examples: ``python -m benchmarks.trainer_files.planted FOLDER…``.

FOLDER is a checkout of axolotl, LLaMA-Factory, ms-swift, TRL or alignment-handbook. Prints for each kind of
mistake how many were planted, and how many ``check`` found: an error or a warning that the file without the
mistake has not. ``--keep DIR`` writes the files, for the trainers' own validators.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import options_of
from zerokit.linter.files import check_files
from zerokit.trainer_files.keys import trainer_of

Values = dict[str, Any]
Plant = Callable[[Values, str, random.Random], bool]
"""Changes a file of a trainer (its name) and tells whether it could."""
_LONG = 6


def _renamed(values: Values, key: str, name: str) -> bool:
    """A key under another name, in its place."""
    if name == key or name in values:
        return False
    items = [(name if one == key else one, value) for one, value in values.items()]
    values.clear()
    values.update(items)
    return True


def _slip(change: Callable[[str, int], str]) -> Plant:
    def plant(values: Values, _: str, chance: random.Random) -> bool:
        keys = [key for key, value in values.items() if len(key) >= _LONG and value is not None]
        if not keys:
            return False
        key = chance.choice(keys)
        return _renamed(values, key, change(key, chance.randrange(1, len(key) - 1)))

    return plant


def _below(change: Callable[[Values, random.Random], bool]) -> Plant:
    def plant(values: Values, name: str, chance: random.Random) -> bool:
        if name != "axolotl":
            return False
        blocks = [one for one in values.get("datasets") or () if isinstance(one, dict)]
        blocks += [one for one in (values.get("fsdp_config"), values.get("trl")) if isinstance(one, dict)]
        return bool(blocks) and change(chance.choice(blocks), chance)

    return plant


def _slip_below(block: Values, chance: random.Random) -> bool:
    keys = [key for key, value in block.items() if len(key) > 3 and value is not None]
    if not keys:
        return False
    key = chance.choice(keys)
    return _renamed(block, key, key[:2] + key[3:])


def _foreign_below(block: Values, chance: random.Random) -> bool:
    block[chance.choice(["train_on_split", "shard_strategy", "max_rows"])] = 1
    return True


def _set(of: Mapping[str, Mapping[str, Sequence[object]]], *, given: bool | None = None) -> Plant:
    """A plant that writes one of these values for a key; ``given``: whether the file has the key."""

    def plant(values: Values, name: str, chance: random.Random) -> bool:
        choices = [
            (key, one)
            for key, ones in of.get(name, {}).items()
            for one in ones
            if given is None or given == (key in values)
        ]
        if not choices:
            return False
        key, value = chance.choice(choices)
        values[key] = value
        return True

    return plant


def _together(of: Mapping[str, Sequence[Values]]) -> Plant:
    """A plant that writes settings which do not go together; ``None`` takes a key out."""

    def plant(values: Values, name: str, chance: random.Random) -> bool:
        if not of.get(name) or (name == "llamafactory" and "model_name_or_path" not in values):
            return False
        for key, value in chance.choice(of[name]).items():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        return True

    return plant


_BATCH = {
    "axolotl": ["micro_batch_size", "sequence_len", "gradient_accumulation_steps", "lora_r"],
    "llamafactory": ["per_device_train_batch_size", "cutoff_len", "lora_rank", "gradient_accumulation_steps"],
    "swift": ["per_device_train_batch_size", "lora_rank", "max_length", "micro_batch_size"],
    "trl": ["per_device_train_batch_size", "max_length", "gradient_accumulation_steps"],
}


def _batch(value: object) -> Mapping[str, Mapping[str, Sequence[object]]]:
    return {name: {key: [value] for key in keys} for name, keys in _BATCH.items()}


PLANTS: Mapping[str, Plant] = {
    "letter left out": _slip(lambda key, at: key[:at] + key[at + 1 :]),
    "letters swapped": _slip(lambda key, at: key[:at] + key[at + 1] + key[at] + key[at + 2 :]),
    "letter doubled": _slip(lambda key, at: key[:at] + key[at] + key[at:]),
    "another letter": _slip(lambda key, at: key[:at] + ("x" if key[at] != "x" else "y") + key[at + 1 :]),
    "hyphens": _slip(lambda key, _: key.replace("_", "-")),
    "camel case": _slip(lambda key, _: key[0] + key.title().replace("_", "")[1:]),
    "key of another trainer": _set({
        "axolotl": {"cutoff_len": [2048], "finetuning_type": ["lora"], "per_device_train_batch_size": [1]},
        "llamafactory": {"sequence_len": [2048], "lora_r": [8], "micro_batch_sise": [1]},
        "swift": {"cutoff_len": [2048], "lora_r": [8], "sequence_len": [4096]},
    }),
    "misspelt key of a block": _below(_slip_below),
    "unknown key of a block": _below(_foreign_below),
    "text for a number": _set(_batch("many"), given=True),
    "block for a number": _set(_batch({"value": 1}), given=True),
    "list for a number": _set(_batch([1, 2]), given=True),
    "fraction for a whole number": _set(_batch(1.5), given=True),
    "no truth value": _set({
        "axolotl": {"load_in_4bit": ["maybe"], "sample_packing": ["some"], "flash_attention": [2]},
        "llamafactory": {"do_train": ["maybe"], "bf16": ["half"], "packing": ["some"]},
        "swift": {"packing": ["some"], "lazy_tokenize": ["maybe"]},
        "trl": {"bf16": ["half"], "gradient_checkpointing": ["some"], "packing": ["maybe"]},
    }),
    "unknown choice": _set({
        "axolotl": {"rl": ["ppo"], "optimizer": ["adamm"], "gradient_checkpointing": ["sometimes"]},
        "llamafactory": {"finetuning_type": ["qlora"], "stage": ["grpo"]},
        "swift": {"rlhf_type": ["sft"]},
        "trl": {"packing_strategy": ["ffd"]},
    }),
    "retired key": _set({
        "axolotl": {"max_packed_sequence_len": [2048], "s2_attention": [True], "unsloth_lora_mlp": [True]},
        "swift": {"train_type": ["lora"]},
        "trl": {"max_seq_length": [2048], "torch_dtype": ["bfloat16"]},
    }, given=False),
    "cadence given twice": _together({
        "axolotl": [{"warmup_steps": 10, "warmup_ratio": 0.1}, {"save_steps": 50, "saves_per_epoch": 2},
                    {"eval_steps": 50, "evals_per_epoch": 2, "val_set_size": 0.1}],
        "llamafactory": [{"eval_dataset": "identity", "val_size": 0.1}],
        "swift": [{"warmup_ratio": 0.1, "warmup_steps": 10}],
    }),
    "quantised without an adapter": _together({
        "axolotl": [{"adapter": None, "load_in_4bit": True}, {"adapter": "qlora", "load_in_4bit": None}],
        "llamafactory": [{"finetuning_type": "full", "quantization_bit": 4}],
        "trl": [{"load_in_4bit": True, "load_in_8bit": True}],
    }),
    "methods that exclude each other": _together({
        "axolotl": [{"sample_packing": True, "rl": "dpo"}, {"optimizer": "muon", "deepspeed": "zero2.json"},
                    {"deepspeed": "zero2.json", "fsdp": ["full_shard"]},
                    {"cut_cross_entropy": True, "liger_cross_entropy": True, "bf16": True}],
        "llamafactory": [{"finetuning_type": "lora", "use_galore": True},
                         {"stage": "dpo", "neat_packing": True},
                         {"mask_history": True, "train_on_prompt": True}],
        "swift": [{"packing": True, "lazy_tokenize": True}, {"deepspeed": "zero2", "fsdp": "fsdp2"}],
    }),
    "something needed is missing": _together({
        "axolotl": [{"datasets": None, "pretraining_dataset": None}, {"streaming": True, "max_steps": None},
                    {"plugins": None, "liger_rms_norm": True}, {"chat_template": "jinja"}],
        "llamafactory": [{"stage": "ppo", "reward_model": None}, {"do_train": True, "dataset": None}],
    }),
}  # fmt: skip


def examples(folders: Sequence[Path]) -> Iterator[tuple[Path, Values, str]]:
    """The files of trainers below folders, each with the trainer's name."""
    for path in sorted(one for folder in folders for one in folder.rglob("*.y*ml")):
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            continue
        trainer = trainer_of(values) if isinstance(values, dict) else None
        if trainer is not None:
            yield path, values, trainer.name


def findings(path: Path) -> Counter[tuple[str, str]]:
    """The errors and warnings of a file, without where they are."""
    found = check_files([str(path)])[0].findings
    return Counter((one.rule, one.message) for one in found if one.severity != "note")


def planted(
    files: Sequence[tuple[Path, Values, str]], count: int, folder: Path, seed: int
) -> Iterator[tuple[str, Path, bool]]:
    """Kind, file and whether it was found, of as many mistakes, of each kind as many."""
    chance, kinds = random.Random(seed), list(PLANTS)
    clean = folder / "clean.yaml"
    for number in range(count):
        kind = kinds[number % len(kinds)]
        while True:
            source, values, name = chance.choice(files)
            changed = copy.deepcopy(values)
            if PLANTS[kind](changed, name, chance) and changed != values:
                break
        path = folder / f"{number:03}-{name}-{source.stem}.yaml"
        path.write_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True), encoding="utf-8")
        clean.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
        yield kind, path, bool(findings(path) - findings(clean))


def main(arguments: Sequence[str] | None = None) -> None:
    """Plant, check and print."""
    parser = options_of(__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the files stay")
    options = parser.parse_args(arguments)
    files = list(examples(options.folder))
    total, found = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        for kind, path, is_found in planted(files, options.count, keep, options.seed):
            total[kind] += 1
            found[kind] += is_found
            if not is_found:
                print(f"not found: {kind}: {path.name}")
    for kind, count in total.items():
        print(f"{kind:34}{found[kind]:4} of {count}")
    print(f"{len(files)} files; {sum(found.values())} of {sum(total.values())} mistakes found")


if __name__ == "__main__":
    main()
