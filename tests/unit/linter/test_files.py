"""The DeepSpeed JSON that a user names: what is said where something else stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.errors import InputError
from zerokit.linter.files import load_deepspeed


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
