"""TRL's own scripts, unmodified, under ``zerokit launch`` and alone, on one GPU and on two.

The launcher must report the very peak that the script's own process reads without it
(``tests.support.script_peaks``), and what a script saves must load again. A quarter of an hour on one GPU:

    python -m pytest -m gpu tests/gpu/test_public_scripts_gpu.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
for package in ("deepspeed", "trl", "datasets", "transformers"):
    needs(package)

from tests.support.script_peaks import CASES, SHAPE, Case, make_inputs, measure  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    make_inputs(folder, SHAPE)
    return folder


def check(case: Case, inputs: Path, gpus: list[str]) -> None:
    row = measure(case, inputs, gpus)
    assert not row["problems"], row["problems"]
    assert (row["exit_code"], row["outcome"], len(row["launched"])) == (0, "ok", len(gpus))
    assert row["equal"], [(a["allocated"], b) for a, b in zip(row["launched"], row["alone"], strict=True)]
    for rank in row["launched"]:
        assert rank["steps"] == 4 and {"forward", "backward", "step"} <= set(rank["phases"])
    check_saved(inputs / "runs" / case.name / "out", inputs / "model", case)


def check_saved(out: Path, model: Path, case: Case) -> None:
    """What the script saved loads again, all of it."""
    import peft
    import transformers

    if case.method == "lora":
        peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(model), out)
        return
    kind = "AutoModelForSequenceClassification" if case.script == "reward" else "AutoModelForCausalLM"
    _, loading = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["mismatched_keys"], loading


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_gpu(case: Case, inputs: Path) -> None:
    check(case, inputs, ["0"])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", ["sft.z3", "dpo.z3"])
def test_two_gpus(name: str, tmp_path: Path) -> None:
    make_inputs(tmp_path, SHAPE)
    check(next(case for case in CASES if case.name == name), tmp_path, ["0", "1"])
