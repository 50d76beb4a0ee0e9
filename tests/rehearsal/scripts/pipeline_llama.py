"""A Llama's layers as a DeepSpeed pipeline: pipeline_llama.py MODEL STAGES LENGTH --deepspeed_config FILE."""

import argparse

import deepspeed
import torch
import transformers
from deepspeed.pipe import LayerSpec, PipelineModule
from transformers.models.llama import modeling_llama

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("model")
parser.add_argument("stages", type=int)
parser.add_argument("length", type=int)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
config = transformers.AutoConfig.from_pretrained(args.model, attn_implementation="sdpa")


class Layer(modeling_llama.LlamaDecoderLayer):
    def __init__(self, index: int) -> None:
        super().__init__(config, index)
        self.rotary = modeling_llama.LlamaRotaryEmbedding(config)

    def forward(self, hidden):  # type: ignore[no-untyped-def,override]
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        angles = self.rotary(hidden, positions)
        return super().forward(hidden, position_ids=positions, position_embeddings=angles)


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = modeling_llama.LlamaRMSNorm(config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden):  # type: ignore[no-untyped-def]
        return self.head(self.norm(hidden))


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 512

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        ids = torch.randint(0, config.vocab_size, (args.length,))
        return ids, ids


def loss(scores, ids):  # type: ignore[no-untyped-def]
    ahead = scores[:, :-1].float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(ahead, ids[:, 1:].flatten())


deepspeed.init_distributed()
model = PipelineModule(
    layers=[
        LayerSpec(torch.nn.Embedding, config.vocab_size, config.hidden_size),
        *(LayerSpec(Layer, index) for index in range(config.num_hidden_layers)),
        LayerSpec(Head),
    ],
    num_stages=args.stages,
    loss_fn=loss,
)
engine, *_ = deepspeed.initialize(
    args=args, model=model, model_parameters=list(model.parameters()), training_data=Rows()
)
for _ in range(args.steps):
    engine.train_batch()
