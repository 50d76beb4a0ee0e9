"""Data sets in a rehearsal: which rows stand for a large one, and those that are prepared already."""

from __future__ import annotations

from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.packages import needs

needs("torch")
datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

from torch.utils.data import dataloader  # noqa: E402

from tests.support.rehearsals import rehearse  # noqa: E402
from zerokit.rehearsal import conduct  # noqa: E402
from zerokit.rehearsal.process.adapters import data_loaders, training  # noqa: E402
from zerokit.rehearsal.process.adapters.data_loaders import (  # noqa: E402
    _inside,
    chosen_rows,
    element_bytes,
    preparation,
    row_bytes,
    rows_for_each,
)
from zerokit.rehearsal.process.allocator import AllocatorSettings  # noqa: E402
from zerokit.rehearsal.process.ledger import GpuMemory  # noqa: E402


def test_lengths_are_those_of_text_and_numbers_in_whatever_nesting() -> None:
    rows = [
        {"text": "é" * number, "turns": [{"role": "u", "content": "x" * number}] * (number % 3),
         "tokens": [1] * number, "none": None}
        for number in range(20)
    ]  # fmt: skip
    data = datasets.Dataset.from_list(rows)
    wanted = [2 * n + (n % 3) * (1 + n) + n for n in range(20)]
    base = row_bytes(data)[0]  # a value without a length counts as one
    assert [size - base for size in row_bytes(data)] == wanted
    turned = data.select([7, 3])
    assert [size - base for size in row_bytes(turned)] == [wanted[7], wanted[3]]
    some = data.select(range(5, 9))
    assert [size - base for size in row_bytes(some)] == wanted[5:9]


def test_lengths_are_known_in_arrows_rarer_types() -> None:
    words = ["a", "bbb", None, "cc"]
    lists = [[1, 2], [], None, [3, 4, 5]]
    columns = {
        "view": pa.array(words, pa.string_view()),
        "dictionary": pa.array(words).dictionary_encode(),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], pa.array(words)),
        "fixed": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2)),
        "list_view": pa.array(lists, pa.list_view(pa.int64())),
        "map": pa.array([[("k", "v" * n)] for n in range(4)], pa.map_(pa.string(), pa.string())),
        "bytes": pa.array([b"12", b"34", None, b"56"], pa.binary(2)),
    }
    wanted = {
        "view": [1, 3, 0, 2], "dictionary": [1, 3, 0, 2], "runs": [1, 3, 0, 2], "fixed": [2, 2, 0, 2],
        "list_view": [2, 0, 0, 3], "map": [1, 2, 3, 4], "bytes": [2, 2, 0, 2],
    }  # fmt: skip
    for name, column in columns.items():
        assert list(element_bytes(column)) == wanted[name], name
        assert list(element_bytes(column[1:3])) == wanted[name][1:3], name


def test_what_is_made_of_a_sample_stands_for_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in list(vars(datasets.Dataset).items()):
        if callable(value) and not name.startswith("__"):
            monkeypatch.setattr(datasets.Dataset, name, value)  # put back afterwards
    guesses = SimpleNamespace(of_shape=lambda what, value: None)
    context: Any = SimpleNamespace(machine=SimpleNamespace(world_size=1, guesses=guesses))
    preparation(context, datasets)
    large = datasets.Dataset.from_dict({"text": ["w"] * 10_000})
    sample = large.map(lambda row: row)
    assert (len(sample), rows_for_each(sample)) == (2048, 10_000 / 2048)
    for dataset in (
        sample.filter(lambda row: True), sample.shuffle(), sample.with_format("torch"), sample.select([1]),
        sample.rename_column("text", "words"), *sample.train_test_split(0.1).values(),
    ):  # fmt: skip
        assert rows_for_each(dataset) == 10_000 / 2048
    assert len(sample.select(range(3000, 3010))) == 10  # rows of the run's data that the sample lacks
    other = datasets.Dataset.from_dict({"text": ["w"] * 2048})  # as many rows, and no sample
    assert rows_for_each(other.map(lambda row: row)) == 1
    with pytest.raises(IndexError):
        other.select([3000])


class Evaluated:
    """Loaders in an evaluation that keeps a MiB of each batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = GpuMemory(AllocatorSettings())
        self.warned: list[str] = []
        machine = SimpleNamespace(
            ledger=self.ledger, kept_evaluation_batches=None, warn=self.warned.append, stub=lambda what: None
        )
        for name in ("__next__", "_reset"):
            monkeypatch.setattr(
                dataloader._BaseDataLoaderIter, name, getattr(dataloader._BaseDataLoaderIter, name)
            )
        self.phases = SimpleNamespace(
            phase="eval", enough=False, evaluates=False, steps=0, inside=lambda *phases: nullcontext()
        )
        self.context: Any = SimpleNamespace(machine=machine, phases=self.phases)
        self.ledger.enter("eval")
        data_loaders.ending(self.context)

    def run(self, loader: Any, most: int) -> int:
        """Batches that the loop got."""
        kept = []
        for _ in loader:
            kept.append(self.ledger.hold(1 << 20, "output"))
            if len(kept) == most:
                break
        for row in kept:
            self.ledger.release(row)
        return len(kept)


def test_an_evaluation_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = Evaluated(monkeypatch)
    loader = dataloader.DataLoader(list(range(100)))
    assert evaluated.run(loader, 8) == 8
    assert evaluated.warned and evaluated.ledger.allocated_bytes == 0
    assert evaluated.run(loader, 100) == 8  # cut, and told whole
    assert evaluated.ledger.allocated_bytes == 0
    assert evaluated.ledger.peaks["eval"].allocated_bytes >= 100 << 20


def test_an_evaluation_of_the_scripts_own_goes_on_after_enough_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between its batches no phase says so; one that keeps the last outputs needs more than one."""
    evaluated = Evaluated(monkeypatch)
    evaluated.ledger.enter("other")
    evaluated.phases.__dict__.update(phase="other", enough=True, evaluates=True)
    loader = dataloader.DataLoader(list(range(100)))
    assert evaluated.run(loader, 100) == 8
    evaluated.phases.evaluates = False
    assert evaluated.run(loader, 100) == 1
    evaluated.phases.evaluates = True  # a model that trains in this mode: each batch is a step
    batches = iter(loader)
    next(batches)
    evaluated.phases.steps += 1
    with pytest.raises(StopIteration):
        next(batches)


def test_a_second_evaluation_with_persistent_workers_sees_batches_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated = Evaluated(monkeypatch)
    loader = dataloader.DataLoader(list(range(100)), num_workers=1, persistent_workers=True)
    assert [evaluated.run(loader, 100), evaluated.run(loader, 100)] == [8, 8]


def test_a_sample_has_the_longest_rows_and_some_of_every_length() -> None:
    data = datasets.Dataset.from_dict({"text": ["w" * (number * 7919 % 10_000) for number in range(10_000)]})
    chosen = chosen_rows(data, 64)
    assert chosen is not None and chosen == sorted(set(chosen))
    lengths = sorted(len(data[number]["text"]) for number in chosen)
    assert lengths[-1] == 9999 and lengths[0] < 100
    longest = [length for length in lengths if length >= 10_000 - len(chosen) * 3 // 4]
    assert len(longest) >= len(chosen) * 3 // 4
    assert sum(lengths) <= 16 << 20


def test_small_data_stays_whole_and_every_rank_gets_some_of_long_rows() -> None:
    assert chosen_rows(datasets.Dataset.from_dict({"text": ["w"] * 4096}), 64) is None
    long = datasets.Dataset.from_dict({"text": ["w" * 100_000] * 1000})
    few, many = chosen_rows(long, 64), chosen_rows(long, 512)
    assert few is not None and many is not None
    assert 64 <= len(few) <= 160 and len(many) >= 512


def test_what_was_prepared_before_is_found_and_nothing_is_put_beside_it(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    cache = conduct.user_data_cache({"HOME": str(home)})
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    files = {"data_files": str(tmp_path / "rows.jsonl"), "split": "train"}
    datasets.load_dataset("json", cache_dir=str(cache), **files)
    before = sorted(cache.rglob("*"))
    (tmp_path / "rows.jsonl").touch()
    conduct.link_data_cache(cache, copy)
    (prepared,) = copy.rglob("*.arrow")
    found = datasets.Dataset.from_file(str(prepared))
    found.map(lambda row: {"length": len(row["text"])}, cache_file_name=str(prepared.parent / "made.arrow"))
    assert found["text"][:] == ["a", "b"]
    assert sorted(cache.rglob("*")) == before


def test_a_part_that_no_row_of_the_sample_is_in_gets_rows_all_the_same() -> None:
    assert _inside(range(5), 10) == range(5)
    assert _inside(range(5, 15), 10) == [5, 6, 7, 8, 9]
    assert _inside(range(32, 35), 10) == [2, 3, 4]
    assert _inside([], 10) == []


def test_a_link_that_leads_nowhere_is_no_obstacle(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "loop").symlink_to(cache / "loop")
    (cache / "there").write_text("x")
    conduct.link_data_cache(cache, tmp_path / "copy")
    assert (tmp_path / "copy" / "there").read_text() == "x"


def test_the_cache_is_where_the_environment_says() -> None:
    assert conduct.user_data_cache({"HF_DATASETS_CACHE": "/x", "HF_HOME": "/y"}) == Path("/x")
    assert conduct.user_data_cache({"HF_HOME": "/y", "HOME": "/h"}) == Path("/y/datasets")
    assert conduct.user_data_cache({"XDG_CACHE_HOME": "/z"}) == Path("/z/huggingface/datasets")


def test_what_follows_an_evaluation_counts_a_prediction_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the public run_qa.py does, whose answers are made of all predictions after the loop."""
    Output = namedtuple("Output", ["predictions", "label_ids", "metrics", "num_samples"])

    class Trainer:
        args = SimpleNamespace(eval_accumulation_steps=None)

        def evaluation_loop(self, dataloader: Any) -> Any:
            observed = np.concatenate([batch.numpy() for batch in dataloader])
            rows = len(dataloader.dataset)  # as transformers counts them
            return Output((observed, np.stack([observed, observed], axis=1)), None, {}, rows)

    training.trainer(Evaluated(monkeypatch).context, SimpleNamespace(Trainer=Trainer))
    told = Trainer().evaluation_loop(dataloader.DataLoader(range(99), batch_size=4))
    first, second = told.predictions
    assert told.label_ids is None
    assert list(first) == [number % 32 for number in range(99)] and second.shape == (99, 2)
    whole = Trainer().evaluation_loop(dataloader.DataLoader(range(30), batch_size=4))
    assert list(whole.predictions[0]) == list(range(30))
    monkeypatch.setattr(training, "_MOST_REPEATED_BYTES", 256)  # a copy for each row may not fit
    assert len(Trainer().evaluation_loop(dataloader.DataLoader(range(99), batch_size=4)).predictions[0]) == 32


LENGTHS = """
import sys, torch, transformers
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4))
model.to("cuda", getattr(torch, sys.argv[2]))
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    ids = torch.ones(2, 64 + int(sys.argv[1]) * step, dtype=torch.int64, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
"""


FED = "batches of 64 to 112 tokens a row were fed"
PLANNED = "cuDNN's attention makes a plan for each length that a run has not met"


@pytest.mark.parametrize(
    ("gpu", "longer", "dtype", "variables", "said"),
    [
        ("h200", "0", "bfloat16", {}, []),
        ("h200", "16", "bfloat16", {}, [FED, PLANNED]),
        ("h200", "16", "float32", {}, [FED]),  # the memory-efficient kernel
        pytest.param("a100-80gb", "16", "bfloat16", {}, [FED], marks=pytest.mark.slow),  # FlashAttention
        pytest.param(
            "h200", "16", "bfloat16", {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, [FED], marks=pytest.mark.slow
        ),
    ],
)
def test_batches_of_several_lengths_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, longer: str, dtype: str,
    variables: dict[str, str], said: list[str],
) -> None:  # fmt: skip
    pytest.importorskip("transformers")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "train.py").write_text(LENGTHS)
    code, found, errors = rehearse(tmp_path, "--gpu", gpu, "--steps", "4", "train.py", longer, dtype)
    assert code == 0, errors
    assert bool(found["step"]["by_host_factor"]) is (PLANNED not in said)  # else a run would tell of its host
    assert [start for text in found["warnings"] for start in (FED, PLANNED) if text.startswith(start)] == said
