"""DeepSpeed's and Accelerate's own settings whose names or types suggest a path: each is in our table."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest

from zerokit.emit import outside

_SUGGESTS = re.compile(
    r"(^|_)(path|paths|dir|dirs|file|filename|files|folder|host|hostfile|hosts|ip|url|uri|storage|module|"
    r"modules|command|commands|image|sudo|vm)(_|$)"
)
_NO_PATH = {
    "use_node_local_storage": "whether a checkpoint is saved on each node: a boolean",
    "save_storage": "a name in the writer's statistics",
    "save_storage_bytes": "a name in the writer's statistics",
    "save_storage_secs": "a name in the writer's statistics",
    "path": "a name in the writer's statistics",
    "data_cluster_paths": "in a checkpoint's state, not in a configuration",
    "module_depth": "a number",
    "top_modules": "a number",
    "leaf_module": "a block",
    "keep_in_fp32_modules": "names of a model's modules",
    "max_in_cpu": "a number",
    "keep_module_on_host": "a boolean",
    "override_module_apply": "a boolean",
    "module_granularity_threshold": "a number",
    "modules": "names of a model's modules",
    "related_modules": "names of a model's modules",
    "modules_to_not_convert": "names of a model's modules",
    "main_training_function": "a function of the script",
}
_PARTS = ("runtime", "monitor", "compile", "comm", "profiling", "autotuning", "checkpoint", "io",
          "datastates", "elasticity", "utils")  # fmt: skip


def _deepspeed_names() -> dict[str, str]:
    """Names of settings, with where they are defined: fields of its models, and values of its constants."""
    deepspeed = pytest.importorskip("deepspeed")
    names: dict[str, str] = {}
    root = Path(deepspeed.__file__).parent
    for part in _PARTS:
        for module in pkgutil.walk_packages([str(root / part)], f"deepspeed.{part}."):
            if not module.name.endswith(("config", "constants", "_config")):
                continue
            loaded = importlib.import_module(module.name)
            for name, value in vars(loaded).items():
                if name.isupper() and isinstance(value, str) and re.fullmatch(r"[a-z0-9_]+", value):
                    names.setdefault(value, f"{module.name}.{name}")
                for field, about in getattr(value, "model_fields", {}).items():
                    names.setdefault(field, f"{module.name}.{name}")
                    if "Path" in str(about.annotation) and not _SUGGESTS.search(field):
                        names[f"{field}_path"] = f"{module.name}.{name}"
    return names


def test_every_setting_of_deepspeed_that_names_a_path_is_in_the_table() -> None:
    names = _deepspeed_names()
    assert {"output_path", "nvme_path", "output_file", "data_cluster_path"} <= names.keys()  # it looks
    known = {part for row in outside.DEEPSPEED for part in row.key.split(".")} | _NO_PATH.keys()
    found = {name: where for name, where in names.items() if _SUGGESTS.search(name) and name not in known}
    assert not found
    stale = {row.key for row in outside.DEEPSPEED if not row.key.startswith("nebula")
             and row.key.removesuffix(".*").split(".")[-1] not in {*names, "enabled"}}  # fmt: skip
    assert not stale


def test_every_setting_of_accelerate_that_names_a_path_is_in_the_table() -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    dataclasses = importlib.import_module("accelerate.utils.dataclasses")
    names = {field.name for kind in (arguments.ClusterConfig, arguments.SageMakerConfig,
             dataclasses.DeepSpeedPlugin) for field in fields(kind)}  # fmt: skip
    keys = {part for row in outside.ACCELERATE for part in row.key.split(".")}
    known = keys | {name.removeprefix("deepspeed_") for name in keys} | _NO_PATH.keys()
    assert {name for name in names if _SUGGESTS.search(name)} - known == set()
