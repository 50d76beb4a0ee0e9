"""What ``zerokit convert`` writes, read by Accelerate, Transformers and DeepSpeed; and its own converter."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fsdp2_files import SCRIPT, launched, run, settings_of
from tests.support.packages import needs
from zerokit.domain.fsdp2_config import from_accelerate
from zerokit.planner.conversion import convert

needs("accelerate")
CORPUS = Path(__file__).parent.parent / "corpus"
FSDP_1 = ["llama-factory-fsdp1.yaml", "accelerate-fsdp1-hybrid.yaml"]
TO_FSDP2 = [
    "good/axolotl-zero1.json", "good/axolotl-zero3-offload-all.json", "good/llama-factory-z2.json",
    "good/llama-factory-z3-offload.json", "good/accelerate-plugin-zero2.yaml",
    "convert/accelerate-zero3-plugin.yaml", "convert/mics.json", *(f"convert/{name}" for name in FSDP_1),
]  # fmt: skip


@pytest.mark.parametrize("name", FSDP_1)
def test_version_1_becomes_what_accelerates_own_command_writes(name: str) -> None:
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    path = CORPUS / "convert" / name
    wanted = convert_config_to_fsdp2(yaml.safe_load(path.read_text()))
    body = yaml.safe_load(convert(str(path)).texts["accelerate.yaml"])
    groups = body.pop("parallelism_config", None)  # which the command forgets
    assert body == wanted
    assert (groups is not None) == ("HYBRID" in path.read_text())


@pytest.mark.parametrize("name", TO_FSDP2)
def test_accelerates_plugin_takes_the_yaml(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    gpus = 16 if "mics" in name else 8 if name.endswith(".json") else None
    convert(str(CORPUS / name), gpus=gpus, out=str(tmp_path))
    environment = launched(tmp_path / "accelerate.yaml")
    for key in [key for key in os.environ if key.startswith(("FSDP_", "PARALLELISM_CONFIG_"))]:
        monkeypatch.delenv(key)
    for key, value in environment.items():
        if key.startswith(("FSDP_", "PARALLELISM_CONFIG_")):
            monkeypatch.setenv(key, value)
    read = from_accelerate(yaml.safe_load((tmp_path / "accelerate.yaml").read_text()))
    seen = settings_of(FullyShardedDataParallelPlugin(), environment)
    assert seen["reshard"] == read.settings.reshard_after_forward
    assert seen["offload"] == ("CPUOffloadPolicy" if read.settings.offload else "OffloadPolicy")
    assert seen["wraps"] == "transformer_auto_wrap_policy"
    if read.names_precision:
        assert seen["precision"] == read.settings.precision


@pytest.mark.parametrize("name", ["accelerate-fsdp2.yaml", *FSDP_1])
def test_deepspeed_takes_the_json(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate's plugin reads the file, and DeepSpeed's own class what that makes of it."""
    needs("deepspeed")
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setenv("WORLD_SIZE", "1")
    convert(str(CORPUS / "convert" / name), to="deepspeed", out=str(tmp_path))
    body = yaml.safe_load((tmp_path / "accelerate.yaml").read_text())["deepspeed_config"]
    plugin = DeepSpeedPlugin(hf_ds_config=body["deepspeed_config_file"])
    said = json.loads((tmp_path / "ds_config.json").read_text())
    assert plugin.zero_stage == said["zero_optimization"]["stage"]
    filled = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    config: dict[str, Any] = copy.deepcopy(plugin.deepspeed_config) | filled
    config["zero_optimization"].pop("zero_hpz_partition_size", None)  # of several nodes
    read = DeepSpeedConfig(config)
    assert read.zero_optimization_stage == said["zero_optimization"]["stage"]
    assert read.bfloat16_config.enabled
    assert read.zero_config.gather_16bit_weights_on_model_save == (read.zero_optimization_stage == 3)


def test_a_trainer_takes_both_files(tmp_path: Path) -> None:
    needs("transformers")
    needs("deepspeed")
    from transformers import TrainingArguments

    convert(str(CORPUS / "convert/trainer-zero3.json"), out=str(tmp_path))
    block = str(tmp_path / "fsdp_config.json")
    arguments = TrainingArguments(str(tmp_path / "out"), fsdp=True, fsdp_config=block, use_cpu=True)
    assert arguments.fsdp_plugin_args["reshard_after_forward"] is True
    convert(str(CORPUS / "convert/trainer-fsdp1.json"), to="deepspeed", out=str(tmp_path))
    arguments = TrainingArguments(
        str(tmp_path / "out"), deepspeed=str(tmp_path / "ds_config.json"), use_cpu=True, bf16=True,
        per_device_train_batch_size=3,
    )  # fmt: skip
    config = arguments.hf_deepspeed_config.config
    assert config["zero_optimization"]["stage"] == 2 and config["train_micro_batch_size_per_gpu"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(("reshards", "stage"), [(True, 3), (False, 2)])
def test_two_ranks_train_under_deepspeed_with_what_was_fsdps(
    reshards: bool, stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file leaves open, Accelerate fills from the script."""
    needs("deepspeed")
    needs("transformers")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    body = yaml.safe_load((CORPUS / "convert/accelerate-fsdp2.yaml").read_text()) | {"num_processes": 2}
    body["fsdp_config"]["fsdp_reshard_after_forward"] = reshards
    (tmp_path / "fsdp2.yaml").write_text(yaml.safe_dump(body))
    convert(str(tmp_path / "fsdp2.yaml"), out=str(tmp_path))
    launch = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", "--main_process_port", "0"]
    seen = run([*launch, str(SCRIPT.with_name("deepspeed_accelerated.py"))], tmp_path)
    assert seen["stage"] == stage and seen["losses"][-1] < seen["losses"][0]
    assert seen["micro_batch"] == seen["gradient_accumulation"] == 2
