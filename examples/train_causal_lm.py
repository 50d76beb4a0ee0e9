"""Train a small Hugging Face causal LM with DeepSpeed, on data made here.

An ordinary DeepSpeed script: it knows nothing of zerokit. Model and data need no
download; the text is a noisy cycle of tokens that a language model learns in a few
dozen steps, so a falling loss shows that training works.

    deepspeed train_causal_lm.py --deepspeed --deepspeed_config ds_config.json
    zerokit launch --plan zerokit-plan train_causal_lm.py
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig

NOISE = 0.1  # this share of the tokens is drawn at random instead of following the cycle
SYMBOLS = 64  # token ids that the text uses


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model",
        type=Path,
        default=Path(__file__).with_name("tiny-llama.json"),
        help="a Hugging Face config.json (default: tiny-llama.json beside this script)",
    )
    parser.add_argument("--hidden-size", type=int, help="in place of the configuration's")
    parser.add_argument("--layers", type=int, help="in place of the configuration's")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps (default: 30)")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens per sequence (default: 128)")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="recompute activations in the backward pass"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the DeepSpeed launcher")
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def build_model(args: argparse.Namespace, ds_config: dict) -> PreTrainedModel:
    """The model with random weights, in the dtype that the DeepSpeed configuration trains in."""
    fields = json.loads(args.model.read_text())
    if args.hidden_size:
        fields["hidden_size"] = args.hidden_size
    if args.layers:
        fields["num_hidden_layers"] = args.layers
    config: PretrainedConfig = AutoConfig.for_model(**fields)
    config.use_cache = False
    dtype = torch.float32
    for name, value in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if ds_config.get(name, {}).get("enabled"):
            dtype = value
    torch.manual_seed(args.seed)  # the same weights on every rank
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def make_batch(sequences: int, seq_len: int, generator: torch.Generator) -> torch.Tensor:
    """Token ids [sequences, seq_len]: token t is followed by t + 7 modulo SYMBOLS, but for the noise."""
    start = torch.randint(SYMBOLS, (sequences, 1), generator=generator)
    tokens = (start + 7 * torch.arange(seq_len)) % SYMBOLS
    noisy = torch.rand(tokens.shape, generator=generator) < NOISE
    return torch.where(noisy, torch.randint(SYMBOLS, tokens.shape, generator=generator), tokens)


def lowest_loss() -> float:
    """Entropy of a token given those before it, in nats: the loss of a perfect model."""
    right = 1 - NOISE + NOISE / SYMBOLS
    return -right * math.log(right) - (1 - right) * math.log((1 - right) / (SYMBOLS - 1))


def train(args: argparse.Namespace, engine: deepspeed.DeepSpeedEngine) -> list[float]:
    """Run the optimizer steps; the loss of each, averaged over micro-batches and ranks."""
    generator = torch.Generator().manual_seed(args.seed + 1 + dist.get_rank())
    micro_batch = engine.train_micro_batch_size_per_gpu()
    accumulation = engine.gradient_accumulation_steps()
    losses = []
    for step in range(1, args.steps + 1):
        total = torch.zeros((), device=engine.device)
        for _ in range(accumulation):
            tokens = make_batch(micro_batch, args.seq_len, generator).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / accumulation
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
        if dist.get_rank() == 0 and (step == 1 or step % 10 == 0 or step == args.steps):
            print(f"step {step:4d}  loss {losses[-1]:.3f}", flush=True)
    return losses


def main() -> None:
    args = parse_arguments()
    if not args.deepspeed_config:
        raise SystemExit(
            "train_causal_lm.py: give --deepspeed_config FILE, or run it with zerokit launch --plan DIR"
        )
    ds_config = json.loads(Path(args.deepspeed_config).read_text())
    deepspeed.init_distributed()
    keep = HfDeepSpeedConfig(ds_config)  # while it lives, ZeRO-3 shards the model as it is built
    model = build_model(args, ds_config)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    del keep
    for group in engine.optimizer.param_groups:
        group["lr"] = args.learning_rate
    losses = train(args, engine)
    if dist.get_rank() == 0:
        print(
            f"loss went from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps; "
            f"{math.log(SYMBOLS):.2f} is guessing, {lowest_loss():.2f} is the best possible"
        )
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
