"""A language model with tied embeddings as a pipeline; stages send positions (integers) beside activations.

``--tell`` prints what this rank receives from others: dtype, shape, and integers.
"""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import distributed

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--dynamic", action="store_true")
parser.add_argument("--tell", action="store_true")
args = parser.parse_args()

VOCABULARY, WIDTH, LENGTH = 512, 256, 48


class Embed(torch.nn.Embedding):
    def __init__(self) -> None:
        super().__init__(VOCABULARY, WIDTH)

    def forward(self, ids):  # type: ignore[no-untyped-def]
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).contiguous()
        return super().forward(ids), positions


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Embedding(2 * LENGTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        hidden, positions = inputs
        length = int(positions.max()) + 1  # a size that follows from values
        hidden = hidden[:, :length] + self.positions(positions[:, :length])
        return hidden + self.down(torch.nn.functional.gelu(self.up(hidden))), positions


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 256

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(row))
        return ids, ids


def logits(layer, inputs):  # type: ignore[no-untyped-def]
    return torch.nn.functional.linear(inputs[0], layer.weight)


def loss(scores, labels):  # type: ignore[no-untyped-def]
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())


def tell(receive):  # type: ignore[no-untyped-def]
    def received(tensor, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = receive(tensor, *args, **kwargs)
        values = tensor.flatten()[:6].tolist() if not tensor.is_floating_point() else None
        print("RECEIVED", tensor.dtype, list(tensor.shape), values, flush=True)
        return result

    return received


deepspeed.init_distributed()
if args.tell:
    distributed.recv = tell(distributed.recv)
model = PipelineModule(
    layers=[
        TiedLayerSpec("embed", Embed),
        *(LayerSpec(Block) for _ in range(6)),
        TiedLayerSpec("embed", Embed, forward_fn=logits),
    ],
    num_stages=args.stages,
    loss_fn=loss,
    partition_method="uniform",
    dynamic_shape=args.dynamic,
)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=trained, training_data=Rows())
for _ in range(3):
    print("LOSS", float(engine.train_batch()))
batches = torch.utils.data.DataLoader(Rows(), batch_size=engine.train_micro_batch_size_per_gpu())
print("EVALUATION", float(engine.eval_batch(iter(deepspeed.utils.RepeatingLoader(batches)))))
