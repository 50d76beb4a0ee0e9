"""``zerokit estimate --accelerate``: the strategy of an accelerate YAML or of a Trainer's arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import zerokit
from tests.support.command import as_json, call, move_elsewhere
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.emit.fsdp2 import accelerate_config, trainer_config
from zerokit.values import replace

JOB = ("--model", "llama-3.2-1b", "--gpu", "h100-sxm-80gb", "--seq-len", "2048")
MIXED = Fsdp2Settings(precision="bf16")
EIGHT = Strategy(settings=MIXED, data_parallel=8, checkpointing="full")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def write(config: dict[str, Any], name: str = "fsdp2.yaml") -> str:
    text = json.dumps(config) if name.endswith(".json") else yaml.safe_dump(config)
    Path(name).write_text(text)
    return name


def estimated(strategy: Strategy, **options: Any) -> tuple[Strategy, dict[str, Any]]:
    file = write(accelerate_config(strategy, 1))
    found = zerokit.estimate(accelerate=Path(file), model="llama-3.2-1b", gpu="h200", seq_len=512, **options)
    return found.planned.strategy, found.to_dict()


@pytest.mark.parametrize(
    "strategy",
    [
        EIGHT,
        Strategy(settings=Fsdp2Settings(precision="bf16", reshard_after_forward=False), data_parallel=2),
        Strategy(settings=Fsdp2Settings(precision="bf16", replicas=2, offload=True), data_parallel=8),
    ],
)
def test_the_files_strategy_is_estimated(strategy: Strategy) -> None:
    found, body = estimated(strategy, micro_batch=2, gradient_accumulation=3)
    settings = found.settings
    assert (settings.micro_batch, settings.gradient_accumulation, settings.gradient_clipping) == (2, 3, 1.0)
    plain = {"micro_batch": 1, "gradient_accumulation": 1, "gradient_clipping": 0.0}
    assert replace(found, settings=replace(settings, **plain)) == strategy
    assert body["schema"] == "zerokit.estimate/1" and body["basis"] == "traced"
    assert len(body["per_rank"]) == strategy.world_size and body["saving"] is None


@pytest.mark.parametrize(("method", "peak_bytes"), [("full", 28_307_897_344), ("lora", 11_026_593_792)])
def test_trls_sft_py_takes_what_two_h200s_measured(method: str, peak_bytes: int) -> None:
    """Unmodified, 2 rows of 4,096 tokens; its frozen weights stay in fp32, as TRL loads them
    (``measured-public-eleventh.jsonl``)."""
    file = write(accelerate_config(Strategy(settings=MIXED, data_parallel=2, checkpointing="none"), 1))
    job = {"model": "llama-3.2-3b", "gpu": "h200", "seq_len": 4096, "micro_batch": 2, "method": method}
    adapters = {"lora_dropout": 0.05} if method == "lora" else {}
    found = zerokit.estimate(
        accelerate=Path(file), trainer="trl", checkpointing="full", **job, **adapters
    ).to_dict()
    assert found["peak_allocated_bytes"] == pytest.approx(peak_bytes, rel=0.001)
    if method == "lora":
        narrow = zerokit.estimate(
            accelerate=Path(file), trainer="trl", checkpointing="full", load_dtype="bf16", **job, **adapters
        )
        half = 2 * 3_212_749_824 / 2  # two bytes of each frozen weight on two ranks
        assert found["peak_allocated_bytes"] - narrow.peak_allocated_bytes == pytest.approx(half, rel=0.01)


def test_other_ranks_may_be_asked_for() -> None:
    assert estimated(EIGHT, gpus=4)[0].data_parallel == 4


def test_a_trainers_arguments_have_the_batch_and_the_fsdp_config(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fsdp_config.json").write_text(json.dumps(trainer_config(EIGHT)))
    arguments = {"output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
                 "bf16": True, "fsdp": True, "fsdp_config": "fsdp_config.json"}  # fmt: skip
    by_trainer = as_json(
        capsys, "estimate", *JOB, "--gpus", "8", "--accelerate", write(arguments, "train.json")
    )
    batch = ("--micro-batch", "2", "--gradient-accumulation", "4")
    by_yaml = as_json(capsys, "estimate", *JOB, "--accelerate", write(accelerate_config(EIGHT, 1)), *batch)
    assert by_trainer["peak_allocated_bytes"] == by_yaml["peak_allocated_bytes"]
    code, _, err = call(capsys, "estimate", *JOB, "--accelerate", "train.json")
    assert code == 2 and "does not say on how many ranks it runs; give --gpus N" in err


def test_deepspeeds_keys_are_estimated_as_their_json(capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate 1.15, utils/dataclasses.py:1302: what DeepSpeedPlugin makes of its keys."""
    block = {"zero_stage": 2, "gradient_accumulation_steps": 2, "offload_optimizer_device": "cpu"}
    run = {"distributed_type": "DEEPSPEED", "num_processes": 8, "num_machines": 1}
    own = write({**run, "mixed_precision": "bf16", "deepspeed_config": block})
    by_keys = as_json(capsys, "estimate", *JOB, "--accelerate", own, "--micro-batch", "1")
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
              "bf16": {"enabled": True},
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}  # fmt: skip
    named = write({**run, "deepspeed_config": {"deepspeed_config_file": write(config, "ds.json")}})
    by_file = as_json(capsys, "estimate", *JOB, "--accelerate", named)
    plain = as_json(capsys, "estimate", *JOB, "--gpus", "8", "--deepspeed", "ds.json")
    figures = ("peak_allocated_bytes", "min_vram_bytes", "host_bytes_per_node", "step_seconds")
    assert [by_file[name] for name in figures] == [plain[name] for name in figures]
    assert [by_keys[name] for name in figures] == [plain[name] for name in figures]


def test_keys_without_effect_and_open_values_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    config = accelerate_config(EIGHT, 1) | {"mixed_precision": "no"}
    config["fsdp_config"] |= {
        "fsdp_backward_prefetch": "BACKWARD_POST",
        "fsdp_cpu_ram_efficient_loading": True,
    }
    found = as_json(capsys, "estimate", *JOB, "--accelerate", write(config), "--precision", "bf16")
    said = "\n".join(found["assumptions"])
    assert "does not read it: it prefetches; fix: remove it [accelerate-fsdp-version-key]" in said
    assert "host memory is counted as if every rank loaded the weights" in said
    assert "micro-batch 1: the file leaves the batch to the script; give --micro-batch" in said
    assert "gradient accumulation 1: the file leaves it to the script" in said
    code, _, err = call(capsys, "estimate", *JOB, "fsdp2.yaml")
    assert code == 2 and "estimate --accelerate fsdp2.yaml" in err
    _, out, _ = call(capsys, "estimate", *JOB, "--accelerate", "fsdp2.yaml", "--precision", "bf16")
    assert "accelerate launch --config_file fsdp2.yaml train.py" in out
    # weights that are loaded in bf16 have no fp32 copy, and states in bf16
    mixed = as_json(capsys, "estimate", *JOB, "--accelerate", write(accelerate_config(EIGHT, 1)))
    states = [one["per_rank"][0]["components"]["optimizer_states"] for one in (found, mixed)]
    assert states[1] == pytest.approx(2 * states[0], rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "options", "says"),
    [
        ({"fsdp_config": {"fsdp_version": 1, "fsdp_sync_module_states": True}}, (),
         "fsdp2.yaml: FSDP version 1 is not modelled; `zerokit convert`"),
        ({"distributed_type": "MULTI_GPU"}, (), "uses neither FSDP nor DeepSpeed; `zerokit rehearse"),
        ({}, ("--zero", "3"), "--zero: FSDP2 does not read it; leave it out"),
        ({"parallelism_config": {"parallelism_config_cp_size": 4, "parallelism_config_dp_shard_size": 2}},
         ("--cp", "4"), "--cp 4: the file decides it: set parallelism_config_cp_size (4 now)"),
        ({}, ("--engine", "fsdp2"), "--engine fsdp2: the file decides it: set distributed_type (FSDP now)"),
        ({}, ("--offload-param", "cpu"), "the file decides it: set fsdp_offload_params (false now) in it"),
        ({}, ("--precision", "fp32"), "the file decides it: set mixed_precision (bf16 now)"),
        ({}, ("--checkpointing", "none"), "--checkpointing none: the file decides it"),
        ({}, ("--deepspeed", "ds.json"), "--accelerate and --deepspeed both decide the strategy"),
        ({}, ("--inference",), "--inference: fsdp2.yaml is for training"),
        ({"parallelism_config": {"parallelism_config_dp_replicate_size": 2,
                                 "parallelism_config_dp_shard_size": 4}}, ("--gpus", "4"),
         "2 replicas of 4 shards are for 8 ranks, and --gpus is 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_estimated_is_refused(
    capsys: pytest.CaptureFixture[str], changed: dict[str, Any], options: tuple[str, ...], says: str
) -> None:
    file = write({**accelerate_config(EIGHT, 1), **changed})
    code, _, err = call(capsys, "estimate", *JOB, "--accelerate", file, *options)
    assert code == 2 and says in err


def test_cpu_ranks_are_refused_as_nothing_is_divided_there(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "llama-3.2-1b", "--device", "cpu")
    code, _, err = call(capsys, "estimate", *model, "--accelerate", write(accelerate_config(EIGHT, 1)))
    assert code == 2 and "--device cpu: Accelerate divides nothing on CPU ranks" in err


def test_what_does_not_fit_is_planned_on_the_files_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "llama-3.1-70b", "--gpu", "rtx-4090", "--micro-batch", "1")
    code, out, _ = call(capsys, "estimate", *job, "--accelerate", write(accelerate_config(EIGHT, 1)))
    assert code == 3 and "zerokit plan --model llama-3.1-70b --gpus 8 --gpu rtx-4090 --global-batch 8" in out


def test_an_fsdp2_yaml_in_place_of_deepspeeds_json_names_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = call(capsys, "estimate", *JOB, "--engine", "fsdp2", "--seq-len", "131072", "--gpus", "1")
    assert code == 3 and "Does NOT fit" in out
    code, _, err = call(capsys, "estimate", *JOB, "--deepspeed", write(accelerate_config(EIGHT, 1)))
    assert code == 2 and "`zerokit estimate --accelerate fsdp2.yaml --model MODEL --gpu GPU`" in err


def test_check_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    files = (write(accelerate_config(EIGHT, 1)), write(accelerate_config(EIGHT, 1), "v1.yaml"))
    Path("v1.yaml").write_text(Path("v1.yaml").read_text().replace("fsdp_version: 2", "fsdp_version: 1"))
    _, _, err = call(capsys, "check", *files, *JOB)
    assert "fsdp2.yaml: fits: " in err and "accumulation 1 (`zerokit estimate --accelerate fsdp2.yaml" in err
    assert "v1.yaml: fit not judged: v1.yaml: FSDP version 1 is not modelled" in err


@pytest.mark.parametrize(
    ("model", "length", "code", "said"),
    [
        ("mistral-7b-v0.1", "4096", 2, "[context-parallel-other-masks]"),  # a sliding window of 4,096
        ("bert-base", "512", 2, "[context-parallel-needs-causal-model]"),
        ("llama-3.2-1b", "4100", 0, "fit not judged: shared.yaml: context parallel 4: 4,100 tokens"),
    ],
)
def test_check_finds_models_whose_sequences_cannot_be_shared(
    model: str, length: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate refuses a window in ``prepare`` (big_modeling.py:819, 1.15); unequal shares run."""
    path = write(accelerate_config(replace(EIGHT, data_parallel=2, sequence_parallel=4), 1), "shared.yaml")
    ended, out, err = call(capsys, "check", path, "--model", model, "--gpu", "h200", "--seq-len", length)
    assert ended == code and said in out + err
    assert ("parallelism_config_cp_size: 4" in out) is (code == 2)


def test_check_judges_a_plans_file_by_the_plans_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Method, length and batch, which the file leaves to the script."""
    job = ("--model", "llama-3.1-8b", "--gpus", "4", "--gpu", "h100-sxm-80gb")
    own = ("--engine", "fsdp2", "--method", "lora", "--seq-len", "4096", "--global-batch", "64")
    plan = as_json(capsys, "plan", *job, *own, "--out", "plan")["chosen"]
    assert plan["gradient_accumulation"] > 1
    _, _, err = call(capsys, "check", "plan", *job)
    required = plan["estimate"]["min_vram_bytes"] / 2**30
    assert f"accelerate.yaml: fits: {required:.2f} GiB required" in err
    assert "left to the script" not in err
