"""The libraries' own code on the fake GPU: engines, wrappers and compilers, each to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rehearsals import SCRIPTS, rehearse

torch = pytest.importorskip("torch")

CASES = Path(__file__).resolve().parent / "scripts"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
PARAMETERS = 1000 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


def rank_of(said: dict[str, Any]) -> dict[str, Any]:
    assert said["stopped"] is None, said["stopped"]
    rank: dict[str, Any] = said["ranks"][0]
    return rank


def test_weights_are_not_read_and_two_ranks_reduce_gradients(tmp_path: Path, model: str) -> None:
    code, said, _ = rehearse(
        tmp_path,
        "--gpus",
        "2",
        "--ranks",
        "0,last",
        "--gpu",
        "h200",
        str(CASES / "language_model.py"),
        model,
        "--dtype",
        "float32",
    )
    rank = rank_of(said)
    # weights, gradients in DDP's buckets, Adam's two moments: four times fp32
    assert rank["phases"]["step"] >= 4 * 4 * PARAMETERS
    assert any("from_pretrained" in entry for entry in said["stubbed"])
    assert [entry["rank"] for entry in said["ranks"]] == [0, 1]
    assert said["ranks"][1]["phases"] == rank["phases"]  # DDP's ranks hold the same
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "script", "arguments"),
    [
        ((), "language_model.py", ("--compile",)),
        ((), "language_model.py", ("--lora", "4", "--checkpointing", "--evaluate")),
        ((), "language_model.py", ("--dtype", "float32", "--autocast", "float16", "--padded")),
        (("--gpus", "2"), "sharded.py", ()),
    ],
    ids=["compile", "lora", "fp16", "fsdp2"],
)
def test_scripts_run_to_their_end(
    tmp_path: Path, model: str, options: tuple[str, ...], script: str, arguments: tuple[str, ...]
) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", *options, str(CASES / script), model, *arguments)
    rank = rank_of(said)
    assert {"forward", "backward", "step"} <= set(rank["phases"])
    assert code == 0


@pytest.mark.slow
def test_an_adapter_needs_its_configuration_only(tmp_path: Path, model: str) -> None:
    pytest.importorskip("peft")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "target_modules": ["q_proj", "v_proj"],
    }))  # fmt: skip
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "adapters.py"), model, str(adapter))
    assert (code, said["stopped"]) == (0, None)
    assert "weights of an adapter" in said["stubbed"]


LOADS = """
import sys, torch
from transformers import AutoModelForCausalLM
device_map = {"": 0} if sys.argv[2] == "gpu" else None
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map=device_map).cuda()
model(input_ids=torch.ones(1, 64, dtype=torch.long, device="cuda"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "most"),
    [
        ("gpu", 1 << 20),
        pytest.param("cpu", 2 * PARAMETERS + (1 << 20), marks=pytest.mark.slow),
    ],
)
def test_weights_that_go_from_their_file_to_the_gpu_take_no_host_memory(
    tmp_path: Path, model: str, device: str, most: int
) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", "loads.py", model, device)
    rank = rank_of(said)
    assert rank["phases"]["load"] >= 2 * PARAMETERS
    assert most - (1 << 20) <= rank["host_bytes"] <= most


OFFLOADED = """
import sys, torch
from transformers import AutoModelForCausalLM
places = {name: 0 for name in ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")}
places |= {"model.layers.0": 0, "model.layers.1": "cpu"}
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map=places)
tokens = torch.ones(1, 1, dtype=torch.long, device="cuda")
with torch.no_grad():
    loaded = torch.cuda.memory_allocated()
    model(input_ids=tokens)  # cuBLAS's workspace, which stays
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(input_ids=tokens)
print(loaded, before, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
"""


def test_a_layer_in_host_memory_is_on_the_gpu_while_it_runs(tmp_path: Path, model: str) -> None:
    (tmp_path / "offloaded.py").write_text(OFFLOADED)
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", "--out", str(tmp_path / "out"), "offloaded.py", model)
    rank_of(said)
    printed = (tmp_path / "out" / "output.txt").read_text().split("\n")
    loaded, before, after, most = next(
        map(int, line.split()) for line in printed if line.replace(" ", "").isdecimal()
    )
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256
    assert loaded == pytest.approx(2 * (PARAMETERS - layer), abs=1 << 14)
    assert most - before > 2 * 256 * 512  # a module's weights, which come and go with it
    assert after == before


@pytest.mark.slow
def test_adapters_quantised_bases_and_a_long_generation_are_as_large_as_they_are(
    tmp_path: Path, model: str
) -> None:
    pytest.importorskip("bitsandbytes")
    from safetensors.torch import save_file

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "target_modules": ["q_proj", "v_proj"],
    }))  # fmt: skip
    save_file(
        {
            f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": torch.zeros(shape)
            for layer in range(2)
            for name, out in (("q_proj", 256), ("v_proj", 128))
            for part, shape in (("A", (16, 256)), ("B", (out, 16)))
        },
        adapter / "adapter_model.safetensors",
    )
    code, said, _ = rehearse(
        tmp_path, "--gpu", "h200", "--out", "kept", str(SCRIPTS / "loaded.py"), model, str(adapter)
    )
    rank = rank_of(said)
    lines = (line.split() for line in (tmp_path / "kept" / "output.txt").read_text().splitlines())
    sizes = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
    in_layers = PARAMETERS - 1000 * 256 - 5 * 256
    plain = 2 * PARAMETERS
    adapter_bytes = 4 * 2 * 16 * (256 + 256 + 256 + 128)
    # blocks of up to 512 bytes for each of 20 small tensors; fp32 scales of 64 weights each, or of each row
    assert 0 <= sizes["plain"] - plain <= 20 << 9
    assert 0 <= sizes["four"] - (plain - 2 * in_layers + in_layers // 2 + 4 * in_layers // 64) <= 60 << 9
    assert 0 <= sizes["eight"] - (plain - in_layers + 4 * 2 * (3 * 256 + 256 + 512 * 2)) <= 60 << 9
    assert (sizes["adapter"], sizes["generated"]) == (adapter_bytes, 2064)
    assert any("generation of 2000 tokens" in text for text in said["stubbed"])
    assert rank["phases"]["generate"] > sizes["plain"] + 2 * 2 * 2 * 2064 * 128 * 2  # keys and values
    assert rank["written_bytes"] == adapter_bytes and "save" in rank["phases"]
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["16", "4"])
def test_a_frozen_base_is_told_apart_from_what_the_optimizer_holds(
    tmp_path: Path, model: str, bits: str
) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "frozen_base.py"), model, bits)
    live: dict[str, int] = {}
    for row in rank_of(said)["at_peak"]:
        live[row["what"]] = live.get(row["what"], 0) + row["bytes"]
    in_layers = PARAMETERS - 1000 * 256 - 5 * 256
    packed = in_layers // 2 if bits == "4" else 0
    frozen = 2 * (PARAMETERS - in_layers if bits == "4" else PARAMETERS)
    # blocks of up to 512 bytes for each of 20 weights
    assert 0 <= live["frozen parameters"] - frozen <= 20 << 9
    assert 0 <= live.get("quantised parameters", 0) - packed <= 20 << 9
    saves = {change["what"]: change["saves_bytes"] for change in said["changes"]}
    in_host = [size for what, size in saves.items() if "offload_optimizer" in what]
    adapters = 4 * 2 * (256 + 256 + 2 * (256 + 128) + 3 * (256 + 512) + 256 + 256)
    assert all(size <= 20 * adapters for size in in_host)  # masters, moments, flat gradients; not the base


@pytest.mark.slow
def test_what_another_stream_uses_is_reserved_for_longer(tmp_path: Path) -> None:
    script, reserved, allocated = str(SCRIPTS / "side_stream.py"), [], []
    for arguments in ([], ["record"]):
        _, said, _ = rehearse(tmp_path, "--gpu", "h200", script, *arguments)
        reserved.append(rank_of(said)["peak_reserved_bytes"])
        allocated.append(rank_of(said)["peak_allocated_bytes"])
    assert reserved[1] >= reserved[0] + 4 * 2 * 4096**2
    assert allocated[0] == allocated[1]


@pytest.mark.slow
def test_deepspeed_shares_optimizer_states_between_ranks(tmp_path: Path, model: str) -> None:
    script = str(SCRIPTS / "zero.py")
    peaks = []
    for gpus in ("1", "8"):
        _, said, _ = rehearse(tmp_path, "--gpus", gpus, "--gpu", "h200", script, model, "3")
        peaks.append(rank_of(said)["phases"]["init"])
    # seven eighths of 8 bytes a weight are elsewhere: bf16 weights and gradients, fp32 ones of the optimizer
    assert abs(peaks[0] - peaks[1] - 7 * PARAMETERS) < 4096


@pytest.mark.slow
def test_any_rank_of_zero_3_can_be_rehearsed(tmp_path: Path, model: str) -> None:
    """The others compare their order of modules with rank 0's, which is not there."""
    command = [str(SCRIPTS / "zero.py"), model, "3"]
    code, said, errors = rehearse(tmp_path, "--gpus", "4", "--gpu", "h200", "--ranks", "0,last", *command)
    assert code == 0, errors
    first, last = said["ranks"]
    assert [first["rank"], last["rank"]] == [0, 3]
    assert last["phases"].keys() == first["phases"].keys()
    assert last["peak_allocated_bytes"] == pytest.approx(first["peak_allocated_bytes"], rel=1e-3)


@pytest.mark.slow
def test_a_sharded_checkpoint_is_each_ranks_own_share(tmp_path: Path) -> None:
    """``torch.distributed.checkpoint``: rank 0 plans for all ranks, which are not there."""
    script = str(SCRIPTS / "sharded_state.py")
    code, said, errors = rehearse(
        tmp_path, "--gpus", "2", "--gpu", "h200", "--ranks", "0,last", "--out", "kept", script
    )
    assert code == 0, errors
    assert said["fully_sharded"]
    assert not any("ZeRO" in change["what"] for change in said["changes"])  # nothing is left to divide
    output = (tmp_path / "kept" / "output.txt").read_text()
    parameters = int(output.split()[output.split().index("parameters") + 1])
    for rank in said["ranks"]:
        assert "save" in rank["phases"]
        # half of fp32 weights and of Adam's two states
        assert rank["written_bytes"] == pytest.approx(3 * 4 * parameters / 2, rel=0.02)


@pytest.mark.slow
def test_a_step_that_generates_has_no_step_time(tmp_path: Path) -> None:
    """Most of its tokens are not made: their time would be missing."""
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "rollouts.py"), "64")
    assert said["complete"]
    assert said["step_seconds"] is None
    assert any("a step generates" in note for note in said["notes"])


@pytest.mark.slow
def test_much_data_is_cut_and_an_evaluation_after_thousands_of_steps_is_told_whole(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "keeps_logits.py"), "50000", "800")
    rank = rank_of(said)
    sizes = {guess["what"]: guess["value"] for guess in said["guesses"] if guess["decides_sizes"]}
    (cut,) = sizes
    assert "50,000 rows" in cut and sizes[cut] == 2048
    assert {"eval", "save"} <= set(rank["phases"])
    # a hundred batches of logits in fp32, and all but the last again where the last is joined to them
    logits = 8 * 128 * 8000 * 4
    assert 199 * logits < rank["phases"]["eval"] < 206 * logits
    assert any("of each batch on the GPU" in text for text in said["warnings"])
    assert "what is created, uploaded or deleted on the Hugging Face Hub" in said["stubbed"]
    assert code == 0


@pytest.mark.slow
def test_flash_attention_that_is_not_installed_allocates_as_its_kernels_do(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", "--out", "kept", str(SCRIPTS / "flash.py"))
    assert said["stopped"] is None
    assert any("flash-attn, which is not installed here" in entry for entry in said["stubbed"])
    lines = (tmp_path / "kept" / "output.txt").read_text().splitlines()
    observed = {
        name: int(size) for name, _, size in (line.rpartition(" ") for line in lines) if size.isdigit()
    }
    tokens, heads, dim = 4 * 1024, 16, 64
    one = tokens * heads * dim * 2
    # the output, the fp32 log-sum-exp and the state of random numbers
    assert 0 <= observed["saved"] - (one + 4 * heads * tokens) <= 2048
    # dq, dk and dv; an accumulator and softmax_d in fp32; dk and dv for every query head (mha_bwd)
    assert observed["workspaces"] == one + 2 * one // 4 + 2 * one + 4 * heads * tokens + 2 * one
    # without padding; every sequence has 128 rows to spare in the fp32 ones (mha_varlen_bwd); a block keeps
    # up to 1 MiB that was not asked for
    tokens = 1024 + 3 * 256
    one, spare = tokens * heads * dim * 2, tokens + 4 * 128
    assert 0 <= observed["in a row"] - (3 * one + 4 * heads * spare * (dim + 1)) <= 3 << 20
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "smaller"),
    [
        ("1", "half the sequence length"),
        pytest.param("4", "(2 in place of 4)", marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_one_pair_cannot_be_halved(tmp_path: Path, model: str, pairs: str, smaller: str) -> None:
    """The model is given two rows for a pair; the Trainer's batch is what may be made smaller."""
    arguments = ("--model", model, "--output_dir", "out", "--per_device_train_batch_size", pairs)
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "pairs.py"), *arguments)
    assert rank_of(said)["peak_allocated_bytes"]
    halves = [change["what"] for change in said["changes"] if "half the" in change["what"]]
    assert len(halves) == 1 and smaller in halves[0]


@pytest.mark.parametrize("calls", [False, True])
def test_kernels_are_stood_in_for_where_they_are_called(tmp_path: Path, calls: bool) -> None:
    """Transformers and PEFT import bitsandbytes wherever it is installed."""
    package = tmp_path / "bitsandbytes"
    package.mkdir()
    (package / "__init__.py").write_text("from . import cextension\n")
    (package / "cextension.py").write_text("lib = None\n\ndef ask():\n    return lib.has_avx512bf16_cpu()\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\nfrom bitsandbytes import cextension\n"
        "cextension.ask()\nstep = torch.optim.SGD(model.parameters())\nfor _ in range(4):\n"
        "    model(torch.ones(2, 8, device='cuda')).sum().backward()\n    step.step()\n"
        + "    cextension.lib.cquantize_blockwise(0)\n"
        * calls
    )
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", str(script))
    assert rank_of(said)
    assert ("bitsandbytes' kernels" in said["stubbed"]) is calls
