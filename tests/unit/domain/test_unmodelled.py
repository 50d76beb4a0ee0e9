"""DeepSpeed keys that the prediction does not follow are named, and change its basis."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.domain.unmodelled import _KEYS, not_modelled, unmodelled_keys
from zerokit.linter.deepspeed.tables import has_key

ASKED = ("--model", "llama-3.2-1b", "--gpus", "8", "--gpu", "h200", "--seq-len", "2048")
SET: list[tuple[str, Any]] = [
    ("zero_optimization.zenflow", {"topk_ratio": 0.1}),
    ("zero_optimization.offload_optimizer.super_offload", True),
    ("zero_optimization.zero_quantized_weights", True),
    ("zero_optimization.zero_quantized_gradients", True),
    ("compile.deepcompile", True),
    ("sequence_parallel_size", 2),
    ("expert_parallel", {"ep_size": 2}),
    ("activation_checkpointing.cpu_checkpointing", True),
    ("activation_checkpointing.partition_activations", True),
    ("data_efficiency", {"enabled": True}),
    ("zero_optimization.memory_efficient_linear", False),
    ("managed_gradient_accumulation", False),
    ("comms_logger.enabled", True),
    ("wall_clock_breakdown", True),
    ("flops_profiler.enabled", True),
    ("data_types.grad_accum_dtype", "int8"),
    ("pipeline", {"activation_checkpoint_interval": 1}),
]


def named(body: dict[str, Any]) -> tuple[str, ...]:
    return not_modelled(unmodelled_keys(body, has_key))


def config(key: str, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    block = body = copy.deepcopy(body if base is None else base)
    *parents, name = key.split(".")
    for parent in parents:
        block = block.setdefault(parent, {})
    block[name] = value
    return body


@pytest.mark.parametrize(("key", "value"), SET, ids=[key for key, _ in SET])
def test_a_key_that_is_not_followed_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str, value: Any
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config(key, value)))
    assert run(["estimate", *ASKED, "--deepspeed", str(path), "--json"]) in (0, 2)
    out, err = capsys.readouterr()
    if not out:  # refused by a rule: not answered as if the key were not there
        assert key.rpartition(".")[2] in err
        return
    body = json.loads(out)
    of_time = key in ("comms_logger.enabled", "wall_clock_breakdown", "flops_profiler.enabled")
    assert (body["fits"], body["not_modelled"]) == ((True, []) if of_time else (None, [key]))
    assert body["basis"] == "incomplete"
    assert any(line.startswith(f"not modelled: {key} (") for line in body["assumptions"])


@pytest.mark.parametrize("value", ["auto", None, False])
def test_a_key_that_does_nothing_is_not_named(value: Any) -> None:
    assert named(config("compile.deepcompile", value)) == ()
    assert named(config("zero_optimization.zenflow", None)) == ()
    assert named(config("data_efficiency", {"enabled": False})) == ()


def test_a_key_that_nobody_classified_counts_as_not_modelled() -> None:
    body = config("zero_optimization.of_a_later_version", {"a": {"b": 3}, "off": False})
    assert not any(
        "of_a_later_version" in key for key in unmodelled_keys(body, has_key)
    )  # DeepSpeed ignores it
    assert list(unmodelled_keys(body, lambda _key: True)) == ["zero_optimization.of_a_later_version.a.b"]


def test_the_first_line_and_check_name_what_is_not_modelled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    body = config("expert_parallel", {"ep_size": 2})
    path.write_text(json.dumps(body | {"compile": {"deepcompile": True}, "steps_per_print": 5}))
    assert run(["estimate", *ASKED, "--deepspeed", str(path)]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    assert "May fit: 2 keys not modelled (compile.deepcompile, expert_parallel); without them: " in answer
    assert run(["check", *ASKED, str(path), "--json"]) == 0
    fit = json.loads(capsys.readouterr().out)["files"][0]["fit"]
    assert fit["fits"] is None and fit["message"].startswith("may fit (2 keys not modelled (compile.")


NVME = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}
WHERE = [
    ("zero_optimization.memory_efficient_linear", False, {"zero_optimization": {"stage": 3}}),
    ("zero_optimization.use_multi_rank_bucket_allreduce", False, {"zero_optimization": {"stage": 1}}),
    ("bf16.immediate_grad_update", True, {"zero_optimization": {"stage": 1},
                                          "data_types": {"grad_accum_dtype": "fp32"}}),
    ("torch_autocast.lower_precision_safe_modules", ["torch.nn.Linear"],
     {"torch_autocast": {"enabled": True}}),
    ("aio.use_gds", True, {"zero_optimization": NVME}),
    ("zero_optimization.offload_optimizer.pipeline_read", True, {"zero_optimization": NVME}),
    ("tensor_parallel.partition_config", {}, {"tensor_parallel": {"autotp_size": 2}}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "needed"), WHERE, ids=[key for key, *_ in WHERE])
def test_a_key_is_named_only_where_deepspeed_reads_it(key: str, value: Any, needed: dict[str, Any]) -> None:
    assert [key in line for line in named(config(key, value, needed))] == [True]
    assert named(config(key, value, {})) == ()


def test_the_keys_are_deepspeeds() -> None:
    text = (resources.files("zerokit") / "linter/deepspeed/deepspeed-0.19.8.json").read_text()
    blocks = json.loads(text)["blocks"]
    for key in _KEYS:
        block, _, name = key.rpartition(".")
        assert name in blocks[block]["keys"], key


def test_the_second_copy_of_weights_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = []
    for group in (1, 8):
        path = tmp_path / f"{group}.json"
        path.write_text(json.dumps(config("zero_optimization.zero_hpz_partition_size", group)))
        assert run(["estimate", *ASKED, "--deepspeed", str(path), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["basis"] == "traced"
    more = found[1]["peak_allocated_bytes"] - found[0]["peak_allocated_bytes"]
    assert more == pytest.approx(2 * 1_235_814_400 / 8, rel=0.01)
