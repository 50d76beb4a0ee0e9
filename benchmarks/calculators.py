"""Writes docs/other-calculators.md: what other tools' formulas say of the measured runs, beside zerokit.

    python -m benchmarks.calculators                        # writes the page and its CSV
    PYTHONPATH=FOLDER python -m benchmarks.calculators      # asks llm-analysis again, installed in FOLDER

Each formula is that of the source named beside it, with the inputs that make it most exact, and is asked
only of runs that its inputs can say. llm-analysis is run itself (0.2.2; `pip install --no-deps --target
FOLDER llm-analysis fire termcolor`), and accelerate over models as `pip install --target FOLDER
transformers==5.17.0` builds them; without these their columns of the CSV are kept.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import accuracy
from benchmarks.accuracy_runs import SOURCES, rows_of
from benchmarks.script_runs import ROWS
from benchmarks.trainer_files.compared import rows

ROOT = Path(__file__).resolve().parent.parent
PAGE, ANSWERS = ROOT / "docs" / "other-calculators.md", ROOT / "docs" / "other-calculators.csv"
GIB = 1 << 30
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What calculators ask of a model and its run. ``gated``: three linear layers in an MLP, not two."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool
    length: int
    batch: int


def shape(row: Row) -> Shape | None:
    """That of a dense text decoder; None: of anything else no calculator here claims to tell."""
    config = row["hf_config"]
    if row["head"] != "causal" or any("expert" in key for key in config):
        return None
    try:
        hidden = config.get("n_embd") or config["hidden_size"]
        heads = config.get("n_head") or config["num_attention_heads"]
        two = config["model_type"] in (
            "gpt2", "gpt_neox", "opt", "falcon", "phi", "gptj", "bloom", "starcoder2"
        )  # fmt: skip
        return Shape(
            layers=config.get("n_layer") or config["num_hidden_layers"], hidden=hidden, heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            ffn=config.get("intermediate_size") or 4 * hidden, vocab=config["vocab_size"], gated=not two,
            length=row["seq_len"], batch=row["micro_batch"],
        )  # fmt: skip
    except KeyError:
        return None


def stage(row: Row) -> int:
    """Of ZeRO."""
    return int(row["deepspeed_config"].get("zero_optimization", {}).get("stage", 0))


def _offloads(row: Row) -> bool:
    zero = row["deepspeed_config"].get("zero_optimization", {})
    kinds = ("offload_optimizer", "offload_param")
    return any((zero.get(kind) or {}).get("device", "none") != "none" for kind in kinds)


def _in_16_bits(row: Row) -> bool:
    return any(row["deepspeed_config"].get(kind, {}).get("enabled") for kind in ("bf16", "fp16"))


def _is_full(row: Row) -> bool:
    return bool(row["trainable_params"] == row["params"])


def deepspeed(row: Row) -> float | None:
    """DeepSpeed's sums for stages 2 and 3 (stage_1_and_2.py:4017, stage3.py:4016); the largest layer is the
    embedding, or the experts that a layer holds as one."""
    zero, config = row["deepspeed_config"].get("zero_optimization", {}), row["hf_config"]
    if stage(row) < 2 or not _is_full(row) or row.get("quantized"):
        return None
    optimizer, weights = ((zero.get(f"offload_{kind}") or {}).get("device", "none") == "cpu"
                          for kind in ("optimizer", "param"))  # fmt: skip
    share = row["params"] / row["world_size"]
    if stage(row) == 2:
        return float(2 * row["params"] + (0 if optimizer else 18 * share))
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    ffn = config.get("moe_intermediate_size") or config.get("intermediate_size") or 0
    hidden = config.get("n_embd") or config["hidden_size"]
    layer = 4 * hidden * max(config["vocab_size"], 3 * ffn * experts)
    return float(layer + (0 if optimizer and weights else (2 if optimizer else 18) * share))


def accelerate(row: Row) -> float | None:
    """accelerate's own answer for Adam. Raises ImportError: not with the Transformers of the runs."""
    if row["world_size"] > 1 or not _is_full(row) or row.get("quantized"):
        return None
    body = _body_bytes(json.dumps(row["hf_config"], sort_keys=True))
    from accelerate.commands.estimate import estimate_training_usage

    precision = "bfloat16" if _in_16_bits(row) else "float32"  # float16 counts alike
    return float(max(estimate_training_usage(body, precision).values()))


@functools.cache
def _body_bytes(config: str) -> int:
    """Of ``AutoModel`` in fp32, as accelerate counts: with its buffers, without a head."""
    if version("transformers") != "5.17.0":
        raise ImportError("the runs were made with transformers 5.17.0")
    import torch
    import transformers
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes

    values = json.loads(config)
    read = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with init_empty_weights():
        return int(calculate_maximum_sizes(transformers.AutoModel.from_config(read, dtype=torch.float32))[0])


def transformer_math(row: Row) -> float | None:
    """EleutherAI's calc_transformer_mem.py: sums over ZeRO's stages, and activations per layer; its
    --bytes-per-grad-ele is 2, as DeepSpeed's gradients are, not the 4 that it takes unasked."""
    s, gpus = shape(row), row["world_size"]
    if s is None or not _in_16_bits(row) or not _is_full(row) or _offloads(row):
        return None
    params = (
        2 * s.vocab * s.hidden + s.hidden * s.length + 8 * s.hidden * s.layers + 2 * s.hidden
        + 2 * (1 + s.kv_heads / s.heads) * s.layers * s.hidden**2
        + (3 if s.gated else 2) * s.layers * s.hidden * s.ffn
    )  # fmt: skip
    weights, gradients, states = 2 * params / row["tensor_parallel"], 2 * params, 12 * params
    at = stage(row)
    shared = (weights / (gpus if at == 3 else 1) + gradients / (gpus if at >= 2 else 1)
              + states / (gpus if at >= 1 else 1))  # fmt: skip
    buffers = 2 * (5e8 * (at >= 1) + 1e9 * (at == 3)) if gpus > 1 else 0
    per_value = 34 if row["activation_checkpointing"] else 34 + 5 * s.heads * s.length / s.hidden
    return float(shared + buffers + s.length * s.batch * s.hidden * s.layers * per_value)


def vram_calculator(row: Row) -> float | None:
    """vram-calculator's: bytes a parameter and logits twice; its 1000 MiB for CUDA are left out."""
    if row["world_size"] > 1 or not _is_full(row) or shape(row) is None:
        return None
    per_parameter = (6 if _in_16_bits(row) else 4) + 4 + 8
    logits = 2 * 4 * row["micro_batch"] * row["seq_len"] * row["hf_config"]["vocab_size"]
    return float(per_parameter * row["params"] + logits)


def gpu_poor(row: Row) -> float | None:
    """gpu_poor's: its own count of parameters, activations per layer; its 650 MB for CUDA are left out."""
    s = shape(row)
    if s is None or row["world_size"] > 1 or not _in_16_bits(row):
        return None
    params = 2 * s.vocab * s.hidden + s.layers * (4 * s.hidden**2 + 3 * s.ffn * s.hidden)
    tokens, scores, common = s.length, s.length**2 * s.heads, s.length * s.hidden
    attention = 2 * 8 * common + (2 + 4 + 2) * scores
    layer = attention + 2 * 2 * common + 2 * 6 * s.ffn * tokens + 8 * tokens + 2 * 6 * common
    activations = layer * s.layers * s.batch * (0.15 if row["activation_checkpointing"] else 1)
    weights = 2.0 * params
    if row.get("quantized"):
        beyond = max(1.0, tokens / 50) ** 0.5
        extra = 0.75 * (15 * s.hidden + 6 * s.ffn) * s.layers * 50 * beyond
        weights = weights / 4 - params * 2 / 64 + 0.06 * weights
        return weights + s.layers * 8 * s.hidden * 0.5 * 4 * 3 + extra * s.batch + activations
    trained = 3 * 2 * params if _is_full(row) else s.layers * 8 * s.hidden * 2 * 4 * 3 * 2
    return float(weights + trained + activations)


def system_requirements(row: Row) -> float | None:
    """LLM-System-Requirements': weights, a KV cache, one layer's activations, and what is trained."""
    s = shape(row)
    if s is None or row["world_size"] > 1 or row.get("quantized"):
        return None
    per_weight = 2 if _in_16_bits(row) else 4
    cache = 2 * s.batch * s.length * s.layers * s.hidden * per_weight
    activations = s.batch * s.length * s.hidden * (34 + 5 * s.length * s.heads / s.hidden) * 4
    return float(per_weight * row["params"] + cache + activations + (8 + 4) * row["trainable_params"])


def llm_analysis(row: Row) -> float | None:
    """llm-analysis itself. Raises ImportError: it is not installed."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import (
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )

    s, gpus = shape(row), row["world_size"]
    if s is None or not _in_16_bits(row) or not _is_full(row) or _offloads(row):
        return None
    split = row["tensor_parallel"]
    if s.heads % split or gpus % split:
        return None
    model = ModelConfig(
        name="run", num_layers=s.layers, n_head=s.heads, hidden_dim=s.hidden, vocab_size=s.vocab,
        max_seq_len=max(s.length, 1 << 17), num_key_value_heads=s.kv_heads, ffn_embed_dim=s.ffn,
        expansion_ratio=s.ffn / s.hidden, model_type=row["hf_config"]["model_type"],
    )  # fmt: skip
    gpu = replace(get_gpu_config_by_name("a100-sxm-80gb"), mem_per_GPU_in_GB=1000)  # it answers what fits
    analysis = LLMAnalysis(
        model, gpu, get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=split, pp_size=1, dp_size=gpus // split, sp_size=1),
    )  # fmt: skip
    zero = (DSZeRO.NONE, DSZeRO.STAGE_1, DSZeRO.STAGE_2, DSZeRO.STAGE_3)[stage(row)]
    kept = ActivationRecomputation.FULL if row["activation_checkpointing"] else ActivationRecomputation.NONE
    told = analysis.training(
        batch_size_per_gpu=s.batch, seq_len=s.length, gradient_accumulation_steps=1, ds_zero=zero,
        activation_recomputation=kept, mlp_gated_linear_units=s.gated,
    )  # fmt: skip
    return float(told["(weight+op_state+grad+act)_memory_per_gpu"])


def hf_mem(row: Row) -> float | None:
    """hf-mem's: the weights as they are stored, on one GPU; it claims inference alone."""
    quantized = row.get("quantized") or row["world_size"] > 1
    return None if quantized else float((2 if _in_16_bits(row) else 4) * row["params"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculator:
    """One of the others. ``says``: its answer in bytes; None: a run that it has no inputs for. ``formula``:
    what it adds up. ``leaves_out``: what it does not claim to model, as far as its source tells."""

    name: str
    source: str
    formula: str
    leaves_out: str
    says: Callable[[Row], float | None]


CALCULATORS = (
    Calculator(
        name="DeepSpeed's estimators", says=deepspeed,
        source="DeepSpeed 0.19.8, `estimate_zero2_model_states_mem_needs`, `estimate_zero3_…`",
        formula="weights, gradients and Adam's states, divided by stage",
        leaves_out="activations, stages 0 and 1, adapters",
    ),
    Calculator(
        name="`accelerate estimate-memory`", says=accelerate, source="accelerate 1.15.0",
        formula="weights, gradients and Adam's states of the body, by precision",
        leaves_out="activations, the head, more than one GPU, adapters",
    ),
    Calculator(
        name="hf-mem", says=hf_mem,
        source="[alvarobartt/hf-mem](https://github.com/alvarobartt/hf-mem), README",
        formula="the weights as they are stored (and a KV cache, which training has none of)",
        leaves_out="training: it is a lower bound here",
    ),
    Calculator(
        name="Transformer Math 101", says=transformer_math,
        source="[EleutherAI/cookbook](https://github.com/EleutherAI/cookbook), "
        "`calc/calc_transformer_mem.py`, commit 069ae2e",
        formula="`2 + 2 + 12` bytes a parameter, divided by stage; buckets; `s·b·h·L·34`, and `5·a·s/h` more "
        "without checkpoints",
        leaves_out="adapters, offload, the loss, fused attention",
    ),
    Calculator(
        name="llm-analysis", says=llm_analysis,
        source="[cli99/llm-analysis](https://github.com/cli99/llm-analysis) 0.2.2, run itself",
        formula="weights, gradients and states by stage; activations of attention, MLP and norms by layer",
        leaves_out="adapters, offload, buffers",
    ),
    Calculator(
        name="vram-calculator", says=vram_calculator,
        source="[furiousteabag/vram-calculator](https://github.com/furiousteabag/vram-calculator), "
        "`app/_lib/index.ts`, commit 63761d2",
        formula="`6 + 4 + 8` bytes a parameter in mixed precision, `4 + 4 + 8` in fp32; logits twice in fp32",
        leaves_out="activations, adapters, more than one GPU",
    ),
    Calculator(
        name="gpu_poor", says=gpu_poor,
        source="[RahulSChand/gpu_poor](https://github.com/RahulSChand/gpu_poor), `src/App.js`, "
        "commit 05d18ab",
        formula="`2·4` bytes a parameter of its own count, or adapters of rank 8; activations by layer, "
        "`0.15` of them with checkpoints",
        leaves_out="the loss, more than one GPU, fused attention",
    ),
    Calculator(
        name="LLM-System-Requirements", says=system_requirements,
        source="[manuelescobar-dev/LLM-System-Requirements]"
        "(https://github.com/manuelescobar-dev/LLM-System-Requirements), `llm_tools/utils/memory_utils.py`, "
        "commit 8a44fc4",
        formula="weights, a KV cache, one layer's `s·b·h·(34 + 5·a·s/h)` in fp32, `8 + 4` bytes a trained "
        "parameter",
        leaves_out="other layers' activations, the loss, checkpoints, 4-bit weights, more than one GPU",
    ),
)  # fmt: skip


def answers() -> list[dict[str, str]]:
    """A row for each run: what was measured, zerokit's errors as docs/accuracy.md has them or
    ``scripts.jsonl`` tells them, and each answer."""
    known = {row["run"]: row for row in _read(ROOT / "docs" / "accuracy-runs.csv")}
    before = {row["run"]: row for row in _read(ANSWERS)} if ANSWERS.exists() else {}
    found = []
    for row in (row for source in SOURCES for row in rows_of(source)):
        run = known[row["id"]]
        found.append({
            "run": row["id"], "status": run["status"], "measured": _gib(max(row["peak_allocated_bytes"])),
            "zerokit": run["error"], "rehearsed": "-", **_answers(row, before.get(row["id"], {})),
        })  # fmt: skip
    for script in rows(ROWS):
        row = {"head": "causal", "tensor_parallel": 1, "world_size": script["gpus"],
               "hf_config": script["config"], **script.get("asked", {})}  # fmt: skip
        told = _answers(row, before.get(script["name"], {})) if "asked" in script else _NOTHING
        found.append({
            "run": script["name"], "status": "script", "measured": _gib(script["measured"]),
            "zerokit": _error(script, "zerokit"), "rehearsed": _error(script, "rehearsed"), **told,
        })  # fmt: skip
    return found


def _error(script: Mapping[str, Any], key: str) -> str:
    said = script.get(key)
    return "-" if said is None else f"{said / script['measured'] - 1:+.2%}"


_NOTHING = {calculator.name: "-" for calculator in CALCULATORS}


def _answers(row: Row, before: Mapping[str, str]) -> dict[str, str]:
    return {calculator.name: _answer(calculator, row, before) for calculator in CALCULATORS}


def _answer(calculator: Calculator, row: Row, before: Mapping[str, str]) -> str:
    try:
        return _gib(calculator.says(row))
    except ImportError:
        return before.get(calculator.name, "-")


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


_PAGE = """# Beside other calculators

Free calculators answer at once, from a sum over parameters and a few terms for activations. This page asks
eight of them about the runs that were measured for [every run beside its prediction](accuracy.md), bare loops
under DeepSpeed on H200, and about scripts of trainers: peaks of `torch.cuda.max_memory_allocated`.
`python -m benchmarks.calculators` writes it.

Each is asked only of runs that its inputs can say (dense decoders; one GPU, all weights, where it knows no
more), with the inputs that serve it best, and without its allowance for CUDA's context, which is no part of
the peak. The error is a share of what was measured. zerokit stands beside it over the same runs.

## All bare runs

{all_runs}

## Bare runs that zerokit had not seen

Some runs were known while zerokit's model was written, or corrected it since; these were not.

{blind}

## Scripts of trainers

{number} runs of TRL's `sft.py`, LLaMA-Factory and axolotl, unmodified, on one to four H100s and H200s, each
with all its rows as long as they may be. What a run trains, its length, batch, precision and engine are what
`zerokit estimate FILE` reads in the trainer's own arguments, and the calculators are asked the same.

{scripts}

zerokit's two answers, to all of these that it has one for: the estimate reads the file alone and was asked
after the runs ({refused} it refuses); what it does not count, its answer names (DoRA, Liger's layers, the
fp32 norms of axolotl beside `sdpa`). A rehearsal runs the script itself on a GPU that is not there, and was
made before the run.

{own}

Ask zerokit of one of the bare runs, `llama3.2-1b.w1.z2.b2.s2048.ck`:

```sh
zerokit estimate --model llama-3.2-1b --gpus 1 --gpu h200 --zero 2 --micro-batch 2 --seq-len 2048 \
  --checkpointing full
```

## The formulas

| | source | what it adds up | what it does not claim |
| --- | --- | --- | --- |
{formulas}

`s` is the length, `b` the batch size per GPU, `h` the hidden size, `L` the layers, `a` the attention heads.
What a calculator leaves out is no mistake in its sum: its error is the size of that. Most count the scores of
attention, which fused kernels do not keep; long sequences make their worst cases. Every answer is in
[other-calculators.csv](other-calculators.csv), in GiB.
"""


def table(found: Sequence[Mapping[str, str]]) -> list[str]:
    """Each calculator's errors over the runs that it tells of, and zerokit's over the same."""
    lines = [
        f"| {calculator.name} | {' | '.join(_sizes(errors))} | {' | '.join(_sizes(own)[1:4:2])} |"
        for calculator in CALCULATORS
        if (told := [row for row in found if row[calculator.name] != "-"])
        and (errors := [float(row[calculator.name]) / float(row["measured"]) - 1 for row in told])
        and (own := _own(told, "zerokit"))
    ]
    titles = ("", *_TITLES, "zerokit: median", "worst")
    return [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles), *lines]


_TITLES = ("runs", "median error", "95th percentile", "worst", "too low")


def _own(found: Sequence[Mapping[str, str]], key: str) -> list[float]:
    return [float(row[key].rstrip("%")) / 100 for row in found if row[key] != "-"]


def _sizes(errors: Sequence[float]) -> list[str]:
    """How many there are, and their cells; small ones, which are zerokit's, with two decimals."""
    sizes = sorted(map(abs, errors))
    figures = (statistics.median(sizes), accuracy.quantile(sizes, 0.95), sizes[-1])
    form = ".2%" if figures[0] < 0.01 else ".0%"
    return [str(len(errors)), *(f"{figure:{form}}" for figure in figures),
            f"{sum(error < 0 for error in errors) / len(errors):.0%}"]  # fmt: skip


def own_table(found: Sequence[Mapping[str, str]]) -> list[str]:
    """zerokit's two answers over the scripts that each has one for."""
    named = {row["name"] for row in rows(ROWS) if row.get("not_modelled")}
    whole = [row for row in found if row["run"] not in named]
    kinds = {
        "`zerokit estimate FILE`": _own(found, "zerokit"),
        "of these, where it names nothing as not modelled": _own(whole, "zerokit"),
        "`zerokit rehearse`, before the run": _own(found, "rehearsed"),
    }
    lines = [f"| {name} | {' | '.join(_sizes(errors))} |" for name, errors in kinds.items()]
    return [f"|  | {' | '.join(_TITLES)} |", "|" + " --- |" * (len(_TITLES) + 1), *lines]


def page(found: Sequence[Mapping[str, str]]) -> str:
    """The whole page."""
    bare, blind, scripts = (
        [row for row in found if one(row["status"])]
        for one in (lambda status: status != "script", "blind".__eq__, "script".__eq__)
    )
    sources = [
        f"| {each.name} | {each.source} | {each.formula} | {each.leaves_out} |" for each in CALCULATORS
    ]
    return _PAGE.format(
        all_runs="\n".join(table(bare)),
        blind="\n".join(table(blind)),
        scripts="\n".join(table(scripts)),
        own="\n".join(own_table(scripts)),
        formulas="\n".join(sources),
        number=len(scripts),
        refused=sum(row["zerokit"] == "-" for row in scripts),
    )


def main() -> None:
    """Write the page and its CSV."""
    found = answers()
    file = io.StringIO()
    lines = csv.DictWriter(file, list(found[0]), lineterminator="\n")
    lines.writeheader()
    lines.writerows(found)
    ANSWERS.write_text(file.getvalue(), encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
