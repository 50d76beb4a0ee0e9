"""Optimizers that the script makes: bytes in plans, what DeepSpeed refuses, what is written for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.domain.client_optimizers import CLIENT_OPTIMIZERS
from zerokit.domain.job import Job
from zerokit.emit import plan_file
from zerokit.emit.deepspeed import trainer_arguments
from zerokit.errors import InputError
from zerokit.values import replace

ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h200", "gpus": 2, "micro_batch": 1, "zero": 2}
TORCHAO = Path(__file__).parents[2] / "data" / "h200" / "torchao-steps.jsonl"
OWNED = 1_235_814_400 // 2  # Llama-3.2-1B's parameters, a rank's half


def states(**options: Any) -> tuple[int, int]:
    """Bytes of optimizer state on the GPU, and in host memory of the node."""
    found = zerokit.estimate(**ASKED | options)
    peak = found.to_dict()["per_rank"][0]["components"]
    return peak.get("optimizer_states", 0), found.to_dict()["host_components"].get("optimizer_states", 0)


def test_bytes_follow_bits_and_the_scale_of_each_block() -> None:
    scales = 4 * -(-OWNED // 256)
    assert states() == (8 * OWNED, 0)
    assert states(optimizer="adamw_bnb_8bit") == (2 * (OWNED + scales) + 2 * 1024, 0)
    assert states(optimizer="ademamix_8bit") == (3 * (OWNED + scales) + 2 * 1024, 0)
    assert states(optimizer="lion_8bit") == (OWNED + scales + 1024, 0)
    assert states(optimizer="schedule_free_sgd") == (4 * OWNED, 0)


def test_states_in_whole_blocks_are_those_of_an_h200() -> None:
    rows = [json.loads(line) for line in TORCHAO.read_text().splitlines()]
    assert len(rows) == 40
    for row in rows:
        made = replace(CLIENT_OPTIMIZERS[row["optimizer"]], block=row["block"])
        elements = math.prod(row["shape"])
        tensor_bytes = {"bfloat16": 2, "float32": 4}[row["dtype"]]
        kept = made.device_bytes(elements, tensor_bytes) + made.code_bytes([elements])
        during = made.step_temporary_bytes([elements], tensor_bytes * elements)
        # six tensors in blocks of 512 bytes, or of 2 MiB where that is what is left of one
        assert kept == pytest.approx(row["state_bytes"], rel=0.01, abs=6 * 512)
        assert during == pytest.approx(row["step_bytes"], rel=0.01, abs=6 * 512)


def test_a_part_that_is_no_whole_number_of_blocks_keeps_wide_states() -> None:
    """As DeepSpeed's flat partition of any number of elements; a whole number of them is the rule."""
    assert states(optimizer="adamw_torch_8bit") == (2 * (OWNED + 4 * OWNED // 256 + 1024), 0)
    assert states(optimizer="adamw_torch_8bit", gpus=3)[0] >= 8 * 1_235_814_400 // 3


def test_paged_states_are_in_no_gpu_figure_and_in_the_hosts() -> None:
    on_gpu, on_host = states(optimizer="paged_adamw_32bit")
    assert on_gpu == 0 and on_host == 2 * 8 * OWNED  # of both ranks
    plan = zerokit.plan(**ASKED | {"optimizer": "paged_adamw_32bit"})
    assert any("managed memory" in note and "measured on a GPU" in note for note in plan.assumptions)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offload_optimizer": "cpu"}, "does not offload an optimizer that the script makes"),
        ({"zero": 0, "optimizer": "schedule_free_adamw"}, "use ⟨zero⟩ 1, 2 or 3"),
    ],
)
def test_what_deepspeed_refuses_is_refused(options: dict[str, Any], said: str) -> None:
    asked = ASKED | {"optimizer": "adamw_8bit"} | options
    for ask in (zerokit.plan, zerokit.estimate):
        with pytest.raises(InputError) as caught:
            ask(**asked)
        assert said in caught.value.marked and caught.value.exit_code == 2


def test_a_plan_leaves_the_optimizer_to_the_script_and_names_it_to_a_trainer(tmp_path: Path) -> None:
    plan = zerokit.plan(**ASKED | {"optimizer": "adamw_bnb_8bit"}, out=tmp_path)
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert "optimizer" not in config and config["zero_allow_untested_optimizer"] is True
    arguments = trainer_arguments(plan.chosen.strategy, Job())
    assert arguments[arguments.index("--optim") + 1] == "adamw_bnb_8bit"
    read = plan_file.read(tmp_path)
    assert read.strategy() == plan.chosen.strategy and list(read.trainer_arguments) == arguments


def test_a_file_without_an_optimizer_takes_the_one_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h200", "gpus": 2, "deepspeed": str(file)}

    def kept(name: str) -> int:
        found = zerokit.estimate(**asked, optimizer=name).to_dict()["per_rank"][0]["components"]
        return int(found["optimizer_states"])

    assert kept("lion_32bit") == 4 * OWNED
    assert kept("lion_8bit") == OWNED + 4 * -(-OWNED // 256) + 1024
