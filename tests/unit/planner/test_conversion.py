"""Files for DeepSpeed and FSDP2 in each other's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import zerokit
from tests.support.fsdp2_strategies import fsdp2_strategies
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.fsdp2_config import from_accelerate, from_trainer
from zerokit.domain.strategy import Strategy
from zerokit.emit.fsdp2 import accelerate_yaml
from zerokit.errors import InputError
from zerokit.linter.files import check_files
from zerokit.planner.conversion import Conversion, convert

CORPUS = Path(__file__).parents[2] / "corpus"
SHOWS = hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def converted(name: str, **options: Any) -> Conversion:
    return convert(str(CORPUS / name), **options)


def alarms(folder: Path) -> list[str]:
    """What ``check`` has against the files that were written there."""
    names = [str(path) for path in folder.iterdir() if path.name in ("accelerate.yaml", "ds_config.json")]
    found = [one for file in check_files(names) for one in file.findings if one.severity != "note"]
    return [f"{one.rule}: {one.message}" for one in found]


def yaml_of(conversion: Conversion) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(conversion.texts["accelerate.yaml"])
    return body


def by_key(conversion: Conversion) -> dict[str, tuple[str, dict[str, Any]]]:
    return {key: (one.kind, dict(one.becomes)) for one in conversion.changes for key in one.keys}


@given(strategy=fsdp2_strategies())
@SHOWS
def test_there_and_back_keeps_what_both_can_say(tmp_path: Path, strategy: Strategy) -> None:
    (tmp_path / "fsdp2.yaml").write_text(accelerate_yaml(strategy, 1))
    there = convert(str(tmp_path / "fsdp2.yaml"), out=str(tmp_path / "zero"))
    again = convert(str(tmp_path / "zero" / "accelerate.yaml"), out=str(tmp_path / "back"))
    back = from_accelerate(yaml_of(again))
    assert alarms(tmp_path / "zero") == alarms(tmp_path / "back") == []
    said, kept = from_accelerate(yaml.safe_load(accelerate_yaml(strategy, 1))).settings, back.settings
    for name in ("reshard_after_forward", "offload", "precision"):
        assert getattr(kept, name) == getattr(said, name), name
    assert kept.broadcasts == (said.broadcasts and said.reshard_after_forward)  # of ZeRO-3 alone
    zero = from_config(json.loads(there.texts["ds_config.json"])).zero
    groups = strategy.world_size // said.replicas if said.replicas > 1 and zero.stage == 3 else 1
    assert zero.zero_hpz_partition_size == groups
    assert back.processes == strategy.world_size


@given(
    stage=st.sampled_from([0, 1, 2, 3]), optimizer=st.sampled_from(["none", "cpu", "nvme"]),
    weights=st.sampled_from(["none", "cpu", "nvme"]), precision=st.sampled_from(["bf16", "fp16"]),
)  # fmt: skip
@SHOWS
def test_a_stage_becomes_the_nearest(
    tmp_path: Path, stage: int, optimizer: str, weights: str, precision: str
) -> None:
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero["offload_optimizer"] = {"device": optimizer if stage == 3 else min(optimizer, "cpu", key=len)}
    if stage == 3:
        zero["offload_param"] = {"device": weights}
    for block in zero.values():
        if isinstance(block, dict) and block["device"] == "nvme":
            block["nvme_path"] = "/local_nvme"
    body = {"train_micro_batch_size_per_gpu": 1, precision: {"enabled": True}, "zero_optimization": zero}
    (tmp_path / "ds_config.json").write_text(json.dumps(body))
    conversion = convert(str(tmp_path / "ds_config.json"), gpus=8, out=str(tmp_path / "fsdp2"))
    assert alarms(tmp_path / "fsdp2") == []
    found = from_accelerate(yaml_of(conversion)).settings
    devices = {block["device"] for block in zero.values() if isinstance(block, dict)}
    assert found.reshard_after_forward == (stage == 3)
    assert found.offload == bool(devices - {"none"})
    assert found.precision == precision
    trainers = from_trainer(json.loads(conversion.texts["fsdp_config.json"]), precision).settings
    assert trainers == found
    seen = by_key(conversion)
    assert seen["zero_optimization.stage"][0] == ("kept" if stage == 3 else "changed")
    assert seen["gradient_clipping"][0] == "script"  # DeepSpeed clips unasked


def test_every_key_of_a_file_is_accounted_for() -> None:
    conversion = converted("good/llama-factory-z3-offload.json", gpus=8)
    seen = by_key(conversion)
    said = json.loads((CORPUS / "good/llama-factory-z3-offload.json").read_text())
    for key in (*said, *(f"zero_optimization.{name}" for name in said["zero_optimization"])):
        assert any(one == key or one.startswith(f"{key}.") for one in seen) or not said.get(key), key
    assert seen["zero_optimization.reduce_bucket_size"][0] == "lost"
    assert seen["bf16.enabled"] == ("script", {})  # "auto": a Trainer's --bf16
    assert "mixed_precision" not in yaml_of(conversion)


def test_keys_without_a_counterpart_are_lost(tmp_path: Path) -> None:
    body = {
        "train_micro_batch_size_per_gpu": 1,
        "autotuning": {"enabled": True},
        "dataloader_drop_last": True,
    }
    (tmp_path / "ds.json").write_text(json.dumps(body))
    lost = by_key(convert(str(tmp_path / "ds.json"), gpus=2))
    assert lost["autotuning.enabled"] == lost["dataloader_drop_last"] == ("lost", {})


def test_what_a_file_says_of_the_launch_stays() -> None:
    body = yaml_of(converted("convert/accelerate-fsdp1-hybrid.yaml", to="deepspeed"))
    assert (body["main_process_ip"], body["main_process_port"]) == ("10.0.0.1", 29500)
    assert (body["num_machines"], body["num_processes"]) == (2, 16)
    assert "mixed_precision" not in body and "fsdp_config" not in body


def test_several_nodes_are_told_how_they_are_started() -> None:
    text = converted("good/axolotl-zero3.json", gpus=16, nodes=2).texts["accelerate.yaml"]
    assert "# On node k add: --machine_rank k --main_process_ip" in text and "num_machines: 2" in text


def test_hybrid_sharding_stays_in_groups() -> None:
    """``accelerate to-fsdp2`` divides over all ranks."""
    conversion = converted("convert/accelerate-fsdp1-hybrid.yaml")
    assert from_accelerate(yaml_of(conversion)).settings.replicas == 2
    zero = converted("convert/accelerate-fsdp1-hybrid.yaml", to="deepspeed")
    read = from_config(json.loads(zero.texts["ds_config.json"]))
    assert read.zero.zero_hpz_partition_size == 8 and read.optimizer_device == read.weights_device == "cpu"
    assert by_key(zero)["groups of fsdp_sharding_strategy"][0] == "changed"


def test_other_ranks_are_written_as_they_are_given(tmp_path: Path) -> None:
    said = yaml_of(converted("convert/accelerate-fsdp1-hybrid.yaml", gpus=8, out=str(tmp_path)))
    assert (said["num_processes"], said["num_machines"]) == (8, 2)
    assert alarms(tmp_path) == []


def test_mics_which_deepspeed_removed_becomes_groups() -> None:
    found = from_accelerate(yaml_of(converted("convert/mics.json", gpus=16)))
    assert (found.settings.replicas, found.shards) == (2, 8)
    with pytest.raises(InputError, match="mics_shard_size 8 does not divide 12 ranks"):
        converted("convert/mics.json", gpus=12)


def test_a_trainers_arguments_get_a_trainers_file(tmp_path: Path) -> None:
    block = json.loads(converted("convert/trainer-zero3.json").texts["fsdp_config.json"])
    assert block["reshard_after_forward"] is True and block["version"] == 2
    old = converted("convert/trainer-fsdp1.json")
    assert list(old.texts) == ["fsdp_config.json"]
    assert json.loads(old.texts["fsdp_config.json"]) == {
        "version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    }  # fmt: skip
    short = {"output_dir": "out", "per_device_train_batch_size": 1, "fsdp": "full_shard"}
    (tmp_path / "short.json").write_text(json.dumps(short))
    assert json.loads(convert(str(tmp_path / "short.json")).texts["ds_config.json"])["zero_optimization"]
    zero = converted("convert/trainer-fsdp1.json", to="deepspeed")
    assert from_config(json.loads(zero.texts["ds_config.json"])).zero.stage == 2


def test_what_the_arguments_name_is_said(tmp_path: Path) -> None:
    seen = by_key(converted("convert/trainer-zero3.json", out=str(tmp_path)))
    block = {"fsdp": "full_shard", "fsdp_config": str(tmp_path / "fsdp_config.json")}
    assert seen["deepspeed"] == ("kept", block)
    back = by_key(converted("convert/trainer-fsdp1.json", to="deepspeed", out=str(tmp_path)))
    assert back["fsdp"] == ("kept", {"deepspeed": str(tmp_path / "ds_config.json")})
    own = by_key(converted("convert/axolotl-fsdp2.yaml"))
    assert own["fsdp_config"] == ("kept", {"deepspeed": "ds_config.json"})
    said = json.loads((CORPUS / "convert/trainer-fsdp1.json").read_text()) | {
        "fsdp": "hybrid_shard auto_wrap"
    }
    (tmp_path / "hybrid.json").write_text(json.dumps(said))
    words = by_key(convert(str(tmp_path / "hybrid.json")))["fsdp"][1]["fsdp"]
    assert words == "full_shard auto_wrap"


def test_axolotls_file_names_no_fsdp_beside_its_block() -> None:
    conversion = converted("convert/axolotl-fsdp2.yaml")
    body = json.loads(conversion.texts["ds_config.json"])
    assert body["zero_optimization"]["stage"] == 3 and body["bf16"] == {"enabled": True}
    assert by_key(conversion)["fsdp_config.activation_checkpointing"][0] == "script"


def test_plans_are_converted_with_their_batch(tmp_path: Path) -> None:
    options = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "h100-sxm-80gb", "checkpointing": "full"}
    zerokit.plan(**options, zero=3, micro_batch=2, out=tmp_path / "zero")  # type: ignore[arg-type]
    there = convert(str(tmp_path / "zero"), out=str(tmp_path / "fsdp2"))
    assert from_accelerate(yaml_of(there)).checkpointing
    assert by_key(there)["activation_checkpointing"][0] == "changed"
    zerokit.plan(**options, engine="fsdp2", micro_batch=2, out=tmp_path / "plan")  # type: ignore[arg-type]
    back = convert(str(tmp_path / "plan"))
    settings = from_config(json.loads(back.texts["ds_config.json"]))
    assert settings.micro_batch == 2 and settings.optimizer == "AdamW"


@pytest.mark.parametrize(
    ("block", "reshards"),
    [
        ({"fsdp_reshard_after_forward": True}, True),
        ({"fsdp_reshard_after_forward": False}, False),
        ({"fsdp_reshard_after_forward": "SHARD_GRAD_OP"}, False),
        ({"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": False}, True),
        ({"fsdp_reshard_after_forward": True, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, False),
    ],
)
def test_version_1_gives_weights_back_as_its_strategy_says(
    tmp_path: Path, block: dict[str, Any], reshards: bool
) -> None:
    """Of two keys Accelerate reads the strategy (utils/dataclasses.py:1844, 1.15)."""
    of_file = {"distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "bf16"}
    file = tmp_path / "fsdp.yaml"
    file.write_text(yaml.safe_dump({**of_file, "fsdp_config": {"fsdp_version": 1, **block}}))
    assert yaml_of(convert(str(file)))["fsdp_config"]["fsdp_reshard_after_forward"] is reshards


def test_a_plans_folder_gets_no_files_of_another_engine(tmp_path: Path) -> None:
    zerokit.plan(model="llama-3.1-8b", gpus=8, gpu="h100-sxm-80gb", engine="fsdp2", out=str(tmp_path))
    before = (tmp_path / "accelerate.yaml").read_text()
    with pytest.raises(InputError, match="holds a plan, whose files these would replace"):
        convert(str(tmp_path), out=str(tmp_path))
    assert (tmp_path / "accelerate.yaml").read_text() == before


def test_a_models_layers_are_named() -> None:
    pytest.importorskip("transformers")
    body = yaml_of(converted("convert/accelerate-zero3-plugin.yaml", model="llama-3.1-8b"))
    assert body["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("good/axolotl-zero3.json", {}, "does not say on how many ranks"),
        ("good/axolotl-zero3.json", {"to": "ddp", "gpus": 2}, "⟨to⟩ ddp: use one of fsdp2, deepspeed"),
        ("good/axolotl-zero3.json", {"to": "deepspeed", "gpus": 2}, "is for deepspeed already"),
        ("good/llama-factory-autotp.json", {"gpus": 2}, "written for data parallel alone"),
        ("broken/accelerate-type-case.yaml", {}, "accelerate-distributed-type"),
    ],
)
def test_what_cannot_be_converted_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        converted(name, **options)
    assert message in error.value.marked


def test_the_command_prints_its_document(tmp_path: Path) -> None:
    conversion = zerokit.convert(CORPUS / "convert/llama-factory-fsdp1.yaml", out=tmp_path)
    body = conversion.to_dict()
    assert body["schema"] == "zerokit.conversion/1" and body["to"] == "fsdp2"
    assert body["files"] == {"accelerate.yaml": str(tmp_path / "accelerate.yaml")}
    assert {one["kind"] for one in body["changes"]} == {"kept", "lost"}
