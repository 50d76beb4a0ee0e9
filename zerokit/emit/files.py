"""The configuration files of one plan: a DeepSpeed JSON per consumer, and the accelerate YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.accelerate import accelerate_yaml
from zerokit.emit.deepspeed import emit_deepspeed
from zerokit.values import frozen_dataclass

DEEPSPEED_NAMES: Mapping[str, str] = {
    "raw": "ds_config.json",
    "trainer": "ds_config.trainer.json",
    "accelerate": "ds_config.accelerate.json",
}
"""Variant -> file name. Only what differs from the raw one is written."""
ACCELERATE_NAME = "accelerate.yaml"


@frozen_dataclass
class PlanFiles:
    """File name -> text; kind -> file name; and why each DeepSpeed key has its value."""

    texts: Mapping[str, str]
    names: Mapping[str, str]
    reasons: Mapping[str, str]

    def readers(self) -> dict[str, frozenset[str]]:
        """Who reads each DeepSpeed JSON: a variant of its own one reader, the first file all others."""
        own_readers = {name: key.removeprefix("deepspeed_") for key, name in self.names.items() if "_" in key}
        rest = frozenset(DEEPSPEED_NAMES) - frozenset(own_readers.values())
        return {
            self.names["deepspeed"]: rest,
            **{name: frozenset({key}) for name, key in own_readers.items()},
        }


def plan_files(strategy: Strategy, job: Job, *, nodes: int, folder: Path) -> PlanFiles:
    """The files of a plan in ``folder``, whose whole path is written into the accelerate YAML: accelerate
    looks a relative one up in the folder that it is started from."""
    # neither a Trainer nor Accelerate can run a pipeline
    variants = DEEPSPEED_NAMES if strategy.pipeline_parallel == 1 else ("raw",)
    emitted = {variant: emit_deepspeed(strategy, job, variant=variant) for variant in variants}
    texts, names = {}, {}
    for variant, emitted_file in emitted.items():
        if variant == "raw" or emitted_file.config != emitted["raw"].config:
            name = DEEPSPEED_NAMES[variant]
            texts[name] = json.dumps(emitted_file.config, indent=2) + "\n"
            names["deepspeed" if variant == "raw" else f"deepspeed_{variant}"] = name
    if "accelerate" in emitted:
        named = names.get("deepspeed_accelerate", names["deepspeed"])
        texts[ACCELERATE_NAME] = accelerate_yaml(
            strategy, nodes, ds_config_path=str((folder / named).absolute()), attention=job.attention
        )
        names["accelerate"] = ACCELERATE_NAME
    return PlanFiles(texts=texts, names=names, reasons=emitted["raw"].reasons)
