"""An accelerate YAML as ``estimate --accelerate`` has it, and as Accelerate itself runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import zerokit
from tests.support.fsdp2_files import launched
from tests.support.fsdp2_plans import write_fsdp2_plan
from tests.support.packages import needs
from tests.support.rehearsals import SCRIPTS, rehearse
from tests.support.rehearsed_case import ALLOCATOR, GPU, PHASES
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.emit.fsdp2 import accelerate_yaml
from zerokit.errors import InputError
from zerokit.launcher.fsdp2_plan import accelerate_file, variables
from zerokit.launcher.given_plan import read_plan_file
from zerokit.rehearsal.accelerate_file import read_accelerate

needs("accelerate")
needs("transformers")
# layers with as many heads of keys as of queries: what a cache keeps of them is twice a layer's input
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
}
_CACHED = 6 * 2 * 512 * 1024 * 2  # keys and values of all layers in bf16


@pytest.mark.slow
@pytest.mark.parametrize("loading", ["false", "true"])
@pytest.mark.parametrize("cached", [0, _CACHED])
def test_the_estimate_is_what_accelerate_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loading: str, cached: int
) -> None:
    """``fsdp_cpu_ram_efficient_loading`` moves init; a cache that nobody turned off comes on top."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    strategy = Strategy(settings=Fsdp2Settings(precision="bf16"), data_parallel=4, checkpointing="full")
    text = accelerate_yaml(strategy, 1)
    assert text.count("fsdp_cpu_ram_efficient_loading: false") == 1
    path = tmp_path / "accelerate.yaml"
    path.write_text(text.replace("efficient_loading: false", f"efficient_loading: {loading}"))
    estimate = zerokit.estimate(
        accelerate=path, model=tmp_path / "model", gpu=GPU, seq_len=512, micro_batch=1
    )
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    script = str(SCRIPTS / "fsdp2_by_yaml.py")
    words = ("--accelerate", str(path), "--gpu", GPU, script, "model", *(["--cache"] if cached else []))
    code, rehearsed, err = rehearse(tmp_path, *words)
    assert code == 0, err
    predicted, seen = (
        max(estimate.per_rank, key=lambda rank: rank.peak_allocated_bytes).phases,
        rehearsed["ranks"][0]["phases"],
    )
    for phase in PHASES:
        expected = predicted[phase] + (cached if phase in ("forward", "backward") else 0)
        assert seen[phase] == pytest.approx(expected, rel=5e-4)
    assert "counted with model.config.use_cache = False" in "\n".join(estimate.assumptions)


@pytest.mark.parametrize(("replicas", "shared"), [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_a_plan_tells_ranks_what_accelerate_would(tmp_path: Path, replicas: int, shared: int) -> None:
    written = write_fsdp2_plan(tmp_path, ranks=8, replicas=replicas, shared=shared)
    plan = read_plan_file(str(written), engines=("fsdp2",))
    told = variables(accelerate_file(plan, 8)[0])
    assert told.items() <= launched(tmp_path / "accelerate.yaml").items()
    assert {"ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_RESHARD_AFTER_FORWARD"} <= told.keys()


FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
FILES = (
    FSDP + "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n",
    # accelerate's examples/config_yaml_templates/fsdp.yaml and torch_native_parallelism/configs/cp.yaml
    FSDP + "fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_sync_module_states: true, "
    "fsdp_cpu_ram_efficient_loading: true, fsdp_backward_prefetch: BACKWARD_PRE}\n",
    FSDP + "fsdp_config: {fsdp_version: 2, fsdp_cpu_ram_efficient_loading: false}\n"
    "parallelism_config: {parallelism_config_cp_size: 8, parallelism_config_dp_shard_size: 1}\n",
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\n"
    "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, zero3_init_flag: true}\n",
    "distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 2\n",
)


@pytest.mark.parametrize("text", FILES)
def test_a_yaml_tells_ranks_what_accelerate_would(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"compute_environment: LOCAL_MACHINE\nnum_machines: 1\n{text}")
    told, ranks = read_accelerate(str(path))
    assert told.items() <= launched(path).items()
    assert ranks == int(text.partition("num_processes: ")[2][0])
    decided = {name for name in launched(path) if name.startswith(("FSDP_", "ACCELERATE_DEEPSPEED_"))}
    assert decided <= told.keys()


def test_tensor_parallel_sizes_divide_no_model(tmp_path: Path) -> None:
    """What ``accelerate-parallelism-tensor-unused`` says: whole layers, or an import that fails."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    script, seen = str(SCRIPTS / "fsdp2_by_yaml.py"), []
    for ranks, tensor in ((2, 1), (4, 2)):
        path = tmp_path / f"{ranks}.yaml"
        path.write_text(
            FILES[0].replace("8", str(ranks)) + "parallelism_config: {parallelism_config_dp_shard_size: 2, "
            f"parallelism_config_tp_size: {tensor}}}\n"
        )
        code, rehearsed, err = rehearse(tmp_path, "--accelerate", str(path), "--gpu", GPU, script, "model")
        assert code == 0, err
        seen.append(rehearsed["ranks"][0]["phases"])
    assert seen[1] == seen[0]
    words = ("--accelerate", str(path), "--gpu", GPU, script, "model", "--in-parts")
    _, rehearsed, _ = rehearse(tmp_path, *words)
    assert "cannot import name 'ReplicateParallel'" in json.dumps(rehearsed)


def test_a_script_is_planned_and_rehearsed_under_fsdp2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is for the script's own model and batch; a rehearsal of its folder finds what it says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    script = SCRIPTS / "fsdp2_by_yaml.py"
    planned = zerokit.plan(
        script=script, arguments=["model"], gpus=4, gpu=GPU, engine="fsdp2", checkpointing="full",
        micro_batch=1, gradient_accumulation=1, out="plan",
    )  # fmt: skip
    chosen, document = planned.chosen, planned.to_dict()["chosen"]
    assert (chosen.engine, chosen.estimate.basis, document["seq_len"]) == ("fsdp2", "rehearsed", 512)
    done = zerokit.rehearse(script=script, arguments=["model"], plan="plan")
    (rank,) = done.ranks
    assert rank.phases == chosen.estimate.per_rank[0].phases
    assert done.engine is not None and done.engine["engine"] == "fsdp2"
    assert (done.engine["gradient_checkpointing"], done.engine["sharding"]) == (True, 4)
    assert done.unlike_plan == ()


def test_a_few_layers_tell_of_all_under_fsdp2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay says what the others take; a rehearsal of all finds the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**MODEL, "num_hidden_layers": 16}))
    write_fsdp2_plan(tmp_path / "plan", ranks=4)
    script = {"script": SCRIPTS / "fsdp2_by_yaml.py", "arguments": ["model"], "plan": "plan"}
    few, every = zerokit.rehearse(**script), zerokit.rehearse(**script, whole=True)
    assert few.depth == {"layers": [3, 6], "of": 16} and every.depth == "whole"
    assert few.ranks[0].phases == pytest.approx(every.ranks[0].phases, rel=5e-4)
    assert few.min_vram_bytes == pytest.approx(every.min_vram_bytes, rel=0.02)
    assert {change.what for change in few.changes} == {change.what for change in every.changes}
    assert few.engine is not None and few.engine["parameters"] == every.engine["parameters"]


def test_a_plugin_of_the_scripts_own_is_not_planned_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's code goes before the plan's file: Accelerate looks at no variable then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    arguments = [str(tmp_path / "config.json"), "--accelerate", "--offload"]
    with pytest.raises(InputError, match=r"no plan for FSDP2 reaches the script: .*offload"):
        zerokit.plan(
            script=SCRIPTS / "fully_sharded.py", arguments=arguments, gpus=2, gpu=GPU, engine="fsdp2",
            checkpointing="none",
        )  # fmt: skip
