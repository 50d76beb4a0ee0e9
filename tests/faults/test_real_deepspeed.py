"""Three unmodified scripts, and faults, under the real DeepSpeed on two CPU ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.plans import write_plan
from tests.support.tinyjob import make_model
from zerokit.machine.host import bf16_in_hardware

needs("deepspeed")
SCRIPTS = Path(__file__).parents[1] / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = Path(sys.executable)


def launch(
    folder: Path, script: str | Path, *arguments: str, options: tuple[str, ...] = (), **plan: Any
) -> Run:
    write_plan(folder / "plan", **plan)
    return Run(PYTHON, folder, ["--plan", "plan", *options, str(SCRIPTS / script), *arguments], {})


def check_success(run: Run, ranks: int = 2) -> dict[str, Any]:
    code, out, err = run.end(240)
    assert code == 0, out + err
    report = run.report()
    assert report["outcome"] == "ok"
    assert [rank["state"] for rank in report["ranks"]] == ["finished"] * ranks
    assert [rank["steps"] for rank in report["ranks"]] == [3] * ranks
    for rank in report["ranks"]:
        assert rank["peak_host_rss_bytes"] > 100 << 20
        assert rank["predicted_peak_allocated_bytes"] == 123_456_789
    assert not run.left()
    return {"out": out, "err": err}


def used_config(run: Run) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run.run_dir / "ds_config.json").read_text())
    return value


@pytest.mark.slow  # raw.py runs in test_faults_under_deepspeed, the README's raw script to its end
def test_a_raw_script(tmp_path: Path) -> None:
    run = launch(tmp_path, "raw.py", "--steps", "3", precision="fp16", stage=3)
    observed = check_success(run)
    assert "step 3 loss" in observed["out"]
    config = used_config(run)
    precision = "bf16" if bf16_in_hardware() else "fp32"
    assert config["bf16"]["enabled"] == (precision == "bf16") and config["fp16"]["enabled"] is False
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert f"fp16 → {precision}" in observed["err"]


@pytest.mark.slow  # one of accelerate's own runs in tests/corpus_scripts
def test_an_accelerate_script(tmp_path: Path) -> None:
    run = launch(tmp_path, "accelerated.py", "--steps", "3")
    assert "of 2 processes" in check_success(run)["out"]
    assert "optimizer" not in used_config(run)


def test_a_trainer_script_that_contradicts_the_plan_is_refused(tmp_path: Path) -> None:
    run = launch(tmp_path, "trainer.py", "--steps", "3", micro_batch=4)
    code, _, err = run.end(60)
    assert code == 2, err
    for values in ("per_device_train_batch_size 2, but the plan has per_device_train_batch_size 4",
                   "bf16 is False by default, but the plan trains in bf16"):  # fmt: skip
        assert values in err
    assert not run.run_dir.exists() or not (run.run_dir / "report.json").exists()


@pytest.mark.slow  # TRL's grpo, in tests/corpus_scripts, is a Trainer too
def test_a_trainer_script_runs_beside_another_plan(tmp_path: Path) -> None:
    """The plan's micro-batch is not the script's: the Trainer must not stop, and the user must hear."""
    run = launch(tmp_path, "trainer.py", "--steps", "3", micro_batch=4, options=("--accept-mismatch",))
    observed = check_success(run)
    assert "trained 3 steps on 2 processes" in observed["out"]
    assert used_config(run)["train_micro_batch_size_per_gpu"] == "auto"
    assert "warning: the script contradicts the plan" in observed["err"]


@pytest.mark.slow
@pytest.mark.parametrize("four_bit", [False, True])
def test_the_documented_script_with_adapters(tmp_path: Path, four_bit: bool) -> None:
    pytest.importorskip("peft")
    model, quantized = str(EXAMPLES / "tiny-llama.json"), []
    if four_bit:
        pytest.importorskip("bitsandbytes")
        model, quantized = str(make_model(tmp_path / "model")), ["--four_bit"]
    script = EXAMPLES / "train_lora.py"
    check_success(
        launch(tmp_path, script, "--model", model, *quantized, "--data", str(script), "--seq_len", "64",
               "--lora_rank", "8", "--max_steps", "3", "--output_dir", "out", "--report_to", "none")
    )  # fmt: skip
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    layers, width, inner, grouped = (2, 64, 128, 32) if four_bit else (6, 384, 1024, 384)
    # r (in + out) of q, k, v, o, gate, up and down in each layer
    layer_elements = 8 * (2 * (width + width) + 2 * (width + grouped) + 3 * (width + inner))
    assert sum(tensor.numel() for tensor in saved.values()) == layers * layer_elements
    assert any(tensor.any() for name, tensor in saved.items() if "lora_B" in name)  # zeros before training


@pytest.mark.slow
def test_the_lora_example_refuses_4_bits_without_weights(tmp_path: Path) -> None:
    script = EXAMPLES / "train_lora.py"
    done = subprocess.run(
        [sys.executable, script, "--model", EXAMPLES / "tiny-llama.json", "--four_bit", "--data", script,
         "--output_dir", tmp_path], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--four_bit: a config.json has no weights to hold in 4 bits; give --model a folder" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
@pytest.mark.parametrize("script", ["raw.py", "accelerated.py", "trainer.py"])
def test_other_launchers(tmp_path: Path, launcher: str, script: str) -> None:
    check_success(
        launch(tmp_path, script, "--steps", "3", options=("--launcher", launcher, "--accept-mismatch"))
    )


@pytest.mark.slow
def test_a_module_in_its_package(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text((SCRIPTS / "raw.py").read_text())
    write_plan(tmp_path / "plan")
    check_success(Run(PYTHON, tmp_path, ["--plan", "plan", "-m", "mine.train", "--steps", "3"], {}))


@pytest.mark.slow
def test_another_number_of_ranks_than_planned(tmp_path: Path) -> None:
    run = launch(tmp_path, "raw.py", "--steps", "3", options=("--num-ranks", "1"))
    code, out, err = run.end(240)
    assert code == 0, out + err
    assert "train_batch_size" not in used_config(run)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("rank", marks=pytest.mark.slow),
        pytest.param("deepspeed", marks=pytest.mark.slow),
        pytest.param("launch.py", marks=pytest.mark.slow),
        pytest.param("sigterm", marks=pytest.mark.slow),
        pytest.param("zerokit", marks=pytest.mark.slow),
        pytest.param("guard", marks=pytest.mark.slow),
    ],
)
def test_faults_under_deepspeed(tmp_path: Path, fault: str) -> None:
    run = launch(tmp_path, "raw.py", "--steps", "1000000", options=("--grace", "3"))
    try:
        pids = run.until_started(2, 120)
        wait_for_a_step(run)
        outer = [p for p in run.children("bin/deepspeed") if p not in pids.values()]
        inner = run.children("deepspeed.launcher.launch")
        target, number, wanted = {
            "rank": (pids[1], signal.SIGKILL, 10),
            "deepspeed": (next(p for p in outer if p not in run.children("guard.py")), signal.SIGKILL, 12),
            "launch.py": (inner[0], signal.SIGKILL, 12),
            "sigterm": (run.process.pid, signal.SIGTERM, 143),
            "zerokit": (run.process.pid, signal.SIGKILL, -9),
            "guard": (run.children("guard.py")[0], signal.SIGKILL, 12),
        }[fault]
        os.kill(target, number)
        code, out, err = run.end(60)
        assert code == wanted, out + err
        from tests.faults.conftest import wait_for

        wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")
        wait_for((run.run_dir / "report.json").exists, 20, lambda: "no report")
        assert run.report()["outcome"] != "ok"
        if fault == "rank":
            assert run.report()["first_failure"]["rank"] == 1 and "SIGKILL" in err
    finally:
        run.clean_up()


def wait_for_a_step(run: Run) -> None:
    from tests.faults.conftest import wait_for

    def stepping() -> bool:
        log = run.run_dir / "logs" / "rank-00000.out.log"
        return log.exists() and "step 2 " in log.read_text()

    wait_for(stepping, 180, lambda: "no step was made")


def test_the_configuration_loads_in_deepspeed(tmp_path: Path) -> None:
    """What is handed to the script on CPU ranks passes DeepSpeed's own checks."""
    from zerokit.launcher.adapt_config import adapt
    from zerokit.script.reader import ScriptFacts

    facts = ScriptFacts(path=tmp_path)
    plan = json.loads((write_plan(tmp_path, precision="fp16", stage=3) / "ds_config.json").read_text())
    plan["zero_optimization"] |= {"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}
    adapted = adapt(
        plan, style="raw", device="cpu", ranks=1, planned_ranks=2, facts=facts,
        cpu_has_bf16=True,
    ).config  # fmt: skip
    (tmp_path / "used.json").write_text(json.dumps(adapted))
    code = (
        "import json,sys; from deepspeed.runtime.config import DeepSpeedConfig as C; "
        "c=C(json.load(open(sys.argv[1]))); print(c.bfloat16_config.enabled, c.zero_config.stage)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "used.json")],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-2:] == ["True", "3"], done.stderr
