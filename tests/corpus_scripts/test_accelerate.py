"""Accelerate's own test scripts that train, as its wheel has them, on two CPU ranks.

GLUE's MRPC and BERT, which they load by name, are local stand-ins of the same layout. Those of accelerate
1.15's ``test_utils/scripts`` that train:

=============================== ==========================================================================
``test_performance``            run with a ZeRO-3 plan
``test_checkpointing``          run with a ZeRO-2 plan
``test_script``                 run without a plan: it returns before its training where DeepSpeed is on
``test_sync``                   not run: its model has parameters without a dimension, each of which DeepSpeed
                                0.19.8 broadcasts (``runtime/engine.py:2059``), and gloo refuses that
``test_ddp_comm_hook``          not run: it wraps its model in DDP with ``device_ids``, which need a GPU
``test_distributed_data_loop``  not run: uneven inputs are joined on GPUs only (``accelerator.py:1376``)
``test_merge_weights``          not run: FSDP's saving ends with ``KeyError: None`` on CPU ranks, also under
                                torchrun
``test_peak_memory_usage``,     not run: they ask for GPUs
``test_zero3_integration``,
``test_ds_alst_ulysses_sp``
``test_ds_multiple_model``      not run: the wheel lacks its DeepSpeed files
=============================== ==========================================================================
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs
from zerokit.cli import run as zerokit

needs("deepspeed")
needs("datasets")
needs("accelerate")
SCRIPTS = Path(find_spec("accelerate").origin).parent / "test_utils" / "scripts" / "external_deps"
GLUE = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.jsonl}
  - {split: validation, path: validation.jsonl}
---
"""
EVALUATE = '''"""What the scripts use of package evaluate: GLUE's accuracy."""
class Metric:
    right = seen = 0
    def add_batch(self, predictions, references):
        self.right += int((predictions == references).sum())
        self.seen += len(references)
    def compute(self):
        return {"accuracy": self.right / self.seen}
def load(name, config):
    assert (name, config) == ("glue", "mrpc")
    return Metric()
'''


def make_inputs(folder: Path) -> None:
    """MRPC's columns, a small BERT with its word-piece tokenizer, and the metric."""
    import transformers

    glue = folder / "nyu-mll" / "glue"
    glue.mkdir(parents=True)
    (glue / "README.md").write_text(GLUE)
    words = [f"word{number}" for number in range(50)]
    for split, count in (("train", 64), ("validation", 16)):
        rows = [{"sentence1": f"{words[n % 50]} same", "sentence2": f"{words[(n + n % 2) % 50]} same",
                 "label": 1 - n % 2, "idx": n} for n in range(count)]  # fmt: skip
        (glue / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "same", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "bert")
    (folder / "evaluate.py").write_text(EVALUATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "stage"),
    [pytest.param("test_performance.py", 3, marks=pytest.mark.slow), ("test_checkpointing.py", 2)],
)
def test_a_script_of_accelerates_trains_as_planned(tmp_path: Path, script: str, stage: int) -> None:
    plan = ["plan", "--params", "1m", "--device", "cpu", "--gpus", "2", "--zero", str(stage),
            "--precision", "fp32", "--micro-batch", "16", "--gradient-accumulation", "1", "--seq-len", "32",
            "--checkpointing", "none", "--out", str(tmp_path / "plan")]  # fmt: skip
    assert zerokit(plan) == 0
    make_inputs(tmp_path)
    (tmp_path / "out").mkdir()
    variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
                 "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}  # fmt: skip
    words = ["--plan", "plan", str(SCRIPTS / script), "--model_name_or_path", "bert", "--output_dir", "out",
             "--num_epochs", "1"]  # fmt: skip
    run = Run(Path(sys.executable), tmp_path, words, variables)
    code, out, err = run.end(400)
    assert code == 0, out + err
    report = run.report()
    assert report["outcome"] == "ok" and len(report["ranks"]) == 2
    for rank in report["ranks"]:
        assert (rank["state"], rank["exit_code"], rank["steps"]) == ("finished", 0, 2)
        engine = rank["engine"]
        assert (engine["zero_stage"], engine["micro_batch"], engine["precision"]) == (stage, 16, "fp32")
        assert {"load", "init", "forward", "backward", "step", "eval", "save"} <= set(rank["phases"])
        assert rank["peak_phase"] != "other"
    assert "optimizer" not in json.loads((tmp_path / "run" / "ds_config.json").read_text())  # it has its own


@pytest.mark.slow
def test_ranks_without_a_gpu_or_a_plan_are_one_run(tmp_path: Path) -> None:
    """Accelerate took each CPU rank for a run of its own, and the launch for a good one."""
    words = ["--no-plan", "--num-ranks", "2", str(SCRIPTS.parent / "test_script.py")]
    run = Run(Path(sys.executable), tmp_path, words, {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    code, out, err = run.end(400)
    assert code == 0, out + err
    logs = [(tmp_path / "run" / "logs" / f"rank-0000{rank}.out.log").read_text() for rank in range(2)]
    assert all("Num processes: 2" in log for log in logs)
    assert ["**Training integration test**" in log for log in logs] == [True, False]
