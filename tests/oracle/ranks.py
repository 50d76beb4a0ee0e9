"""Real DeepSpeed on CPU ranks, with the bytes of live tensor storage at every instant.

Run as a script: ``ranks.py CASES.json RESULTS.jsonl``. DeepSpeed is imported once; each case is N forked
ranks that join a gloo group and train a tiny model on real tensors. A result line has, for each rank, the
level and peak of init and of forward, backward and step of every micro-batch and step. Bytes, unrounded.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import sys
import time
import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

STEPS = 4  # ZeRO-3 prefetches from the third forward on


def main(cases_file: str, results_file: str) -> None:
    """Run every case; one line each."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the modules beside this one
    prepare()
    with Path(results_file).open("w") as results:
        for case in json.loads(Path(cases_file).read_text()):
            results.write(json.dumps(run_case(case)) + "\n")
            results.flush()


_LAZY = (
    "torch._inductor.lowering", "torch._export.utils", "torch.fx.experimental.proxy_tensor",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)  # fmt: skip
"""What DeepSpeed's first engine pulls in, four seconds of it: once, and not in every fork."""


_WITH_HOST_ADAM = ("engine", "zero.stage3", "zero.stage_1_and_2")


def prepare() -> None:
    """Import what ranks need, before they are forked; nothing is compiled."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import deepspeed.accelerator
    import torch
    import torch._dynamo
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama  # noqa: F401

    for name in _LAZY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # "import … as" would give torch itself, which deepspeed.comm has under this name
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    _adam_of_torch_for_the_host()
    _gradients_come_back_from_the_host()
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # slow on a CPU, but right
    torch.set_num_threads(1)
    gc.freeze()


def _adam_of_torch_for_the_host() -> None:
    """DeepSpeedCPUAdam is a compiled kernel; what it keeps and how it is called is all that counts here."""
    import torch

    class HostAdam(torch.optim.AdamW):  # type: ignore[misc]
        def __init__(self, parameters: Any, adamw_mode: bool = True, fp32_optimizer_states: bool = True,
                     **options: Any) -> None:  # fmt: skip
            super().__init__(parameters, **options)
            self.fp32_optimizer_states = fp32_optimizer_states

        def step(self, closure: Any = None) -> None:
            for parameter in (p for group in self.param_groups for p in group["params"]):
                if parameter.grad is None or "exp_avg" in self.state[parameter]:
                    continue
                dtype = torch.float32 if self.fp32_optimizer_states else parameter.dtype
                for name in ("exp_avg", "exp_avg_sq"):
                    self.state[parameter][name] = torch.zeros_like(parameter, dtype=dtype)

    for name in ("deepspeed.ops.adam", *(f"deepspeed.runtime.{m}" for m in _WITH_HOST_ADAM)):
        module = importlib.import_module(name)
        if hasattr(module, "DeepSpeedCPUAdam"):
            module.DeepSpeedCPUAdam = HostAdam


def _gradients_come_back_from_the_host() -> None:
    """With a device apart from the host, ``.to(device)`` before the norm is a copy (stage3.py:2017)."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

    original = Stage3._offload_grad_partition_at_boundary

    def copied(self: Any, param: Any, grad_buffer: Any, *rest: Any) -> None:
        original(self, param, grad_buffer.clone(), *rest)

    Stage3._offload_grad_partition_at_boundary = copied


def run_case(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Fork the ranks of one case and collect their answers in rank order."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(case["ranks"]):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _rank_process(case, rank, Path(folder))
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        answers = [Path(folder, f"{rank}.json") for rank in range(case["ranks"])]
        return [json.loads(a.read_text()) if a.exists() else {"error": "no answer"} for a in answers]


def _rank_process(case: dict[str, Any], rank: int, folder: Path) -> None:
    log = os.open(folder / f"{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["ranks"]))
    try:
        import torch.distributed as distributed

        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case["ranks"]
        )
        _collectives_let_go()
        answer = (train_pipeline if case.get("pipeline") else train)(case)
        distributed.barrier()
    except BaseException:
        answer = {"error": traceback.format_exc()}
    partial = folder / f"{rank}.partial"
    partial.write_text(json.dumps(answer))
    partial.replace(folder / f"{rank}.json")


def _collectives_let_go() -> None:
    """Make gloo's collectives end when their tensors are free again, as NCCL's do on a stream.

    gloo's thread drops its references a moment after ``wait`` returns, once it gets the interpreter's lock.
    """
    import torch
    import torch.distributed as distributed
    from torch.utils._python_dispatch import _disable_current_modes

    class Done:
        def wait(self, *_: Any) -> bool:
            return True

        def is_completed(self) -> bool:
            return True

    def settled(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            before = [tensor._use_count() for tensor in tensors]
            asynchronous = kwargs.pop("async_op", False)
            with _disable_current_modes():  # what gloo itself allocates is not DeepSpeed's
                function(*args, **kwargs)
            until = time.monotonic() + 2
            while any(t._use_count() > n for t, n in zip(tensors, before, strict=True)):
                if time.monotonic() > until:
                    raise RuntimeError(f"{function.__name__}: still holds its tensors")
                time.sleep(0.0002)
            return Done() if asynchronous else None

        return call

    names = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "broadcast", "reduce")
    for name in (*names, "all_to_all_single"):
        setattr(distributed, name, settled(getattr(distributed, name)))


# ------------------------------------------------------------------ counting


def live_bytes(explain: bool) -> Any:
    """A dispatch mode that counts live storage made while it is active (``explain``: and by whom)."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.live = 0
            self.peak = 0
            self.known: dict[int, object] = {}
            self.makers: Counter[str] = Counter()
            self.at_peak: dict[str, int] = {}

        def ignore(self, tensors: Any) -> None:
            for tensor in tensors:
                self.known[tensor.untyped_storage()._cdata] = object()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for leaf in tree_iter(result):
                if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                    self._seen(leaf.untyped_storage(), func)
            return result

        def _seen(self, storage: Any, func: Any) -> None:
            address, size = storage._cdata, storage.nbytes()
            if address in self.known:
                return
            token = self.known[address] = object()
            maker = _maker(func) if explain else ""
            self.live += size
            self.makers[maker] += size
            if self.live > self.peak:
                self.peak = self.live
                if explain:
                    self.at_peak = {k: v for k, v in self.makers.items() if v}
            weakref.finalize(storage, self._gone, address, token, size, maker)

        def _gone(self, address: int, token: object, size: int, maker: str) -> None:
            if self.known.get(address) is token:
                del self.known[address]
            self.live -= size
            self.makers[maker] -= size

        def phase(self) -> dict[str, Any]:
            """Level now, once nothing more is let go, and peak since the last call."""
            before = -1
            while before != self.live:
                before = self.live
                time.sleep(0.003)  # gloo's thread drops its views when it gets the interpreter's lock
            found: dict[str, Any] = {"level": self.live, "peak": self.peak}
            if explain:
                found["at_peak"] = self.at_peak
                found["at_level"] = {k: v for k, v in self.makers.items() if v}
            self.peak = self.live
            self.at_peak = dict(self.makers)
            return found

    return LiveBytes()


def _maker(func: Any) -> str:
    """The innermost line of DeepSpeed or of the optimizer that asked for the storage."""
    frame = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/deepspeed/runtime/" in name or "/torch/optim/" in name:
            return f"{name.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name} {func}"
        frame = frame.f_back  # type: ignore[assignment]
    return f"model {func}"


# ------------------------------------------------------------------ training


def _model(case: dict[str, Any]) -> Any:
    """The tiny model of the case, as a training script makes it."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**case["hf_config"])
    config.use_cache = False
    half = torch.float16 if case["deepspeed_config"].get("fp16") else torch.bfloat16
    dtype = half if case["precision"] == "16" else torch.float32
    stage3 = case["deepspeed_config"]["zero_optimization"]["stage"] == 3
    context: Any = contextlib.nullcontext()
    if stage3:
        context = deepspeed.zero.Init(config_dict_or_path=case["deepspeed_config"])
    with context:
        attention = "sdpa" if case["sequence_parallel"] > 1 else "eager"
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    if stage3:
        # what is left as it was allocated can be anything, and a step with gradients of NaN is skipped
        for parameter in model.parameters():
            parameter.ds_tensor.data.normal_(std=0.02)
    if case["lora"]:
        import peft

        targets = case["lora"]["targets"]
        lora = peft.LoraConfig(
            r=case["lora"]["rank"], target_modules=targets[0] if targets == ["all-linear"] else targets
        )
        model = peft.get_peft_model(model, lora)
    model.train()
    if case["checkpointing"] != "none":
        if case["lora"]:
            model.enable_input_require_grads()
        options = {"use_reentrant": case["checkpointing"] == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model


def _ulysses(case: dict[str, Any], model: Any) -> Any:
    """Put DeepSpeed's exchanges around the model's attention; returns its process groups."""
    import deepspeed
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    deepspeed.init_distributed("gloo")
    return UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=case["sequence_parallel"],
        micro_batch_size=case["micro_batch"],
    )


def train_pipeline(case: dict[str, Any]) -> dict[str, Any]:
    """Whole steps of the pipeline engine: the peak of each, and the level between them."""
    import deepspeed
    import torch

    from tests.oracle.pipelines import pipeline_model

    deepspeed.init_distributed("gloo")
    tracker = live_bytes(bool(case.get("explain")))
    shape = (case["micro_batch"], case["seq_len"])
    tokens = torch.randint(0, case["hf_config"]["vocab_size"], shape)
    tracker.ignore([tokens])
    with tracker:
        model = pipeline_model(case)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=case["deepspeed_config"]
        )
        gc.collect()
        parts = [int(part) for part in model.parts]
        del model
        found: dict[str, Any] = {"parts": parts, "init": tracker.phase(), "steps": []}
        for _ in range(STEPS):
            engine.train_batch(iter([(tokens, tokens)] * case["gradient_accumulation"]))
            found["steps"].append(tracker.phase())
    return found


def _grouped(model: Any, patterns: list[str]) -> list[dict[str, Any]]:
    """What is trained, as groups for an optimizer: names that a pattern matches have its own, the others the
    first."""
    groups: list[list[Any]] = [[] for _ in (None, *patterns)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[next((n for n, one in enumerate(patterns, 1) if re.fullmatch(one, name)), 0)].append(
                parameter
            )
    return [{"params": group} for group in groups]


def train(case: dict[str, Any]) -> dict[str, Any]:
    """A few optimizer steps; levels and peaks of every phase."""
    import deepspeed
    import torch

    from tests.support.trainers_optimizer import trainers_optimizer

    tracker = live_bytes(bool(case.get("explain")))
    share = case["seq_len"] // case["sequence_parallel"]
    tokens = torch.randint(0, case["hf_config"]["vocab_size"], (case["micro_batch"], share))
    given = {}
    if case["sequence_parallel"] > 1:
        start = torch.distributed.get_rank() % case["sequence_parallel"] * share
        given["position_ids"] = torch.arange(start, start + share).repeat(case["micro_batch"], 1)
    tracker.ignore([tokens, *given.values()])
    with tracker:
        model = _model(case)
        built = tracker.phase()
        groups = _ulysses(case, model) if case["sequence_parallel"] > 1 else None
        trained = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=trainers_optimizer(case["optim"], trained, model) if case.get("optim") else None,
            model_parameters=_grouped(model, case["groups"]),
            config=case["deepspeed_config"],
            mpu=groups,
        )
        del model, trained
        gc.collect()
        if case.get("optim", "").startswith("schedule_free"):
            engine.optimizer.optimizer.train()  # as Accelerate's wrapper of DeepSpeed's optimizer does
        found: dict[str, Any] = {"built": built, "init": tracker.phase(), "steps": []}
        for _ in range(STEPS):
            micro_steps = []
            for _ in range(case["gradient_accumulation"]):
                own = tokens.clone()  # as a batch comes to a GPU
                outputs = engine(input_ids=own, labels=own, **given)
                loss = outputs.loss
                del outputs
                forward = tracker.phase()
                engine.backward(loss)
                del loss, own
                backward = tracker.phase()
                engine.step()
                micro_steps.append({"forward": forward, "backward": backward, "step": tracker.phase()})
            found["steps"].append(micro_steps)
    return found


if __name__ == "__main__":
    sys.path.pop(0)
    main(sys.argv[1], sys.argv[2])
