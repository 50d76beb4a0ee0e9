"""What real DeepSpeed writes for a checkpoint, and gathers for a save, on two CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import needs
from zerokit.domain.deepspeed_settings import CONVERTS_ADAPTERS, from_config
from zerokit.memory.saving import checkpoint_bytes

needs("deepspeed")

CASES = (
    (3, "bf16", False), (2, "bf16", False), (1, "fp32", False), (0, "bf16", False), (0, "fp32", False),
    (3, "fp32", False), (3, "bf16", True), (2, "bf16", True),
)  # fmt: skip

RANK = """
import importlib, json, os, sys
from pathlib import Path
import torch
rank, folder, cases = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
import deepspeed
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # minutes of C++
torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/store")
deepspeed.init_distributed("gloo")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(512, 512, bias=False)
        self.b = torch.nn.Linear(512, 1024, bias=False)
        self.c = torch.nn.Linear(1024, 512, bias=False)

    def forward(self, x):
        return self.c(self.b(self.a(x))).float().pow(2).mean()

for at, (config, frozen) in enumerate(cases):
    net = Net()
    net.a.weight.requires_grad = not frozen
    trained = [p for p in net.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=net, model_parameters=trained, config=config)
    dtype = torch.bfloat16 if "bf16" in config else torch.float32
    engine.backward(engine(torch.randn(2, 512, dtype=dtype)))
    engine.step()
    engine.save_checkpoint(str(folder / f"case{at}"))
    gathered = None
    if config["zero_optimization"]["stage"] == 3:
        state = engine._zero3_consolidated_16bit_state_dict()
        assert (state is None) == (rank > 0)
        if state is not None:
            gathered = sum(v.untyped_storage().nbytes() for v in state.values())
    if rank == 0:
        (folder / f"gathered{at}").write_text(json.dumps(gathered))

if "adapters" not in sys.argv:
    raise SystemExit
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                     num_attention_heads=2)
torch.manual_seed(0)
base = AutoModelForCausalLM.from_config(config).bfloat16()
if rank == 0:
    base.save_pretrained(folder / "base")
model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
trained = [p for p in model.parameters() if p.requires_grad]
engine, *_ = deepspeed.initialize(model=model, model_parameters=trained,
    config={"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})
ids = torch.arange(8)[None]
engine.backward(engine(input_ids=ids, labels=ids).loss)
engine.step()
engine.save_checkpoint(str(folder / "checkpoint"), exclude_frozen_parameters=True)
state = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
if rank == 0:
    torch.save(state, folder / "trained.pt")
"""


def _run_ranks(source: str, folder: Path, *arguments: str) -> None:
    """Run a script as two CPU ranks, each given its number and the folder."""
    script = folder / "rank.py"
    script.write_text(source)
    ranks = []
    for rank in range(2):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "DS_ACCELERATOR": "cpu",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        ranks.append(subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder), *arguments],
            env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
    for process in ranks:
        _, err = process.communicate(timeout=380)
        assert process.returncode == 0, err[-3000:]


def _configuration(stage: int, precision: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {
            "stage": stage, "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 0,
        },
    }  # fmt: skip
    return config if precision == "fp32" else config | {precision: {"enabled": True}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What two ranks wrote, of every case, and of the adapters where a slow test asks for them."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [(_configuration(stage, precision), frozen) for stage, precision, frozen in CASES]
    adapters = ["adapters"] if "slow" in request.config.option.markexpr else []
    _run_ranks(RANK, folder, json.dumps(cases), *adapters)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_adapters_of_a_zero_3_checkpoint_are_converted_as_the_plan_says(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of the plan are run, and what they write is loaded with PEFT."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    import torch
    from deepspeed.utils.zero_to_fp32 import load_state_dict_from_zero_checkpoint

    monkeypatch.chdir(written)

    def base() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)

    names = {
        "load_state_dict_from_zero_checkpoint": load_state_dict_from_zero_checkpoint,
        "peft_model": peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=["q_proj"])),
        "DIR": "checkpoint",
        "OUT": "adapters",
    }
    eval(CONVERTS_ADAPTERS, names)
    loaded = peft.PeftModel.from_pretrained(base(), "adapters").state_dict()
    trained = torch.load("trained.pt")
    assert len(trained) == 2 and all(value.abs().sum() > 0 for value in trained.values())
    for name, value in trained.items():
        torch.testing.assert_close(loaded[name], value.float(), rtol=1e-2, atol=1e-3)


@pytest.mark.timeout(400)
def test_checkpoints_and_gathered_weights_are_as_large_as_counted(written: Path) -> None:
    parameters, frozen_parameters = 512 * 512 * 5, 512 * 512
    for at, (stage, precision, frozen) in enumerate(CASES):
        files = (written / f"case{at}").rglob("*_states.pt")
        size = sum(path.stat().st_size for path in files)
        trainable = parameters - frozen_parameters * frozen
        counted = checkpoint_bytes(parameters, trainable, from_config(_configuration(stage, precision)))
        # names, shapes and hyperparameters take some kilobytes a file
        assert counted <= size <= counted * 1.02 + 40_000, (CASES[at], counted, size)
        gathered = json.loads((written / f"gathered{at}").read_text())
        if stage == 3:
            assert gathered == parameters * (2 if precision == "bf16" else 4)
