"""A Llama as a DeepSpeed pipeline whose stages need not be alike, to be timed on GPUs or rehearsed.

    deepspeed --num_gpus 2 benchmarks/rehearsal/pipeline_case.py --split 6,2
    zerokit rehearse --gpu h100-sxm-80gb --gpus 2 --ranks 0,last --host-speed 0.9 --json \\
        benchmarks/rehearsal/pipeline_case.py --split 6,2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

SETTLED_STEPS = 4
"""NCCL connects and kernels are chosen before the first step that is timed."""


class Part(torch.nn.Module):
    """One stage: its layers, the embedding before the first ones, and the head after the last ones."""

    def __init__(self, config: LlamaConfig, layers: int, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size) if is_first else None
        self.layers = torch.nn.ModuleList(
            modeling_llama.LlamaDecoderLayer(config, index) for index in range(layers)
        )
        self.rotary = modeling_llama.LlamaRotaryEmbedding(config)
        self.norm = modeling_llama.LlamaRMSNorm(config.hidden_size) if is_last else None
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False) if is_last else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From token ids or another stage's output to this stage's."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        angles = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=positions, position_embeddings=angles)
        return self.head(self.norm(hidden)) if self.head is not None and self.norm is not None else hidden


class Rows(torch.utils.data.Dataset[Any]):
    """Drawn token ids, which are their own labels."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, self._vocabulary, (self._length,))
        return ids, ids


def loss(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Of the next tokens."""
    return torch.nn.functional.cross_entropy(scores[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def main() -> None:
    """Train, and print the steps' seconds on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", default="4,4", help="layers of each stage")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--local_rank", type=int, default=-1)
    options = parser.parse_args()
    split = [int(count) for count in options.split.split(",")]
    config = LlamaConfig(
        vocab_size=32000, hidden_size=options.hidden, intermediate_size=11 * options.hidden // 4,
        num_hidden_layers=sum(split), num_attention_heads=options.hidden // 128, attn_implementation="sdpa",
    )  # fmt: skip
    deepspeed.init_distributed()
    model = PipelineModule(
        layers=[
            LayerSpec(Part, config, count, is_first=not stage, is_last=stage == len(split) - 1)
            for stage, count in enumerate(split)
        ],
        num_stages=len(split),
        loss_fn=loss,
        partition_method="uniform",
    )
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": options.micro_batches,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "steps_per_print": 1000,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    }  # fmt: skip
    rows = Rows(config.vocab_size, options.length)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=settings, training_data=rows
    )
    seconds = []
    for _ in range(options.steps):
        began = time.perf_counter()
        engine.train_batch()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    settled = seconds[SETTLED_STEPS:] or seconds
    if torch.distributed.get_rank() == 0:
        median = round(statistics.median(settled), 5)
        print("STEPS", json.dumps({**vars(options), "median": median, "seconds": settled}), flush=True)


if __name__ == "__main__":
    main()
