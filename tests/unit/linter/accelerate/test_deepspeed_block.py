"""What to do with a key that Accelerate refuses beside a DeepSpeed JSON depends on what the JSON has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit import check

_KEY = "accelerate-key-beside-config-file"
_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
}


@pytest.mark.parametrize(
    ("line", "config", "fix"),
    [
        ("mixed_precision: bf16", _CONFIG, "remove it here; ds.json already has bf16"),
        ("mixed_precision: fp16", _CONFIG, "ds.json has bf16: enable the one that you mean there"),
        ("mixed_precision: fp16", {}, "remove it here, and set fp16.enabled to true in ds.json"),
        ("mixed_precision: 'no'", {}, "ds.json enables neither bf16 nor fp16, which means the same"),
        ("  zero_stage: 3", _CONFIG, "remove it here; ds.json already has zero_optimization.stage 3"),
        ("  zero_stage: 2", _CONFIG, "has zero_optimization.stage 3: write the value that you mean there"),
        ("  gradient_clipping: 1.0", _CONFIG, "here, and set gradient_clipping to 1.0 in ds.json"),
        ("  gradient_accumulation_steps: 4", _CONFIG, "set gradient_accumulation_steps to 4 in ds.json"),
        ("  offload_param_device: cpu", _CONFIG, 'already has zero_optimization.offload_param.device "cpu"'),
        ("  offload_optimizer_device: none", _CONFIG, "offload_optimizer.device, which means the same"),
        ("  zero3_save_16bit_model: true", _CONFIG, "gather_16bit_weights_on_model_save to true in ds.json"),
        ("  zero_stage: 2", None, "remove it here, and set it in the DeepSpeed JSON"),
        ("mixed_precision: bf16", None, "remove it here, and enable bf16 or fp16 in the DeepSpeed JSON"),
    ],
)
def test_the_fix_follows_what_the_json_has(
    line: str, config: dict[str, object] | None, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
    keys = f"{block}{line}\n" if line.startswith(" ") else f"{line}\n{block}"
    Path("accelerate.yaml").write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\n{keys}")
    if config is not None:
        Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 0}, **config}))
    (finding,) = (finding for finding in check("accelerate.yaml").findings if finding.rule == _KEY)
    assert finding.fix.endswith(fix)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (
            "mixed_precison: bf16",
            "remove it here; ds.json already has bf16 (Accelerate refuses mixed_precision",
        ),
        (
            "zero_stage: 3",
            "remove it here; ds.json already has zero_optimization.stage 3 (Accelerate refuses zero_",
        ),
        (
            "  stage: 3",
            "remove it here; ds.json already has zero_optimization.stage 3 (Accelerate refuses zero_",
        ),
        (
            "  gradient_cliping: 1.0",
            "remove it here, and set gradient_clipping to 1.0 in ds.json (Accelerate",
        ),
        ("num_machine: 1", "did you mean 'num_machines'?"),
        ("  zero3_init_flg: true", "did you mean 'zero3_init_flag'?"),
    ],
)
def test_a_wrong_name_is_not_corrected_to_a_key_that_is_refused(
    line: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(_CONFIG))
    block = "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
    keys = f"{block}{line}\n" if line.startswith(" ") else f"{line}\n{block}"
    Path("accelerate.yaml").write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\n{keys}")
    named = line.strip().split(":")[0]
    (finding,) = (finding for finding in check("accelerate.yaml").findings if f"'{named}'" in finding.message)
    assert finding.fix.startswith(fix)
    written = check("accelerate.yaml", fix=True).fixed
    assert [one.rule for one in written] == (["accelerate-unknown-key"] if named == "num_machine" else [])


@pytest.mark.parametrize("path", ["", "  offload_param_nvme_path: /nvme\n"])
def test_nvme_offload_is_told_alike_with_a_path_and_without(path: str, tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n"
                    f"  offload_param_device: nvme\n{path}")  # fmt: skip
    (finding,) = (one for one in check(str(file)).findings if one.rule == "accelerate-nvme-path-dropped")
    assert finding.message.startswith("accelerate launch passes on the device, but never a path: ")


@pytest.mark.parametrize(("stage", "name"), [(2, "param"), (0, "param"), (0, "optimizer")])
def test_the_fix_of_nvme_offload_at_the_wrong_stage_leads_into_no_error(
    stage: int, name: str, tmp_path: Path
) -> None:
    """At the right stage accelerate launch would pass on no path."""
    path, key = tmp_path / "accelerate.yaml", f"offload_{name}_device"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
        f"  zero_stage: {stage}\n  {key}: nvme\n  offload_{name}_nvme_path: /nvme\n"
    )
    (finding,) = (one for one in check(str(path)).findings if one.rule == "accelerate-offload-stage")
    assert finding.fix.startswith(f"set {key} to none, or give NVMe offload in a DeepSpeed JSON")
    assert finding.fix.endswith("accelerate launch passes on no path")
    path.write_text(path.read_text().replace(": nvme", ": cpu"))
    (finding,) = (one for one in check(str(path)).findings if one.rule == "accelerate-offload-stage")
    assert finding.fix.startswith("set zero_stage to ")
