"""The DeepSpeed JSON that a user names: what is said where something else stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import InputError
from zerokit.linter.files import check_files, load_deepspeed
from zerokit.linter.fix import fix_file
from zerokit.linter.output import summary


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ds_confg.json", "there is no such file; did you mean ds_config.json?"),
        ("other.json", "there is no such file; did you mean plan/other.json?"),
        ("nowhere.json", "there is no such file"),
        ("plan", "is a folder; give the DeepSpeed JSON in it: plan/other.json"),
        ("train.py", "takes DeepSpeed's JSON, and this is a Python script"),
        ("accelerate.yaml", "this is Accelerate's YAML, which names it: ds_config.json"),
        (
            "own.yaml",
            "which names none: `zerokit check own.yaml --model MODEL --gpu GPU` tells whether it fits; "
            "to run, make a plan with `zerokit plan gpus N gpu GPU -- SCRIPT` and launch that, "
            "or run it as it is: `accelerate launch --config_file own.yaml SCRIPT`",
        ),
        (
            "ddp.yaml",
            "`zerokit rehearse --launcher accelerate --gpus 8 --gpu GPU SCRIPT` tells whether it fits",
        ),
        ("fsdp.yaml", "SCRIPT` tells whether it fits, with the settings of its fsdp_config as variables"),
        ("list.json", "expected a JSON object"),
    ],
)
def test_what_was_meant_is_named(
    named: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan").mkdir()
    for name in ("ds_config.json", "plan/other.json"):
        Path(name).write_text("{}")
    Path("train.py").write_text("import torch\n")
    Path("accelerate.yaml").write_text("deepspeed_config:\n  deepspeed_config_file: ds_config.json\n")
    for name, kind in (("own", "DEEPSPEED"), ("ddp", "MULTI_GPU"), ("fsdp", "FSDP")):
        Path(f"{name}.yaml").write_text(f"distributed_type: {kind}\nnum_processes: 8\n")
    Path("list.json").write_text("[]")
    with pytest.raises(InputError) as error:
        load_deepspeed(Path(named))
    assert said in str(error.value)
    assert str(error.value).count("did you mean") == said.count("did you mean")


def test_a_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert load_deepspeed(tmp_path / "ds.json").value == {"zero_optimization": {"stage": 2}}


AUTOTUNED = '{"autotuning": {"enabled": %s}, "train_micro_batch_size_per_gpu": "auto"}'
FSDP = "fsdp_config: {fsdp_sync_module_states: false}\ndistributed_type: %s\nnum_processes: 2\n"


def rules_of(path: str) -> set[str]:
    return {found.rule for file in check_files([path]) for found in file.findings if found.severity != "note"}


@pytest.mark.parametrize(
    ("text", "accepted", "refused", "rule"),
    [
        (AUTOTUNED, "true", "false", "no-zero-optimization"),  # its trials have what the autotuner writes
        (FSDP, "'NO'", "FSDP", "accelerate-fsdp-loading"),  # the block is read by nobody
    ],
)
def test_what_is_refused_only_where_it_is_read(
    text: str, accepted: str, refused: str, rule: str, tmp_path: Path
) -> None:
    path = tmp_path / ("file.json" if text.startswith("{") else "file.yaml")
    path.write_text(text % accepted)
    assert rule not in rules_of(str(path))
    path.write_text(text % refused)
    assert rule in rules_of(str(path))


def test_a_file_may_be_named_from_a_folder_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate looks where it is started: a project's folder, as a rule."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fsdp.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
        "deepspeed_config:\n  deepspeed_config_file: configs/ds.json\n"
    )
    monkeypatch.chdir(tmp_path / "configs")
    assert "accelerate-config-file-missing" in rules_of("fsdp.yaml")
    (tmp_path / "configs/ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert "accelerate-config-file-missing" not in rules_of("fsdp.yaml")


def test_a_file_outside_of_the_folder_is_not_read_and_counted(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/ds.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
        "deepspeed_config:\n  deepspeed_config_file: ../secret.json\n"
    )
    files = check_files([str(tmp_path / "configs/ds.yaml")])
    assert "skipped 1 file outside, which others name" in summary(files)
    assert not any(file.failed for file in files)


@pytest.mark.parametrize(
    ("config", "key", "fix"),
    [
        (
            {"bf16": {"enabled": True, "loss_scale": 0}},
            "loss_scale", "remove it; it is for fp16, and bf16 is enabled",
        ),
        ({"bf16": {"loss_scale": 0}}, "loss_scale", "move it to fp16"),
        (
            {"bf16": {"loss_scale": 0}, "fp16": {"loss_scale": 8}},
            "loss_scale", "remove it; fp16 has it, with 8",
        ),
        (
            {"gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"gradient_clipping": 0.5}}},
            "gradient_clipping", "remove it; the top level has it, with 1.0",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"gradient_clipping": 0.5}}},
            "gradient_clipping", "move it to the top level",
        ),
    ],
)  # fmt: skip
def test_a_fix_says_what_stands_where_a_key_belongs(
    tmp_path: Path, config: dict[str, Any], key: str, fix: str
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))
    (file,) = check_files([str(path)])
    assert [finding.fix for finding in file.findings if repr(key) in finding.message] == [fix]


YAML = "# ours\ntrain_batch_size: 8\nbf16:\n  enabled: true\noffload_optimizer:\n  device: cpu\n"


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("", {"syntax"}),  # nobody makes a dictionary of it
        ("deepspeed.initialize(config=yaml.safe_load(open('ds.yaml')))\n", {"misplaced-key"}),
    ],
)
def test_a_yaml_is_deepspeeds_where_a_script_reads_it(script: str, rules: set[str], tmp_path: Path) -> None:
    (tmp_path / "ds.yaml").write_text(YAML)
    (tmp_path / "train.py").write_text(script)
    (file,) = check_files([str(tmp_path / "ds.yaml")])
    assert {finding.rule for finding in file.findings if finding.severity != "note"} == rules
    fix_file(file, unsafe=True)
    assert (tmp_path / "ds.yaml").read_text() == YAML  # a block of YAML is not moved


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mixed_precision: bf16\nnum_procesess: 4\n", "accelerate"),
        ("defaults:\n  lr: 1\nllama-7b:\n  lr: 2\ndebug:\n  lr: 3\n", "unknown"),  # sections of its own
    ],
)
def test_one_name_makes_no_file_of_accelerates(text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (file,) = check_files([str(tmp_path / "config.yaml")])
    assert file.kind == kind


def test_sagemaker_counts_its_processes_itself(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: MULTI_GPU\nec2_instance_type: a\n"
        "iam_role_name: b\n"
    )
    (file,) = check_files([str(tmp_path / "a.yaml")])
    assert not file.findings


@pytest.mark.parametrize(("value", "severity"), [('"torch_impl"', "warning"), ('"false"', "error")])
def test_text_asks_for_torchs_adam(value: str, severity: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, '
        f'"optimizer": {{"type": "Adam", "params": {{"lr": 1, "torch_adam": {value}}}}}}}'
    )
    (file,) = check_files([str(tmp_path / "ds.json")])
    (found,) = [one for one in file.findings if "torch_adam" in one.message]
    assert found.severity == severity and "any text as true" in found.message


@pytest.mark.parametrize("value", ["1.5", '"x"', "[]"])
def test_a_value_of_a_key_that_deepspeed_refuses_is_not_read(value: str, tmp_path: Path) -> None:
    """``buffer_size`` is ``offload_param``'s; a wrong value of it ended the check of the file."""
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
        f'"offload_optimizer": {{"device": "cpu", "buffer_size": {value}}}}}}}'
    )
    assert rules_of(str(tmp_path / "ds.json")) == {"misplaced-key"}
