"""Runs of DeepSpeed on real ranks: settings to draw from, the runs themselves, and what they are held to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.oracle.expected import LLAMA, SMALL, expected

SLACK = 2048
# more by one activation of these models: autocast's casts die an instant earlier than traced
AUTOCAST_SLACK = 8192 + SLACK
TIED = LLAMA | {"tie_word_embeddings": True}
ATTENTION = LLAMA | {"vocab_size": 50, "intermediate_size": 32}  # its attention is what peaks
PHI = {
    "model_type": "phi", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 50, "max_position_embeddings": 256,
    "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
}  # fmt: skip
FEW_WORDS = LLAMA | {"vocab_size": 50}  # its layers are what peaks
EXPERTS = {**FEW_WORDS, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SHARED_EXPERT = {
    **FEW_WORDS, "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
}  # fmt: skip
ALL_LINEAR = {"rank": 8, "targets": ["all-linear"]}
LORA = {"rank": 8, "targets": ["q_proj", "v_proj"]}
OPTIMIZER = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
PARAMETERS = OPTIMIZER | {"offload_param": {"device": "cpu", "pin_memory": False}}
FAR = {"stage3_max_reuse_distance": 30_000}
RELEASED = SMALL | {
    "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0,
}  # fmt: skip
HPZ = {"zero_hpz_partition_size": 2}
FP32_ACCUMULATION = {"data_types": {"grad_accum_dtype": "fp32"}}
FP32_COMMUNICATION = {"communication_data_type": "fp32"}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
BF16_MASTER = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
BF16_STATES = {"bf16": BF16_MASTER["bf16"] | {"bf16_optimizer_states": True}}
FP16 = {"bf16": {"enabled": False}, "fp16": {"enabled": True, "loss_scale": 1.0}}
CLIENT = {"zero_allow_untested_optimizer": True}
SGD = CLIENT | {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "foreach": True}}}
MOMENTUM = CLIENT | {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "momentum": 0.9, "foreach": True}}}
ADAGRAD = CLIENT | {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-4, "foreach": True}}}
HOST_ADAM = CLIENT | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}  # ranks.py has one of its own
TWIN_FLOW = {"offload_optimizer": {"device": "cpu", "pin_memory": False, "ratio": 0.4}}


def run_ranks(runs: list[dict[str, Any]], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What every rank of every run allocated, by the run's name."""
    (folder / "cases.json").write_text(json.dumps(runs))
    program = Path(__file__).with_name("ranks.py")
    command = [sys.executable, str(program), str(folder / "cases.json"), str(folder / "results.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (folder / "results.jsonl").read_text().splitlines()
    return {run["name"]: json.loads(line) for run, line in zip(runs, lines, strict=True)}


def _on_host(run: dict[str, Any], wanted: dict[str, Any]) -> int:
    """Tensors in host memory under offload, without pinning: bytes from DeepSpeed's own list of them."""
    zero = run["deepspeed_config"]["zero_optimization"]
    if "offload_optimizer" not in zero:
        return 0
    share = -(-wanted["parameters"] // (2 * run["ranks"])) * 2
    master = 2 if run["deepspeed_config"]["bf16"].get("bf16_master_weights_and_grads") else 4
    size = (2 * master + 8) * (share - wanted["on_device"])  # master, gradients, Adam
    width = 4 if run["precision"] == "32" else 2
    size += width * share  # staging of the weights below stage 3 (stage_1_and_2.py:567), gradients at 3
    if zero["stage"] < 3:
        size += width * wanted["largest"]  # the host end of the transfer buffer
        wide = run["deepspeed_config"].get("data_types") == FP32_ACCUMULATION["data_types"]  # on the GPU
        if zero["stage"] == 2 and run["gradient_accumulation"] > 1 and master == 4 and not wide:
            size += width * wanted["touched"]
    if "offload_param" in zero:
        size += wanted["shares"]
    return size


def compare(run: dict[str, Any], rank: int, measured: dict[str, Any]) -> list[str]:
    """What is off by more than SLACK."""
    assert "error" not in measured, measured["error"]
    wanted = expected(run, rank)
    host = _on_host(run, wanted)
    last = measured["steps"][-1]
    pairs = []
    for number, own in ((0, wanted["micro_steps"][0]), (len(last) - 1, wanted["micro_steps"][-1])):
        observed = last[number]
        pairs += [
            (f"forward of micro-step {number}", own["forward"], observed["forward"]["peak"]),
            (f"level after forward {number}", own["after_forward"], observed["forward"]["level"]),
            (f"backward of micro-step {number}", own["backward"], observed["backward"]["peak"]),
            (f"level after backward {number}", own["after_backward"], observed["backward"]["level"]),
        ]
    pairs.append(("level between steps", wanted["between_steps"], last[-1]["step"]["level"]))
    if not host:
        pairs.append(("step", wanted["step"], last[-1]["step"]["peak"]))
        # at stage 3 the model is built on the GPU already (``zero.Init``), below it in host memory
        built = measured["built"]["peak"] if run["deepspeed_config"]["zero_optimization"]["stage"] == 3 else 0
        pairs.append(("init", wanted["init"], max(built, measured["init"]["peak"])))
    # an offloaded share is copied to the device before it is gathered; on CPU ranks it is there
    offloaded = "offload_param" in run["deepspeed_config"]["zero_optimization"]
    no_copies = wanted["copied"] if offloaded else 0
    found = []
    for what, size, observed in pairs:
        predicted = size + host
        # the order in which modules are built decides which parameter is whole while how many are shares
        slack = AUTOCAST_SLACK if "torch_autocast" in run["deepspeed_config"] else SLACK
        slack = max(slack, observed // 100) if what == "init" else slack
        # hpZ's copy comes layer by layer: where the peak is early, not all of it is there
        more = no_copies + (wanted["second_copy"] if "forward" in what else 0)
        if not -slack <= predicted - observed <= slack + more:
            line = f"{run['name']}, rank {rank}: {what}: predicted {predicted:,}, allocated {observed:,}"
            found.append(line)
    return found
