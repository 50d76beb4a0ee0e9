"""Mistakes, one at a time, in accelerate YAMLs that work."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.linter.mutations import Mutation
from zerokit.strictload import parse_yaml


def of_yaml(text: str) -> Iterator[Mutation]:
    """Mutations of an accelerate YAML, one for each kind that applies."""
    value = parse_yaml(text).value
    lines = text.splitlines()
    for kind, (old, new) in _YAML.items():
        found = [index for index, line in enumerate(lines) if line.strip().startswith(old)]
        if not found:
            continue
        index = found[0]
        indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        broken = [*lines[:index], *([indent + new] if new else []), *lines[index + 1 :]]
        yield Mutation(kind, "\n".join(broken) + "\n", frozenset({index + 1} if new else ()))
    if value.get("distributed_type") == "DEEPSPEED":
        for kind, added in _YAML_ADDED.items():
            key = added.partition(":")[0]
            if key not in value:
                end = len(text.rstrip().splitlines()) + 1
                yield Mutation(kind, f"{text.rstrip()}\n{added}\n", frozenset({end}))


_YAML = {
    "yaml-type-lower": ("distributed_type: DEEPSPEED", "distributed_type: deepspeed"),
    "yaml-type-unknown": ("distributed_type:", "distributed_type: ZERO3"),
    "yaml-no-type": ("distributed_type:", ""),
    "yaml-processes-text": ("num_processes:", "num_processes: four"),
    "yaml-processes-zero": ("num_processes:", "num_processes: 0"),
    "yaml-processes-fraction": ("num_processes:", "num_processes: 2.5"),
    "yaml-processes-misspelt": ("num_processes:", "num_proceses: 4"),
    "yaml-machines-text": ("num_machines:", "num_machines: '1'"),
    "yaml-machines-null": ("num_machines:", "num_machines: null"),
    "yaml-rank-beyond": ("machine_rank:", "machine_rank: 3"),
    "yaml-environment": ("compute_environment:", "compute_environment: LOCAL"),
    "yaml-precision-unquoted": ("mixed_precision:", "mixed_precision: no"),
    "yaml-precision-fp32": ("mixed_precision:", "mixed_precision: fp32"),
    "yaml-precision-float16": ("mixed_precision:", "mixed_precision: float16"),
    "yaml-precision-true": ("mixed_precision:", "mixed_precision: true"),
    "yaml-stage-5": ("zero_stage:", "zero_stage: 5"),
    "yaml-stage-fraction": ("zero_stage:", "zero_stage: 2.0"),
    "yaml-stage-word": ("zero_stage:", "zero_stage: three"),
    "yaml-stage-misspelt": ("zero_stage:", "zero_stge: 3"),
    "yaml-init-none": ("zero3_init_flag:", "zero3_init_flag: none"),
    "yaml-save-word": ("zero3_save_16bit_model:", "zero3_save_16bit_model: 'sure'"),
    "yaml-offload-gpu": ("offload_optimizer_device:", "offload_optimizer_device: gpu"),
    "yaml-accumulation-zero": ("gradient_accumulation_steps:", "gradient_accumulation_steps: 0"),
    "yaml-clipping-word": ("gradient_clipping:", "gradient_clipping: none"),
    "yaml-launcher": ("deepspeed_multinode_launcher:", "deepspeed_multinode_launcher: torchrun"),
    "yaml-rdzv": ("rdzv_backend:", "rdzv_backend: c10"),
    "yaml-tab": ("num_machines:", "\tnum_machines: 1"),
    "yaml-unknown-cpu": ("use_cpu:", "use_gpu: true"),
}
_YAML_ADDED = {
    "yaml-gpu-list": "gpu_ids: [0, 1]",
    "yaml-port-high": "main_process_port: 99999",
    "yaml-port-text": "main_process_port: '29501'",
    "yaml-unknown-key": "turbo_mode: true",
    "yaml-nested-at-top": "zero_stage: 3",
    "yaml-fsdp-beside": "fsdp_config: {fsdp_version: 2}",
}
