"""What a DeepSpeed file leaves to its script: said with the value that was taken, and an option sets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run

JOB = ("--model", "llama-3.1-8b", "--gpus", "4", "--gpu", "h100-sxm-80gb", "--checkpointing", "full")
CLOSED = ("--params", "1b", "--gpus", "4", "--gpu", "h100-sxm-80gb", "--checkpointing", "full")
"""In closed form: in fp32 the other would be traced for seconds."""
HIDDEN = 4096  # of Llama 3.1 8B's config.json
TRAINERS: dict[str, Any] = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "auto"}, "offload_param": {"device": "none"},
        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}  # fmt: skip
"""As the documentation of transformers writes its own, the offload apart."""
LITERAL: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "fp16": {"enabled": False}, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999]}},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"},
        # transformers 5.23, integrations/deepspeed.py, trainer_config_finalize
        "reduce_bucket_size": HIDDEN**2, "stage3_prefetch_bucket_size": int(0.9 * HIDDEN**2),
        "stage3_param_persistence_threshold": 10 * HIDDEN,
    },
}  # fmt: skip


def _estimate(
    capsys: pytest.CaptureFixture[str], folder: Path, config: Mapping[str, Any], *options: str,
    job: tuple[str, ...] = JOB,
) -> dict[str, Any]:  # fmt: skip
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    assert run(["estimate", *job, "--deepspeed", str(path), *options, "--json"]) in (0, 3)
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def _said(answer: Mapping[str, Any]) -> list[str]:
    return [note.split(": the file ")[0] for note in answer["assumptions"] if ": the file " in note]


def test_each_auto_is_said_and_its_option_sets_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    taken = _said(_estimate(capsys, tmp_path, TRAINERS))
    assert taken == [
        "precision bf16", "offload_optimizer none",
        f"reduce_bucket_size {HIDDEN**2:,}, stage3_prefetch_bucket_size {int(0.9 * HIDDEN**2):,}, "
        f"stage3_param_persistence_threshold {10 * HIDDEN:,}",
        "micro-batch 8", "gradient accumulation 1",
    ]  # fmt: skip
    options = ("--precision", "bf16", "--micro-batch", "2", "--gradient-accumulation", "4",
               "--offload-optimizer", "cpu")  # fmt: skip
    given, literal = _estimate(capsys, tmp_path, TRAINERS, *options), _estimate(capsys, tmp_path, LITERAL)
    assert len(_said(given)) == 1 and not _said(literal)
    assert given["per_rank"] == literal["per_rank"] and given["step_seconds"] == literal["step_seconds"]
    smaller = _estimate(capsys, tmp_path, TRAINERS, *options, "--reduce-bucket", "1m", "--persistence", "1")
    assert _said(smaller)[0].startswith("stage3_prefetch_bucket_size")


MICRO, STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("batch", "taken", "refused"),
    [  # a Trainer has 8 per GPU and 1 accumulation unless given: 32 on 4 ranks
        (
            {"train_batch_size": 128},
            (8, 4),
            "refuses the file unless it is given --gradient_accumulation_steps 4 on 4 ranks",
        ),
        ({"train_batch_size": 32}, (8, 1), None),
        (
            {"train_batch_size": 48},
            (6, 2),
            "unless it is given --per_device_train_batch_size 6 --gradient_accumulation_steps 2 on 4 ranks",
        ),
        ({"train_batch_size": 128, MICRO: 8}, (8, 4), "is given --gradient_accumulation_steps 4 on 4 ranks"),
        ({"train_batch_size": 128, STEPS: 2}, (16, 2), "is given --per_device_train_batch_size 16 --grad"),
    ],
)
def test_a_batch_in_numbers_beside_auto_is_held_against_a_trainers(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    batch: Mapping[str, int],
    taken: tuple[int, int],
    refused: str | None,
) -> None:
    answer = _estimate(capsys, tmp_path, {**TRAINERS, **batch})
    micro, steps = taken
    said = _said(answer)
    assert (f"micro-batch {micro}" in said) is (MICRO not in batch)
    assert (f"gradient accumulation {steps}" in said) is (STEPS not in batch)
    notes = [note for note in answer["assumptions"] if 'beside "auto"' in note]
    assert [refused in note for note in notes] == [True] if refused else notes == []


def test_a_batch_that_no_auto_completes_on_these_gpus_stops_the_estimate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**TRAINERS, "train_batch_size": 33}))
    assert run(["estimate", *JOB, "--deepspeed", str(path)]) == 2
    assert "33 is not a multiple of 4 (data-parallel ranks)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        (
            {"train_batch_size": 33, MICRO: 8},
            (),
            "33 is not a multiple of 8 (micro-batch): no number of ranks",
        ),
        ({"train_batch_size": 33}, (), "refuses the file unless its arguments make 33"),
        (
            {"train_batch_size": 33},
            ("--world-size", "2"),
            'is not a multiple of 2 (data-parallel ranks): nothing that fills "auto" fits',
        ),
        (
            {"train_batch_size": 40, MICRO: 8},
            ("--world-size", "2"),
            "8 (micro-batch) × 2 (data-parallel ranks)",
        ),
        (
            {"train_batch_size": 64, MICRO: 8},
            ("--world-size", "2"),
            "the Trainer refuses the file unless its arguments make 64",
        ),
        ({"train_batch_size": "auto"}, ("--world-size", "2"), None),
    ],
)
def test_check_refuses_a_batch_that_nothing_beside_it_meets(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    batch: Mapping[str, int | str],
    options: tuple[str, ...],
    words: str | None,
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**TRAINERS, **batch}))
    run(["check", str(path), "--for", "trainer", *options])
    out = " ".join(capsys.readouterr().out.split())
    assert words in out if words else "train_batch_size" not in out


@pytest.mark.parametrize(
    ("config", "option", "value", "literal"),
    [
        ({"bf16": {"enabled": "auto"}}, "--precision", "fp32", {"bf16": {"enabled": False}}),
        ({"fp16": {"enabled": "auto"}}, "--precision", "fp16", {"fp16": {"enabled": True}}),
        ({"zero_optimization": {"stage": "auto"}}, "--zero", "1", {"zero_optimization": {"stage": 1}}),
    ],
)
def test_an_option_says_what_the_file_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict[str, Any], option: str, value: str,
    literal: dict[str, Any],
) -> None:  # fmt: skip
    rest = {"train_micro_batch_size_per_gpu": 1}
    given = _estimate(capsys, tmp_path, rest | config, option, value, job=CLOSED)
    expected = _estimate(capsys, tmp_path, rest | literal, job=CLOSED)
    unlike = _estimate(capsys, tmp_path, rest | config, job=CLOSED)
    assert given["per_rank"] == expected["per_rank"]
    if value != "fp16":  # which is what is taken, too
        assert unlike["peak_allocated_bytes"] != given["peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("gpu", "blocks", "taken"),
    [
        ("v100-32gb", ("bf16", "fp16"), "fp16"), ("v100-32gb", ("bf16",), "fp32"),
        ("h200", ("bf16", "fp16"), "bf16"), ("h200", ("fp16",), "fp16"), ("h200", (), "fp32"),
    ],
)  # fmt: skip
def test_the_precision_that_is_taken_is_one_that_the_gpu_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, gpu: str, blocks: tuple[str, ...], taken: str
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, **{name: {"enabled": "auto"} for name in blocks}}
    answer = _estimate(capsys, tmp_path, config, "--gpu", gpu, job=CLOSED)
    assert f"precision {taken}" in _said(answer)


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ({"bf16": {"enabled": False}, "fp16": {"enabled": "auto"}}, ("--precision", "bf16"),
         "--precision bf16: the file of --deepspeed turns it off"),
        ({"bf16": {"enabled": True}}, ("--precision", "fp32"), "ds.json decides it: set bf16"),
        (TRAINERS, ("--zero", "2"), "ds.json decides it: set zero_optimization.stage ("),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "auto"}}}, ("--offload-param", "cpu"),
         "--offload-param cpu: stage 2 ignores it"),
        (TRAINERS, ("--global-batch", "6"), "--global-batch 6 is not 8 per GPU × 1 accumulation × 4"),
        ({"bf16": {"enabled": "auto"}, "fp16": {}}, ("--precision", "fp16"),
         "--precision fp16: the file of --deepspeed turns it off"),
        (LITERAL, ("--gradient-accumulation", "8"), "ds.json decides it: set gradient_accumulation_steps ("),
        (LITERAL, ("--global-batch", "64"), "--global-batch 64 is not 2 per GPU × 4 accumulation × 4"),
    ],
)  # fmt: skip
def test_an_option_that_the_file_contradicts_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict[str, Any], options: tuple[str, str],
    named: str,
) -> None:  # fmt: skip
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))
    assert run(["estimate", *JOB, "--deepspeed", str(path), *options]) == 2
    assert named in capsys.readouterr().err


def test_a_precision_that_is_on_leaves_none_open(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = _estimate(capsys, tmp_path, {**TRAINERS, "fp16": {"enabled": True}})
    assert not any(note.startswith("precision") for note in _said(answer))


def test_below_stage_3_only_the_bucket_is_filled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {**LITERAL, "zero_optimization": {**TRAINERS["zero_optimization"], "stage": 2}}
    assert f"reduce_bucket_size {HIDDEN**2:,}" in _said(_estimate(capsys, tmp_path, config))


def test_an_auto_that_nobody_fills_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        **LITERAL,
        "zero_optimization": {"stage": 2, "overlap_comm": "auto", "round_robin_gradients": "auto"},
    }
    assert _said(_estimate(capsys, tmp_path, config)) == [
        "zero_optimization.overlap_comm", "zero_optimization.round_robin_gradients",
    ]  # fmt: skip


def test_check_says_what_it_took(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(TRAINERS))
    run(["check", "ds.json", *JOB])
    said = capsys.readouterr().err
    assert "bf16, batch size per GPU 8" in said
    assert "left to the script, and taken as: precision bf16, offload_optimizer none" in said
    assert "`zerokit estimate --deepspeed ds.json --model " in said


@pytest.mark.parametrize(("line", "taken"), [("mixed_precision: 'no'\n", "fp32"), ("", "fp32"),
                                             ("mixed_precision: bf16\n", "bf16")])  # fmt: skip
def test_check_takes_the_precision_of_an_accelerate_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, taken: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\n"
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 1\n  zero3_init_flag: false\n"
        + line
    )
    run(["check", str(path), "--model", "llama-3.2-1b", "--gpu", "h200", "--gpus", "4"])
    said = capsys.readouterr().err
    assert f"{taken}, batch size per GPU 1" in said
    assert ("taken as: precision fp32" in said) == (not line)
