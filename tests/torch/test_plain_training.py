"""Training without an engine: the replay over traces that are made here, against rehearsals of the Trainer
(``tests/support/plain_training.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.packages import needs
from tests.support.plain_training import BY_TRL, CASES, Case
from tests.support.rehearsed_case import GPU, PHASES
from zerokit.catalog import gpus, profiles
from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.strategy import Strategy
from zerokit.memory.estimate import covers, estimate_traced, not_replayed

needs("torch")
needs("transformers")
needs("peft")

WITHIN = 2e-4
"""Most are within a tenth of it; constants of weights in 4 bits are rounded tensor by tensor in a GPU."""
DEFAULT = (
    Case("llama-3.2-1b", 2, "--tokens 1024 --lora 16"),
    Case("llama-3.2-1b", 1, "--tokens 1024 --dtype float32"),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --bits 4 --optim paged_adamw_8bit"),
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in DEFAULT else [pytest.mark.slow]) for case in CASES],
    ids=str,
)  # fmt: skip
def test_peaks_are_those_of_the_rehearsal(case: Case) -> None:
    from zerokit.trace.on_demand import complete

    profile = profiles.load(case.model)
    assert profile is not None
    if not profile.has(case.variant):
        profile = complete(
            profile, profile.hf_config, case.job, case.strategy, name=case.model, head=profile.head
        )
    assert profile is not None and covers(profile, case.job, case.strategy)
    found = estimate_traced(profile, case.job, case.strategy, case.cluster).ranks[0].phases
    assert [found[phase] for phase in PHASES] == pytest.approx(CASES[case], rel=WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_TRL, ids=str)
def test_a_loss_in_chunks_takes_what_trl_takes(case: tuple[int, str, int, str]) -> None:
    from zerokit.trace.on_demand import complete

    ranks, method, weight_bytes, checkpointing = case
    lora = None if method == "full" else Lora(dropout=0.05)
    job = Job(seq_len=1024, method=method, lora=lora, loss="chunked", trainer="trl")
    settings = DdpSettings(
        precision="bf16", micro_batch=2, weight_bytes=weight_bytes, autocast=True, by_trainer=True,
        adapter_bytes=2 if method == "qlora" else 4,
    )  # fmt: skip
    strategy = Strategy(settings=settings, data_parallel=ranks, checkpointing=checkpointing)
    profile = profiles.load("llama-3.2-1b")
    assert profile is not None and not not_replayed(job, strategy)
    profile = complete(profile, profile.hf_config, job, strategy, name=profile.name, head=profile.head)
    assert profile is not None
    cluster = Cluster(gpu=gpus.load(GPU), gpus=ranks)
    found = estimate_traced(profile, job, strategy, cluster).ranks[0].phases
    assert [found[phase] for phase in PHASES] == pytest.approx(BY_TRL[case], rel=5e-4)


def test_a_trainers_file_without_an_engine_is_estimated_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = {**TINY_JOB, "model": written_config(tmp_path)}
    lines = [f"base_model: {job['model']}", "adapter: lora", "lora_r: 4", "lora_dropout: 0.05"]
    lines += ["lora_target_linear: true", "sequence_len: 128", "micro_batch_size: 2", "sample_packing: true"]
    Path("job.yml").write_text("\n".join(lines), encoding="utf-8")
    of_file = zerokit.estimate(file="job.yml", gpus=1, gpu="l40s")
    typed = zerokit.estimate(**job, engine="ddp", gpus=1, gpu="l40s")
    assert (of_file.planned.engine, of_file.basis) == ("ddp", "traced")
    assert of_file.peak_allocated_bytes == typed.peak_allocated_bytes


TINY_JOB = {"method": "lora", "lora_rank": 4, "lora_dropout": 0.05, "seq_len": 128, "micro_batch": 2,
            "trainer": "axolotl"}  # fmt: skip


def written_config(folder: Path) -> str:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder / "config.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "peak_bytes"),
    [
        ({"trainer": "transformers", "method": "lora", "eval_batch": 8}, 27_948_417_024),
        ({"trainer": "transformers", "load_dtype": "bf16", "eval_batch": 16}, 61_574_126_592),
        ({"trainer": "trl", "method": "lora", "eval_batch": 16}, 17_222_028_800),
    ],
)
def test_an_evaluation_takes_what_an_h200_measured(options: dict[str, Any], peak_bytes: int) -> None:
    """Of whole runs of a Trainer and of TRL's sft.py, Llama-3.2-3B, 2,048 tokens (torch 2.11, Transformers
    5.17); their rehearsals are equal to the byte."""
    adapters = {"lora_dropout": 0.05} if options.get("method") else {}
    found = zerokit.estimate(
        model="llama-3.2-3b", engine="ddp", gpus=1, gpu="h200", seq_len=2048, micro_batch=1,
        gradient_accumulation=1, checkpointing="full", **options, **adapters,
    )  # fmt: skip
    (rank,) = found.to_dict()["per_rank"]
    assert rank["peak_phase"] == "eval"
    assert rank["peak_allocated_bytes"] == pytest.approx(peak_bytes, rel=WITHIN)
