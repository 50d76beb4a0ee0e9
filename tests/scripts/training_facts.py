"""Loops on one CPU rank, each right or wrong in a way that its name says; what is seen of them as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from zerokit.instrument.post_import import PostImport
from zerokit.instrument.training_facts import TrainingFacts

os.environ |= {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "ACCELERATE_USE_DEEPSPEED": "true",
}
import deepspeed
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState, GradientState

PASSES = 4
ROWS = torch.eye(PASSES)
Loop = Callable[[], dict[str, Any]]
LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def engine_of(stage: int, accumulation: int = 1, **zero: Any) -> Any:
    model = torch.nn.Sequential()
    model.add_module("head", torch.nn.Linear(PASSES, 1, bias=False))
    torch.nn.init.zeros_(model.head.weight)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": stage, **zero},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def trained(engine: Any) -> dict[str, Any]:
    """Of how many passes the gradients reached the weights: each pass has a weight of its own."""
    weight = engine.module.head.weight
    gathered = deepspeed.zero.GatheredParameters([weight]) if hasattr(weight, "ds_id") else torch.no_grad()
    with gathered:
        return {"kept": int(weight.detach().ne(0).sum())}


def by_hand(stage: int, **zero: Any) -> dict[str, Any]:
    engine = engine_of(stage, **zero)
    for row in ROWS:
        engine.backward(engine(row[None]).sum())
    engine.step()
    return trained(engine)


@loop
def by_hand_zero_0() -> dict[str, Any]:
    return by_hand(0)


@loop
def by_hand_zero_1() -> dict[str, Any]:
    return by_hand(1)


@loop
def by_hand_zero_2_offload() -> dict[str, Any]:
    return by_hand(2, offload_optimizer={"device": "cpu"})


@loop
def by_hand_zero_3() -> dict[str, Any]:
    return by_hand(3)


@loop
def by_the_boundary() -> dict[str, Any]:
    engine = engine_of(2)
    for number, row in enumerate(ROWS):
        engine.set_gradient_accumulation_boundary(number == PASSES - 1)
        engine.backward(engine(row[None]).sum())
    engine.step()
    return trained(engine)


@loop
def by_the_engine() -> dict[str, Any]:
    engine = engine_of(2, PASSES)
    for row in ROWS:
        engine.backward(engine(row[None]).sum())
        engine.step()
    return trained(engine)


@loop
def by_the_engine_with_one_step() -> dict[str, Any]:
    engine = engine_of(2, PASSES)
    for row in (*ROWS, *ROWS, *ROWS, *ROWS):
        engine.backward(engine(row[None]).sum())
        if row[-1]:
            engine.step()
    return trained(engine)


@loop
def two_losses() -> dict[str, Any]:
    engine = engine_of(2)
    out = engine(ROWS)
    engine.backward(out[0].sum(), retain_graph=True)
    engine.backward(out[1].sum())
    engine.step()
    return trained(engine)


@loop
def coalesced() -> dict[str, Any]:
    engine = engine_of(2)
    with engine.coalesce_grad_reduction():
        for row in ROWS:
            engine.backward(engine(row[None]).sum())
    engine.step()
    return trained(engine)


@loop
def two_engines() -> dict[str, Any]:
    first, second = engine_of(2), engine_of(2)
    for row in ROWS:
        for engine in (first, second):
            engine.backward(engine(row[None]).sum())
            engine.step()
    return trained(first)


@loop
def saves() -> dict[str, Any]:
    engine = engine_of(3)
    torch.save({"model": engine.module.state_dict()}, "empty.pt")
    torch.save(obj=engine.module.state_dict(), f="removed.pt")
    Path("removed.pt").unlink()
    torch.save(engine.module.state_dict(), "saved_again.pt")
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        torch.save(engine.module.state_dict(), "saved_again.pt")
    torch.save({"losses": torch.zeros(0)}, "history.pt")
    engine.save_checkpoint("checkpoint")
    return {}


def tiny_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def whole(engine: Any) -> Any:
    return deepspeed.zero.GatheredParameters(list(engine.module.parameters()))


def under_zero_3(model: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 40},
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


@loop
def saves_pretrained() -> dict[str, Any]:
    engine = under_zero_3(tiny_model())
    engine.module.save_pretrained("lacking")
    engine.module.save_pretrained("nothing", state_dict={})
    with whole(engine):
        weights = {name: value.clone() for name, value in engine.module.state_dict().items()}
    engine.module.save_pretrained("gathered", state_dict=dict(weights))
    engine.module.save_pretrained("sharded", state_dict=dict(weights), max_shard_size="20KB")
    torch.save({name: value for name, value in weights.items() if "norm" in name}, "some.pt")
    return {"files": len(list(Path("sharded").glob("*.safetensors")))}


@loop
def saves_adapters() -> dict[str, Any]:
    from peft import LoraConfig, get_peft_model

    engine = under_zero_3(get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"])))
    engine.module.save_pretrained("lacking_adapters")
    with whole(engine):
        engine.module.save_pretrained("adapters")
    return {}


# ---- Accelerate


@contextlib.contextmanager
def accelerated(in_file: Any, in_code: int = 1, clipping: Any = 0.5) -> Iterator[Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": in_file,
        "gradient_clipping": clipping,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(gradient_accumulation_steps=in_code, deepspeed_plugin=plugin)
    model = torch.nn.Linear(PASSES, 1, bias=False)
    data = torch.utils.data.DataLoader(torch.eye(PASSES).repeat(3, 1), batch_size=1)
    yield accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), data)


def accumulating(in_file: Any, in_code: int = 1, most: int = 100) -> dict[str, Any]:
    with accelerated(in_file, in_code) as (accelerator, model, optimizer, data):
        for number, row in enumerate(data):
            with accelerator.accumulate(model):
                accelerator.backward(model(row).sum())
                optimizer.step()
                optimizer.zero_grad()
            if number == most:
                break
    return {"steps": model.global_steps}


@loop
def accumulate() -> dict[str, Any]:
    return accumulating(PASSES)


@loop
def accumulate_with_a_short_last_step() -> dict[str, Any]:
    return accumulating(5)


@loop
def accumulate_and_another_file() -> dict[str, Any]:
    return accumulating(2, in_code=PASSES)


def by_modulo(in_file: int) -> dict[str, Any]:
    with accelerated(in_file) as (accelerator, model, optimizer, data):
        for number, row in enumerate(data):
            accelerator.backward(model(row).sum() / PASSES)
            if (number + 1) % PASSES == 0:
                optimizer.step()
                optimizer.zero_grad()
    return {"steps": model.global_steps}


@loop
def accumulate_by_modulo() -> dict[str, Any]:
    return by_modulo(1)


@loop
def accumulate_by_modulo_and_in_the_file() -> dict[str, Any]:
    return by_modulo(PASSES)


@loop
def no_accumulate_and_a_file_that_does() -> dict[str, Any]:
    with accelerated(PASSES) as (accelerator, model, optimizer, data):
        for row in data:
            accelerator.backward(model(row).sum())
            optimizer.step()
    return {"steps": model.global_steps}


@loop
def clip() -> dict[str, Any]:
    with accelerated(1, clipping="auto") as (accelerator, model, optimizer, data):
        for row in data:
            accelerator.backward(model(row).sum())
            accelerator.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
    return {}


@loop
def clip_alike() -> dict[str, Any]:
    with accelerated(1) as (accelerator, model, optimizer, data):
        for row in data:
            accelerator.backward(model(row).sum())
            accelerator.clip_grad_norm_(model.parameters(), max_norm=0.5)
            accelerator.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
    return {}


@loop
def clip_with_torch() -> dict[str, Any]:
    engine = engine_of(2)
    engine.backward(engine(ROWS).sum())
    torch.nn.utils.clip_grad_norm_(engine.module.parameters(), max_norm=0.25)
    engine.step()
    return {}


@loop
def clip_another_model() -> dict[str, Any]:
    engine_of(2)
    other = torch.nn.Linear(PASSES, 1)
    other(ROWS).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.25)
    return {"kept": int(norm > 1), "norm": round(float(other.weight.grad.norm()), 1)}


def main() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(server.getsockname()[1])
    # compiles for minutes what Gloo does as well; as an attribute, deepspeed.comm.torch is torch itself
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    results = {}
    for name in sys.argv[1:] or LOOPS:
        facts = TrainingFacts()
        PostImport(facts.hooks()).install()
        results[name] = {**LOOPS[name](), **facts.account()}
    print("RESULTS", json.dumps(results))


if __name__ == "__main__":
    main()
