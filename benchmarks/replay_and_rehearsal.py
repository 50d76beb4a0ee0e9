"""Two independent models of memory beside each other: the replay of ``zerokit estimate`` and a rehearsal.

    python -m benchmarks.replay_and_rehearsal                  # all cases, some minutes
    python -m benchmarks.replay_and_rehearsal llama.z3 t5.z0   # those whose names have one of these parts
    python -m benchmarks.replay_and_rehearsal NAME… --jsonl FILE  # and a row of bytes for each

Each case is a family of Transformers and a setting of ``docs/accuracy.md``, at a small size: the loop of
``h200-deepspeed.jsonl`` (``benchmarks/rehearsal/raw_loop.py``), rehearsed as rank 0, and the estimate of the
same DeepSpeed configuration over a trace of the same model. They share no code but the conditions of
attention kernels. A phase that differs by more than 0.1 % is an error of one of them.

Allocators have expandable segments, as plans set them: without, a block keeps a remainder of up to 1 MiB,
which the replay does not count and models of this size show (+0.1 to 0.3 %).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.accuracy import error, judge, read_case
from benchmarks.common import append, options_of
from benchmarks.rehearsal.__main__ import allocator_of_run
from zerokit.catalog import gpus
from zerokit.domain.images import images_of
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.script.entry_points import Target
from zerokit.trace.on_demand import complete
from zerokit.trace.shape import complete_config

LIMIT = 0.001
RAW_LOOP = Path(__file__).resolve().parent / "rehearsal" / "raw_loop.py"

_SIZES = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 32000}
_LLAMA = {**_SIZES, "intermediate_size": 2816, "num_key_value_heads": 4, "max_position_embeddings": 8192}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_LLAMA},
    "qwen2": {"model_type": "qwen2", **_LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_LLAMA, "head_dim": 64},
    "mistral": {"model_type": "mistral", **_LLAMA, "sliding_window": None},
    "phi3": {"model_type": "phi3", **_LLAMA, "pad_token_id": 0},
    "gpt2": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 8, "n_head": 16, "vocab_size": 50257},
    "gpt_neox": {"model_type": "gpt_neox", **_SIZES, "intermediate_size": 4096},
    "opt": {"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 8,
            "num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 1024},
    "gemma": {"model_type": "gemma", **_LLAMA, "head_dim": 64},
    "falcon": {"model_type": "falcon", **_SIZES, "multi_query": True, "parallel_attn": True, "bias": False,
               "alibi": False, "new_decoder_architecture": False},
    "mixtral": {"model_type": "mixtral", **_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2,
                "intermediate_size": 1408},
    "bert": {"model_type": "bert", **_SIZES, "intermediate_size": 4096},
    "t5": {"model_type": "t5", "d_model": 1024, "d_ff": 2816, "d_kv": 64, "num_layers": 6,
           "num_heads": 16, "vocab_size": 32128, "decoder_start_token_id": 0, "pad_token_id": 0},
}  # fmt: skip
_EXPERTS = {**_LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 704, "head_dim": 64}
FAMILIES |= {
    "gemma3_text": {"model_type": "gemma3_text", **_LLAMA, "head_dim": 64, "sliding_window": 4096},
    "olmo3": {"model_type": "olmo3", **_LLAMA, "sliding_window": 4096},
    "glm4": {"model_type": "glm4", **_LLAMA, "head_dim": 64, "pad_token_id": 0},
    "smollm3": {"model_type": "smollm3", **_LLAMA, "pad_token_id": 0},
    "granite": {"model_type": "granite", **_LLAMA},
    "exaone4": {"model_type": "exaone4", **_LLAMA, "sliding_window": 4096},
    "ministral3": {"model_type": "ministral3", **_LLAMA, "head_dim": 64},
    "qwen3_moe": {"model_type": "qwen3_moe", **_EXPERTS, "num_experts": 4},
    "glm4_moe": {"model_type": "glm4_moe", **_EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "gpt_oss": {"model_type": "gpt_oss", **_EXPERTS, "num_local_experts": 4, "intermediate_size": 704,
                "sliding_window": 4096, "pad_token_id": 0},
}  # fmt: skip
NEWEST: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"model_type": "deepseek_v3", **_EXPERTS, "num_key_value_heads": 16, "q_lora_rank": 256,
                    "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
                    "head_dim": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                    "first_k_dense_replace": 1},
    "llama4_text": {"model_type": "llama4_text", **_LLAMA, "head_dim": 64, "intermediate_size": 704,
                    "intermediate_size_mlp": 1408, "num_local_experts": 4, "pad_token_id": 0},
    "minimax_m2": {"model_type": "minimax_m2", **_EXPERTS, "num_local_experts": 4, "intermediate_size": 704},
    "lfm2": {"model_type": "lfm2", **_LLAMA,
             "layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **_LLAMA, "head_dim": 64,
                     "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64,
                     "linear_value_head_dim": 64,
                     "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2},
    "gemma3n_text": {"model_type": "gemma3n_text", **_LLAMA, "head_dim": 64, "intermediate_size": [2816] * 8,
                     "activation_sparsity_pattern": [0.95] * 4 + [0.0] * 4, "num_kv_shared_layers": 3,
                     "layer_types": ["sliding_attention", "full_attention"] * 4,
                     "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 32000},
    "gemma4_text": {"model_type": "gemma4_text", **_LLAMA, "head_dim": 64, "global_head_dim": 128,
                    "num_kv_shared_layers": 3, "layer_types": ["sliding_attention", "full_attention"] * 4,
                    "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 32000},
    "granitemoehybrid": {"model_type": "granitemoehybrid", **_LLAMA, "num_local_experts": 4,
                         "num_experts_per_tok": 2, "intermediate_size": 704,
                         "shared_intermediate_size": 704, "mamba_n_heads": 32, "mamba_d_head": 64,
                         "mamba_n_groups": 1, "position_embedding_type": "nope",
                         "layer_types": ["mamba", "mamba", "attention", "mamba"] * 2},
    "nemotron_h": {"model_type": "nemotron_h", **_EXPERTS, "n_routed_experts": 4, "n_group": 1,
                   "topk_group": 1, "moe_shared_expert_intermediate_size": 704, "n_shared_experts": 1,
                   "mamba_num_heads": 32, "mamba_head_dim": 64, "n_groups": 4, "ssm_state_size": 64,
                   "layers_block_type": ["mamba", "moe", "attention", "moe"] * 2},
}  # fmt: skip
"""Compared under :data:`WHERE_NEWEST` alone."""
FAMILIES |= NEWEST
_VISION = {"intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "hidden_size": 512}
_QWEN_VISION = {
    "depth": 8,
    "num_heads": 8,
    "hidden_size": 512,
    "out_hidden_size": 1024,
    "intermediate_size": 1024,
}
_TOKEN = 32000  # of an image, beyond what the loop draws
_TEXT = {**_LLAMA, "vocab_size": 32064}
_IDS = {"image_token_id": _TOKEN, "video_token_id": 32001, "vision_start_token_id": 32002,
        "vision_end_token_id": 32003}  # fmt: skip


def _rope(*section: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(section)}}


FAMILIES |= {
    "qwen2_vl": {"model_type": "qwen2_vl", **_IDS,
                 "text_config": {"model_type": "qwen2_vl_text", **_rope(8, 12, 12), **_TEXT},
                 "vision_config": {"depth": 8, "embed_dim": 512, "hidden_size": 1024, "num_heads": 8}},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl", **_IDS,
                   "text_config": {"model_type": "qwen2_5_vl_text", **_rope(8, 12, 12), **_TEXT},
                   "vision_config": {**_QWEN_VISION, "fullatt_block_indexes": [3, 7]}},
    "qwen3_vl": {"model_type": "qwen3_vl", **_IDS,
                 "text_config": {"model_type": "qwen3_vl_text", "head_dim": 64, **_rope(12, 10, 10), **_TEXT},
                 "vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [1, 3, 5]}},
    "llava": {"model_type": "llava", "image_token_index": _TOKEN,
              "text_config": {"model_type": "llama", **_TEXT},
              "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14,
                                "projection_dim": 512, **_VISION}},
    "gemma3": {"model_type": "gemma3", "image_token_index": _TOKEN, "mm_tokens_per_image": 64,
               "text_config": {"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 256, **_TEXT},
               "vision_config": {"model_type": "siglip_vision_model", "image_size": 224, "patch_size": 14,
                                 **_VISION}},
    "idefics3": {"model_type": "idefics3", "image_token_id": _TOKEN,
                 "text_config": {"model_type": "llama", **_TEXT},
                 "vision_config": {"image_size": 112, "patch_size": 14, **_VISION}},
    "smolvlm": {"model_type": "smolvlm", "image_token_id": _TOKEN, "scale_factor": 4,
                "text_config": {"model_type": "llama", **_TEXT},
                "vision_config": {"image_size": 128, "patch_size": 16, **_VISION}},
}  # fmt: skip
SIZE = (300, 200)
"""Width and height of the images of these families, in pixels; each sequence has two."""


def _images(
    pixels: list[int], tokens: int, grid: list[int] | None = None, types: str = "", nested: bool = False
) -> dict[str, Any]:
    return {"count": 2, "token": _TOKEN, "pixels": pixels, "tokens": tokens, "grid": grid, "types": types,
            "nested": nested}  # fmt: skip


IMAGES: dict[str, dict[str, Any]] = {
    # 308 x 196 pixels are 22 x 14 patches of 14, four of which make a token; a patch has 3 * 2 * 14² values
    "qwen2_vl": _images([308, 1176], 77, [1, 14, 22], "mm_token_type_ids"),
    "qwen2_5_vl": _images([308, 1176], 77, [1, 14, 22], "mm_token_type_ids"),
    # at least 65,536 pixels: 320 x 224 are 20 x 14 patches of 16
    "qwen3_vl": _images([280, 1536], 70, [1, 14, 20], "mm_token_type_ids"),
    "llava": _images([1, 3, 336, 336], 576),
    "gemma3": _images([1, 3, 224, 224], 64, types="token_type_ids"),
    # 448 x 298 pixels, 4 x 3 tiles of 112 and the whole; 8 x 8 patches of a tile are 4 x 4 tokens
    "idefics3": _images([13, 3, 112, 112], 13 * 16, nested=True),
    # 512 x 342, 4 x 3 tiles of 128 and the whole; 8 x 8 patches are 2 x 2 tokens
    "smolvlm": _images([13, 3, 128, 128], 13 * 4, nested=True),
}
"""What their processors make of an image, worked out by hand: shapes, tokens, names of further inputs."""
TOWERS = {
    "qwen2_vl": ("model.visual.patch_embed", "model.visual.blocks"),
    "qwen2_5_vl": ("model.visual.patch_embed", "model.visual.blocks"),
    "qwen3_vl": ("model.visual.patch_embed", "model.visual.pos_embed", "model.visual.blocks"),
    "llava": ("model.vision_tower",),
    "gemma3": ("model.vision_tower",),
    "idefics3": ("model.vision_model",),
    "smolvlm": ("model.vision_model",),
}
HEADS = {"bert": "mlm", "t5": "seq2seq", **dict.fromkeys(IMAGES, "image-text")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Of DeepSpeed and the loop."""

    stage: int
    ranks: int = 2
    micro_batch: int = 2
    accumulation: int = 1
    checkpointing: bool = False
    precision: str = "bf16"
    offload: tuple[str, ...] = ()
    attention: str = "sdpa"
    mask: bool = False
    loaded: str = "model"
    lora: bool = False
    frozen_tower: bool = False
    loss: str = "standard"
    int8: bool = False
    offload_activations: bool = False
    reach: int | None = None  # parameters: the most that are live, and the distance within which they stay


SETTINGS = {
    "z0": Setting(stage=0, ranks=1),
    "z0.w2": Setting(stage=0),
    "z1": Setting(stage=1),
    "z1.g4": Setting(stage=1, accumulation=4),
    "z2": Setting(stage=2),
    "z2.b1": Setting(stage=2, micro_batch=1),
    "z2.b1.ck": Setting(stage=2, micro_batch=1, checkpointing=True),
    "z2.fp16": Setting(stage=2, precision="fp16"),
    "z2.fp32": Setting(stage=2, precision="fp32"),
    "z2.g4": Setting(stage=2, accumulation=4),
    "z2.ck": Setting(stage=2, checkpointing=True, micro_batch=8),
    "z2.offload": Setting(stage=2, offload=("optimizer",)),
    "z2.eager": Setting(stage=2, attention="eager"),
    "z2.mask": Setting(stage=2, mask=True),
    "z2.loaded-fp32": Setting(stage=2, loaded="fp32"),
    "z2.lora": Setting(stage=2, lora=True),
    "z2.lora-int8": Setting(stage=2, lora=True, int8=True),
    "z2.lora-int8.ck": Setting(stage=2, lora=True, int8=True, checkpointing=True, micro_batch=8),
    "z2.act": Setting(stage=2, offload_activations=True),
    "z2.act.ck": Setting(stage=2, offload_activations=True, checkpointing=True, micro_batch=8),
    "z3.act": Setting(stage=3, offload_activations=True),
    "z3": Setting(stage=3),
    "z3.w4": Setting(stage=3, ranks=4),
    "z3.g4": Setting(stage=3, accumulation=4),
    "z3.ck": Setting(stage=3, checkpointing=True, micro_batch=8),
    "z3.offload": Setting(stage=3, offload=("optimizer",)),
    "z3.offload-both": Setting(stage=3, offload=("optimizer", "param")),
    "z3.lora": Setting(stage=3, lora=True),
    "z3.lora.near": Setting(stage=3, lora=True, reach=120_000_000),
}
LOSS_SETTINGS = {
    f"{setting}.{loss}": replace(SETTINGS[setting], loss=loss)
    for loss in ("liger", "chunked", "cut")
    for setting in ("z0", "z2.ck", "z2.lora", "z3", "z3.ck")
}
"""Losses of libraries: Liger Kernel, TRL and cut-cross-entropy, each installed."""
TOWER_SETTINGS = {"z2.frozen": Setting(stage=2, frozen_tower=True)}
"""Of models of images and text, beside :data:`FEW`."""
WHERE_ALL = "llama"
"""Every setting is compared for this family; of the others :data:`FEW`."""
ADAPTED_EXPERTS = "qwen3_moe.z3.lora.near"
"""Fetches and releases differ where a leaf module holds the experts, and not all of them may be live."""
FEW = ("z0", "z2.b1", "z2.b1.ck", "z2.ck", "z3")
WHERE_NEWEST = ("z2.b1", "z2.b1.ck", "z2.ck")


def names() -> Iterator[str]:
    """``FAMILY.SETTING`` of every case."""
    yield from (f"{WHERE_ALL}.{setting}" for setting in (*SETTINGS, *LOSS_SETTINGS))
    for family in FAMILIES:
        if family in NEWEST:
            yield from (f"{family}.{setting}" for setting in WHERE_NEWEST)
        elif family != WHERE_ALL:
            yield from (f"{family}.{setting}" for setting in FEW)
    yield from (f"{family}.{setting}" for family in IMAGES for setting in TOWER_SETTINGS)
    yield ADAPTED_EXPERTS


def row_of(name: str) -> dict[str, Any]:
    """A case as a row of ``h200-deepspeed.jsonl``, without measurements."""
    family, _, setting = name.partition(".")
    chosen = {**SETTINGS, **LOSS_SETTINGS, **TOWER_SETTINGS}[setting]
    zero: dict[str, Any] = {"stage": chosen.stage}
    if chosen.reach is not None:
        zero |= dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance"), chosen.reach)
    for part in chosen.offload:
        zero[f"offload_{part}"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": chosen.micro_batch,
        "gradient_accumulation_steps": chosen.accumulation,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": zero,
        "steps_per_print": 1_000_000,
    }
    if chosen.precision != "fp32":
        settings[chosen.precision] = {"enabled": True}
    lora = {"r": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} if chosen.lora else None
    frozen = {"frozen": TOWERS[family]} if chosen.frozen_tower else {}
    images = {"images": {**IMAGES[family], **frozen}} if family in IMAGES else {}
    loss: dict[str, Any] = {} if chosen.loss == "standard" else {"loss": chosen.loss}
    loss |= {"bits": 8} if chosen.int8 else {}
    loss |= {"offload_activations": True} if chosen.offload_activations else {}
    return {
        "id": name, "hf_config": FAMILIES[family], "head": HEADS.get(family, "causal"),
        "world_size": chosen.ranks, "tensor_parallel": 1, "micro_batch": chosen.micro_batch,
        "seq_len": 1536 if images else 512,
        "gradient_accumulation": chosen.accumulation, "activation_checkpointing": chosen.checkpointing,
        "use_reentrant": False, "attention": chosen.attention, "attention_mask_given": chosen.mask,
        "weights_loaded_as": chosen.loaded, **images, **loss,
        "lora": lora, "deepspeed_config": settings, "ok": True,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Bytes of rank 0 as (replayed, rehearsed), by phase of the last step, as the measured runs tell them.
    ``problem``: why there is nothing to compare."""

    name: str
    pairs: dict[str, tuple[int, int]]
    problem: str | None = None

    def errors(self) -> dict[str, float]:
        """Replayed over rehearsed, less one, by phase."""
        return {phase: error(pair) for phase, pair in self.pairs.items()}


def compare(name: str, folder: Path) -> Compared:
    """Both models' answers for one case."""
    row = row_of(name)
    path, out = folder / f"{name}.json", folder / "shown" / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row))
    request = RehearsalRequest(
        target=Target(script=str(RAW_LOOP), module=None, arguments=(str(path), str(out))),
        gpu=gpus.load("h200"), gpus=row["world_size"], launcher="deepspeed", step_time=False,
        writable=out.parent, no_cache=True,
    )  # fmt: skip
    with allocator_of_run("expandable_segments:True"):
        done = rehearse(request)
    if done.stopped is not None:
        return Compared(name=name, pairs={}, problem=f"{done.stopped.location}: {done.stopped.reason}")
    record = json.loads(out.read_text())
    ranks = row["world_size"]
    read = {
        **row,
        **record,
        "peak_allocated_bytes": [record["peak"]] * ranks,
        "host_max_rss_bytes": [0] * ranks,
    }
    case = read_case(read)
    if "images" in row:
        tower = "frozen" if "frozen" in row["images"] else "trained"
        full = complete_config(row["hf_config"])
        images = images_of(full, {}, count=2, width=SIZE[0], height=SIZE[1], tower=tower)
        case = replace(case, job=replace(case.job, images=images))
    if "loss" in row:
        case = replace(case, job=replace(case.job, loss=row["loss"]))
    if row.get("bits") == 8:
        case = replace(case, job=replace(case.job, quantization="int8"))
    if row.get("offload_activations"):
        case = replace(case, job=replace(case.job, offload_activations=True))
    profile = complete(None, row["hf_config"], case.job, case.strategy, name=name, head=row["head"])
    judged = judge(case, profile)
    names = ("init", "forward", "level_after_forward", "backward", "step")
    return Compared(name=name, pairs={phase: getattr(judged, phase) for phase in names})


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "deepspeed")}


def main() -> int:
    """Print every case that was asked for; 1 where two differ."""
    parser = options_of(__doc__)
    parser.add_argument("wanted", nargs="*", metavar="NAME", help="a part of the names (default: all)")
    parser.add_argument("--jsonl", type=Path, help="append the bytes of each case, (replayed, rehearsed)")
    args = parser.parse_args()
    wanted = args.wanted
    worst: list[str] = []
    with tempfile.TemporaryDirectory(prefix="zerokit-models-") as folder:
        for name in names():
            if wanted and not any(part in name for part in wanted):
                continue
            try:
                found = compare(name, Path(folder))
            except Exception as failure:  # of one case: the others are still told
                print(f"{name:<24} no answer: {type(failure).__name__}: {failure}", flush=True)
                worst.append(name)
                continue
            if found.problem is not None:
                print(f"{name:<24} stopped: {found.problem}", flush=True)
                worst.append(name)
                continue
            if args.jsonl is not None:
                row = {"name": name, "pairs": found.pairs, "versions": _versions()}
                append(args.jsonl, row)
            off = max(map(abs, found.errors().values())) > LIMIT
            worst += [name] if off else []
            told = "  ".join(
                f"{phase} {replayed / 2**20:.1f} MiB {rehearsed - replayed:+,d}"
                for phase, (replayed, rehearsed) in found.pairs.items()
            )
            print(f"{name:<24} {'!' if off else ' '} {told}", flush=True)
    print(f"differ by more than {100 * LIMIT} %: {', '.join(worst) or 'none'}")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
