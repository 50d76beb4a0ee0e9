"""Values that other ranks hold, where it is known that they are not ours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.command import called  # noqa: E402
from tests.support.ranks import write_script  # noqa: E402
from tests.support.rehearsals import rehearse  # noqa: E402
from zerokit.rehearsal.process import collectives  # noqa: E402
from zerokit.rehearsal.process.machine import UnderWay  # noqa: E402
from zerokit.rehearsal.process.messages import Messages  # noqa: E402


def test_ranks_gather_what_each_holds() -> None:
    ours, gathered = torch.tensor([4, 8, 4]), torch.zeros(9, dtype=torch.long)
    under_way = UnderWay()
    gather = collectives._KNOWN_VALUES["_allgather_base_"]
    gather(under_way, (gathered, ours))
    assert gathered.tolist() == [4, 8, 4] * 3  # every other rank is taken to hold what ours does
    with under_way.told(of_rank=lambda rank: [4 * rank, 4 * rank + 4, 4]):
        gather(under_way, (gathered, ours))
    assert gathered.tolist() == [0, 4, 4, 4, 8, 4, 8, 12, 4]
    gather(under_way, (gathered, ours))
    assert gathered.tolist() == [4, 8, 4] * 3


def _group(rank: int) -> Any:
    return SimpleNamespace(rank=lambda: rank)


def test_a_rank_receives_what_the_sender_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    broadcast, under_way = collectives._MESSAGES["broadcast_"], UnderWay()
    machine = SimpleNamespace(under_way=under_way, messages=Messages(None, 2))
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1, 2])
    received = torch.full((3,), -1)
    with under_way.told(sender_has=[5, 7, 9]):
        broadcast(machine, ([received], _group(0), 0))
        assert received.tolist() == [-1, -1, -1]  # it is the sender
        broadcast(machine, ([received], _group(2), 0))
    assert received.tolist() == [5, 7, 9]


def test_reductions_and_shares_of_ranks_that_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    under_way, group = UnderWay(), SimpleNamespace(rank=lambda: 1, size=lambda: 3)
    under_way.operation = torch.distributed.ReduceOp.SUM
    reduce, total = collectives._KNOWN_VALUES["reduce_"], torch.tensor([4.0])
    reduce(under_way, ([total], group, None, 0))
    assert total.tolist() == [4.0]  # another rank gets the sum
    reduce(under_way, ([total], group, None, 1))
    assert total.tolist() == [12.0]
    share, shares = torch.zeros(1), [torch.tensor([float(rank)]) for rank in range(3)]
    collectives._KNOWN_VALUES["scatter_"](under_way, ([share], [shares], group))
    assert share.tolist() == [1.0]


_SCRIPT = """
    import deepspeed, torch
    from transformers import AutoModelForCausalLM, LlamaConfig
    config = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                         vocab_size=16000, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500000000},
    })
    for _ in range(4):
        ids = torch.randint(0, 16000, (1, 128), device=engine.device)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
"""


@pytest.mark.slow  # three ranks of a real engine
def test_one_rank_of_zero_2_is_not_the_answer_for_all(tmp_path: Path) -> None:
    """The larger of two ranks takes more than the smaller by no more than is said, and no rank is told of
    as if it were all."""
    pytest.importorskip("deepspeed")
    script = str(write_script(tmp_path, _SCRIPT, "train.py"))
    _, both, _ = rehearse(tmp_path, "--gpus", "2", "--gpu", "h200", "--ranks", "0,1", script)
    needed = {rank["rank"]: rank["peak_allocated_bytes"] for rank in both["ranks"]}
    smaller, larger = sorted(needed, key=lambda rank: needed[rank])
    assert needed[smaller] < needed[larger]
    assert not any("was rehearsed: under ZeRO-2" in warning for warning in both["warnings"])

    mib = both["min_vram_bytes"] // 2**20 + 20
    words = ("--gpus", "2", "--gpu", "h200", "--vram", f"{mib}MiB", "--rank", str(smaller), script)
    home = os.environ["XDG_CACHE_HOME"]  # as above: with another one the libraries would be imported anew
    code, out, err = called(
        "rehearse", *words, folder=tmp_path, COLUMNS="1000", OMP_NUM_THREADS="1", HOME=home
    )
    assert code == 0, err
    said = rf"only rank {smaller} of 2 was rehearsed.* up to about ([\d.]+) (G|M)iB more .--ranks 0,1 "
    warned = re.search(said, out)
    assert warned is not None, out
    most = float(warned[1]) * (2**30 if warned[2] == "G" else 2**20)
    assert needed[larger] - needed[smaller] <= most * 1.01
    verdict = out.strip().splitlines()[-1]
    assert verdict.startswith(f"rank {smaller} fits: ") and "other ranks may not" in verdict
