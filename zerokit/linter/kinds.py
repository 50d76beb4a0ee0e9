"""What a file is: by its name, and by the keys in it."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from zerokit.errors import FileInputError
from zerokit.linter.accelerate.keys import key_list as accelerate_keys
from zerokit.linter.deepspeed.keylist import wrapper
from zerokit.linter.deepspeed.tables import key_list
from zerokit.linter.trainers import trainer_of
from zerokit.strictload import Document, parse_json, parse_yaml
from zerokit.suggest import nearest, synonym

KINDS = ("deepspeed", "accelerate", "hostfile", "plan", "recipe")
"""What ``--kind`` takes; a file may also be ``arguments`` (of a trainer) or ``other``."""

_HOSTFILE_LINE = re.compile(r"^\s*[^\s#{\[\"':]+\s+slots\s*=", re.MULTILINE)
_PLAN_SCHEMA = "zerokit.planfile/"
UNKNOWN = "is neither a DeepSpeed JSON, an accelerate YAML, a hostfile, a plan nor a recipe; say --kind"
_ARGUMENTS = frozenset(
    {
        "output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs",
        "learning_rate", "model_name_or_path", "save_steps", "logging_steps", "evaluation_strategy",
        "eval_strategy", "do_train", "report_to", "save_strategy", "lr_scheduler_type", "warmup_ratio",
        "gradient_checkpointing", "max_steps",
    }
)  # fmt: skip
_MODEL = frozenset({"architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"})
_PACKAGE = frozenset({"dependencies", "devDependencies", "scripts"})


_OF_OTHERS = (".py", ".pyi", ".ipynb", ".sh", ".slurm", ".sbatch", ".md", ".rst", ".toml")


@functools.lru_cache(maxsize=1)
def parsed(path: str, text: str, grammar: Literal["json", "yaml"]) -> Document:
    """What the text says, in either grammar; kept, for who asks first what it is. Not to be changed."""
    return parse_json(text, path, strict=False) if grammar == "json" else parse_yaml(text, path)


def detect_kind(path: str, text: str) -> str:
    """What a file is.

    Raises:
        FileInputError: it cannot be told, or the text cannot be read at all.
    """
    name = pathlib.Path(path).name.lower()
    if name.endswith(_OF_OTHERS) or text.startswith("#!"):
        raise FileInputError(path, UNKNOWN, 1, 1)
    start = text.lstrip()[:1]
    has_lines = _HOSTFILE_LINE.search(text) and not name.endswith((".json", ".yaml", ".yml"))
    if start != "{" and (name.startswith("hostfile") or has_lines):
        return "hostfile"
    if name.endswith(".json") or (start == "{" and not name.endswith((".yaml", ".yml"))):
        value = parsed(path, text, "json").value
        return _kind_of_json(value) if isinstance(value, dict) else "deepspeed"
    value = parsed(path, text, "yaml").value
    if isinstance(value, dict):
        return _kind_of_mapping(path, value)
    raise FileInputError(path, UNKNOWN, 1, 1)


def _kind_of_json(value: Mapping[str, Any]) -> str:
    keys = set(value)
    if "distributed_type" in keys:
        return "accelerate"
    table = key_list()
    deepspeed_keys = keys & {*table["blocks"][""]["keys"], *table["removed"]["top_level"]}
    if "zero_optimization" in keys or wrapper(value) is not None:
        return "deepspeed"
    if len(keys & _ARGUMENTS) >= 2 or trainer_of(value):
        return "arguments"
    if keys & (_MODEL | _PACKAGE) and not keys & {"train_micro_batch_size_per_gpu", "train_batch_size"}:
        return "other"
    if not keys or deepspeed_keys or any(_could_be(key) for key in keys):
        return "deepspeed"
    return "other"


def _could_be(key: str) -> bool:
    """Whether a top-level key looks like one of DeepSpeed's, misspelt or misplaced."""
    blocks = key_list()["blocks"]
    if nearest(key, blocks[""]["keys"]) or synonym(key, blocks[""]["keys"]):
        return True
    return key in ("stage", "zero_stage", "offload_optimizer", "offload_param", "overlap_comm")


def _kind_of_mapping(path: str, value: dict[str, Any]) -> str:
    keys = {str(key) for key in value}
    if str(value.get("schema", "")).startswith(_PLAN_SCHEMA):
        return "plan"
    if keys & {"distributed_type", "compute_environment", "deepspeed_config", "num_machines"}:
        return "accelerate"
    if trainer_of(value):
        return "arguments"
    if keys & {"model", "params"} and keys & {"gpus", "gpu", "vram", "expect", "nodes"}:
        return "recipe"
    deepspeed = set(key_list()["blocks"][""]["keys"])
    if len(keys & deepspeed) >= max(1, len(keys) // 2):
        raise FileInputError(path, "is a DeepSpeed configuration in YAML; DeepSpeed reads JSON only", 1, 1)
    if len(keys & _ARGUMENTS) >= 2:
        return "arguments"
    if keys & set(accelerate_keys()["cluster"]):
        return "accelerate"
    if isinstance(value.get("deepspeed"), str):
        return "arguments"
    raise FileInputError(path, UNKNOWN, 1, 1)


def what_else(value: object) -> str:
    """What a JSON is that DeepSpeed does not read."""
    keys = set(value) if isinstance(value, dict) else set()
    if keys & _MODEL:
        return "looks like a model's config.json"
    if keys & _PACKAGE:
        return "looks like a package.json"
    return "has none of DeepSpeed's keys"
