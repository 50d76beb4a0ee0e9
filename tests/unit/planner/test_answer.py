"""What an answer says of memory that does not suffice: an estimate and a plan in the same words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command import as_json, call, move_elsewhere

TWO = ("--model", "llama-3.1-8b", "--gpus", "2", "--gpu", "rtx-4090", "--seq-len", "8192")
OFFLOADED = ("--zero", "3", "--offload-optimizer", "cpu", "--offload-param", "cpu", "--checkpointing", "full")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("host", "begins", "where"),
    [
        ((), "Fits the GPU, but maybe not the host: ", "where 96.0 GiB are assumed"),
        (("--host-ram", "160GiB"), "Does NOT fit: ", "where there are 160.0 GiB"),
    ],
)
def test_a_host_that_lacks_memory_is_in_the_first_sentence(
    capsys: pytest.CaptureFixture[str], host: tuple[str, ...], begins: str, where: str
) -> None:
    """The catalogue takes twice the GPU memory for the host of an rtx-4090, an assumption: no exit code 3."""
    code, out, _ = call(capsys, "estimate", *TWO, *OFFLOADED, *host)
    first = " ".join(out.partition("Step: ")[0].split())
    required = as_json(capsys, "estimate", *TWO, *OFFLOADED)["host_bytes_per_node"]
    lack = f"and {required / 2**30:.1f} GiB of host memory per node, {where}"
    assert code == (3 if host else 0) and begins in first and lack in first
    assert ("(--host-ram not given)" in first) is not bool(host)
    code, _, err = call(capsys, "plan", *TWO, *OFFLOADED, *host)
    assert code == 3 and lack in err
    enough = call(capsys, "estimate", *TWO, *OFFLOADED, "--host-ram", "256GiB")
    assert enough[0] == 0 and "Fits: " in enough[1] and "where" not in enough[1].partition("Step: ")[0]


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("Lion", "learning rate 1e-05, betas 0.9/0.99, weight decay 0.1, gradient clipping 1.0: starting"),
        ("Adafactor", "learning rate 0.001, gradient clipping 1.0: starting points"),
        ("adamw_8bit", "gradient clipping 1.0: a starting point"),
    ],
)
def test_what_is_set_unasked_is_told_of_every_optimizer(
    capsys: pytest.CaptureFixture[str], optimizer: str, said: str
) -> None:
    """The plan's file has it, so its reader is told; an optimizer that the script makes has no block."""
    job = ("--model", "qwen2.5-0.5b", "--gpus", "2", "--gpu", "rtx-4090", "--optimizer", optimizer)
    text = " ".join(call(capsys, "plan", *job, "--explain")[1].split())
    assert f"Also set, though not asked for {said}" in text, text
    written = json.loads(Path("zerokit-plan/ds_config.json").read_text())
    assert written["gradient_clipping"] == 1.0
    rate = re.search("learning rate ([^,]+)", said)
    params = written.get("optimizer", {}).get("params", {})
    assert params.get("lr") == (float(rate.group(1)) if rate else None)


@pytest.mark.slow
def test_both_memories_that_are_short_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    both = (
        r"[\d.]+ GiB too much, and [\d.]+ GiB of host memory per node, where (96\.0 GiB are|there are 100\.0)"
    )
    for host in ((), ("--host-ram", "100GiB")):
        out = call(capsys, "estimate", *TWO, *OFFLOADED[:4], *OFFLOADED[6:], *host)[1]
        assert re.search(f"Does NOT fit: .* per GPU, {both}", " ".join(out.split())), out
        pinned = call(capsys, "plan", *TWO, *OFFLOADED[:4], "--offload-param", "none", *host)[2]
        assert re.search(f"the closest strategy requires [\\d.]+ GiB per GPU, {both}", pinned), pinned
        free = call(capsys, "plan", *TWO, "--global-batch", "16", *host)[2]  # another fits these GPUs
        assert re.search(r"requires [\d.]+ GiB per GPU and [\d.]+ GiB of host memory per node, where", free)


def test_the_plan_that_follows_is_for_the_host_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the plan would find that the assumed host does not suffice."""
    code, out, _ = call(capsys, "estimate", *TWO, *OFFLOADED)
    following = out.partition("Next\n")[2].partition("plans this strategy")[0].replace("\\\n", "").split()
    assert code == 0 and "--host-ram" in following
    assert call(capsys, *following[1:])[0] == 0
    _, out, _ = call(capsys, "estimate", *TWO, *OFFLOADED, "--host-ram", "256GiB")
    assert "--host-ram 256GiB" in out.partition("Next\n")[2]


def test_a_file_is_checked_against_the_host_too(capsys: pytest.CaptureFixture[str]) -> None:
    zero = (
        '{"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},'
        ' "stage3_gather_16bit_weights_on_model_save": true}'
    )
    Path("ds.json").write_text(
        f'{{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}}, "zero_optimization": {zero}}}'
    )
    code, _, err = call(capsys, "check", "ds.json", *TWO, "--checkpointing", "full")
    said = " ".join(err.split())
    assert code == 0 and "ds.json: fits the GPU, but maybe not the host: " in said
    assert "GiB of host memory per node, where 96.0 GiB are assumed" in said


def test_a_plan_counts_what_trls_sft_trainer_does_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """17.17 GiB were measured on an H100: a model of these widths by TRL 1.16's sft.py, r 16, all linear
    layers, 1,024 tokens, 4 a GPU, no checkpointing."""
    words = ("plan", "--model", "qwen2.5-1.5b", "--gpus", "1", "--gpu", "h100-sxm-80gb", "--seq-len", "1024",
             "--micro-batch", "4", "--global-batch", "32", "--checkpointing", "none", "--zero", "0",
             "--method", "lora", "--trainer", "trl")  # fmt: skip
    chosen = as_json(capsys, *words)["chosen"]["estimate"]
    assert chosen["peak_allocated_bytes"] / 2**30 == pytest.approx(17.17, rel=0.02)
    without = as_json(capsys, *words, "--lora-dropout", "0")["chosen"]["estimate"]
    saved = (chosen["min_vram_bytes"] - without["min_vram_bytes"]) / 2**30
    code, _, err = call(capsys, "plan", *words[1:-4], "--lora-dropout", "0")
    assert code == 2 and "only with --method lora or qlora" in err
    notes = [note for note in chosen["assumptions"] if "--lora-dropout 0.05" in note]
    assert notes and f", where 0 would require {saved:.1f} GiB less: " in notes[0]


@pytest.mark.parametrize(
    ("trainer", "asked"),
    [
        ("raw", 'peft.LoraConfig(r=8, target_modules="all-linear", lora_dropout=0)'),
        ("trl", "--use_peft --lora_r 8 --lora_target_modules all-linear --load_in_4bit --dtype bfloat16 "
                "--lora_dropout 0"),
        ("axolotl", "adapter: qlora, lora_r: 8, lora_target_linear: true, load_in_4bit: true"),
        ("llamafactory", "finetuning_type: lora, lora_rank: 8, lora_target: all, quantization_bit: 4"),
    ],
)  # fmt: skip
def test_a_trainers_own_arguments_ask_for_the_adapters(
    trainer: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(
        capsys, "plan", "--model", "qwen2.5-1.5b", "--gpus", "1", "--gpu", "rtx-4090", "--seq-len", "1024",
        "--global-batch", "8", "--zero", "0", "--method", "qlora", "--lora-rank", "8", "--lora-dropout", "0",
        "--trainer", trainer,
    )  # fmt: skip
    assert code == 0, err
    assert asked in " ".join(out.split())


def test_what_no_launch_adds_is_the_scripts_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """TRL checkpoints by default (1.16, trainer/base_config.py:62), a Trainer's batch is 8."""
    _, out, _ = call(
        capsys, "plan", "--model", "qwen2.5-1.5b", "--gpus", "1", "--gpu", "h200", "--engine", "ddp",
        "--micro-batch", "2", "--global-batch", "8", "--checkpointing", "none", "--trainer", "trl",
    )  # fmt: skip
    said = " ".join(out.split())
    assert "(a Trainer: --per_device_train_batch_size 2 --gradient_accumulation_steps 4)" in said
    assert "(TRL's SFTTrainer 1.16: --gradient_checkpointing False)" in said
    head = Path("zerokit-plan/plan.yaml").read_text().splitlines()[0]
    assert head.endswith("accelerate launch --config_file accelerate.yaml train.py")


def test_a_launch_says_before_the_run_what_the_scripts_trainer_does_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("sft.py").write_text(
        "from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config\n"
        "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
        "SFTTrainer(args=args, peft_config=get_peft_config(model))\n"
    )
    job = ("--model", "qwen2.5-1.5b", "--gpus", "2", "--gpu", "rtx-4090", "--seq-len", "1024", "--zero", "0",
           "--micro-batch", "4", "--global-batch", "32", "--checkpointing", "none", "--method", "lora",
           "--loss", "chunked")  # fmt: skip
    script = ("sft.py", "--use_peft", "--lora_target_modules", "all-linear")
    launch = ("launch", "--dry-run", "--device", "cuda", "--plan", "zerokit-plan")
    said = "has lora_dropout 0.05, not 0: 20.1 GiB required per GPU, where the plan says 16.4 GiB; give it " \
        "--lora_dropout 0, or see all that it takes: zerokit rehearse --plan"  # fmt: skip
    assert call(capsys, "plan", *job, "--lora-dropout", "0")[0] == 0
    _, _, err = call(capsys, *launch, *script)
    assert said in err
    _, _, err = call(capsys, *launch, *script, "--lora_dropout", "0.0")
    assert "required per GPU, where" not in err
