"""Peaks on a GPU stay true whoever resets them (fault 24).

There is no GPU where these tests run, so the allocator below stands in for the one in ``torch._C``:
the same three functions, the same nested statistics. Everything above it is PyTorch's own code. The
same questions are put to a real GPU in tests/gpu/test_probe_gpu.py.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tests.support.allocator import Allocator, installed, probe_on, train_step  # noqa: E402
from zerokit.launcher.rank import probe as rank_probe  # noqa: E402
from zerokit.launcher.rank.memory_snapshots import MemorySnapshots  # noqa: E402
from zerokit.launcher.rank.oom_record import OomWatch, asked_bytes, error_record, is_out_of_memory  # noqa: E402
from zerokit.launcher.rank.probe import Probe  # noqa: E402
from zerokit.launcher.rank_file import RankLog  # noqa: E402
from zerokit.launcher.verdict.evidence import Evidence, RankExit  # noqa: E402
from zerokit.launcher.verdict.rank_end import rank_end  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def allocator(monkeypatch):
    return installed(monkeypatch, torch)


@pytest.fixture
def probe(tmp_path: Path, allocator):
    with probe_on(torch, tmp_path) as probe:
        yield probe


def peaks(probe: Probe) -> dict[str, int]:
    return {
        name: phase["peak_allocated_bytes"] // MIB for name, phase in probe.account("tick")["phases"].items()
    }


def test_each_phase_has_its_own_peak_and_the_run_the_greatest(probe, allocator):
    allocator.allocate(10 * MIB)
    train_step(probe, allocator, 20, 30, 5)
    train_step(probe, allocator, 25, 20, 6)
    account = probe.account("tick")
    assert peaks(probe) == {"load": 10, "forward": 35, "backward": 40, "step": 16, "other": 10}
    assert account["peak_allocated_bytes"] == 40 * MIB
    assert account["peak_reserved_bytes"] == 40 * MIB
    assert account["steps"] == 2


@pytest.fixture
def unsplit(probe, monkeypatch):
    """A probe that has no time to read memory inside a step."""
    monkeypatch.setattr(rank_probe, "_ALWAYS_READ", 0)
    monkeypatch.setattr(rank_probe, "SPLIT_SHARE", 0.0)
    probe._budget._spare_seconds = -1.0
    return probe


def test_the_peak_of_a_step_that_is_not_split_is_the_runs_and_no_phases(unsplit, allocator):
    allocator.allocate(10 * MIB)
    train_step(unsplit, allocator, 20, 30, 5)
    unsplit.watch()  # the ticker: nothing known is older than its period
    assert peaks(unsplit)["backward"] == 0
    assert unsplit.account("tick")["peak_allocated_bytes"] == 40 * MIB
    unsplit._budget._spare_seconds = 1.0
    train_step(unsplit, allocator, 21, 25, 6)
    assert peaks(unsplit) == {"load": 0, "forward": 31, "backward": 35, "step": 16, "other": 0}
    account = unsplit.account("tick")
    assert account["peak_allocated_bytes"] == 40 * MIB
    assert {name: phase["count"] for name, phase in account["phases"].items()} == {
        "load": 1, "forward": 2, "backward": 2, "step": 2, "other": 2}  # fmt: skip


def test_named_phases_are_measured_in_steps_that_are_not_split(unsplit, allocator):
    allocator.allocate(10 * MIB)
    for peak in (30, 90):
        with unsplit.named_phase("train"):
            train_step(unsplit, allocator, 20, peak, 5)
    with unsplit.named_phase("generate"):
        allocator.spike(7 * MIB)
    assert peaks(unsplit)["train"] == 100
    assert peaks(unsplit)["generate"] == 17


def test_reading_memory_takes_its_share_of_the_time_and_no_more(probe, allocator, monkeypatch):
    monkeypatch.setattr(rank_probe, "_ALWAYS_READ", 0)
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(rank_probe.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(rank_probe.time, "perf_counter", lambda: clock.now)
    reads = []

    def stats(device):
        reads.append(clock.now)
        clock.now += 100e-6
        return Allocator.stats(allocator, device)

    monkeypatch.setattr(probe.cuda, "_read", stats)
    allocator.allocate(10 * MIB)
    probe.enter("forward")
    probe._budget._spare_seconds, probe._budget._decided, began = 0.0, clock.now, clock.now
    reads.clear()
    for _ in range(5000):
        train_step(probe, allocator, 20, 30, 5)
        clock.now += 0.02
    share = len(reads) * 100e-6 / (clock.now - began)
    assert 0.8 * rank_probe.SPLIT_SHARE < share < 1.2 * rank_probe.SPLIT_SHARE
    assert peaks(probe)["backward"] == 40


def test_making_engines_evaluating_generating_and_saving_are_phases(probe, allocator):
    def call(phase: str, mib: int) -> None:
        before = probe.begin(phase)
        allocator.spike(mib * MIB)
        probe.finish(before)

    allocator.spike(3 * MIB)
    call("init", 12)
    assert probe.phase == "other"
    train_step(probe, allocator, 20, 30, 5)
    evaluation = probe.begin("eval")
    allocator.spike(41 * MIB)
    probe.enter("eval")  # an engine's forward without gradients
    probe.enter("other")
    call("generate", 52)
    assert probe.phase == "eval"
    assert probe.begin("eval") is None  # evaluate calls evaluation_loop
    allocator.spike(42 * MIB)
    probe.finish(None)
    probe.finish(evaluation)
    call("save", 60)
    call("init", 13)
    assert probe.phase == "other"
    assert peaks(probe) == {"load": 3, "init": 13, "other": 0, "forward": 20, "backward": 30, "step": 5,
                            "eval": 42, "generate": 52, "save": 60}  # fmt: skip
    counts = {name: phase["count"] for name, phase in probe.account("tick")["phases"].items()}
    assert (counts["eval"], counts["init"], counts["save"]) == (1, 2, 1)


def test_a_reference_pass_within_a_forward_is_an_evaluation_and_the_forward_goes_on(probe, allocator):
    probe.enter("forward")
    allocator.spike(10 * MIB)
    before = probe.phase
    probe.enter("eval")
    allocator.spike(30 * MIB)
    probe.enter(before, again=True)
    allocator.spike(12 * MIB)
    probe.enter("backward")
    assert peaks(probe) == {"load": 0, "forward": 12, "eval": 30, "backward": 0}
    assert probe.account("tick")["phases"]["forward"]["count"] == 1


def test_training_within_an_evaluation_is_training(probe, allocator):
    evaluation = probe.begin("eval")
    train_step(probe, allocator, 20, 30, 5)
    assert probe.phase == "eval"
    probe.finish(evaluation)
    assert peaks(probe)["backward"] == 30


def test_an_error_is_told_in_the_phase_that_it_left(probe):
    train = probe.begin("init")
    probe.finish(train)
    error = RuntimeError("CUDA out of memory")
    outer = probe.begin("eval")
    inner = probe.begin("generate")
    probe.finish(inner, error)
    probe.finish(outer, error)
    assert probe.phase == "other"
    assert error_record(probe, error, "")["phase"] == "generate"
    assert error_record(probe, ValueError("another"), "")["phase"] == "other"
    probe.enter("forward")
    assert error_record(probe, error, "")["phase"] == "forward"  # it was caught, and training went on


RESETS = {
    "reset_peak_memory_stats": lambda: torch.cuda.reset_peak_memory_stats(0),
    "reset_max_memory_allocated": lambda: torch.cuda.reset_max_memory_allocated(0),
    "reset_max_memory_cached": lambda: torch.cuda.reset_max_memory_cached(0),
    "imported before us": lambda reset=torch.cuda.reset_peak_memory_stats: reset(0),
    "in torch._C": lambda: torch._C._cuda_resetPeakMemoryStats(0),
}


@pytest.mark.parametrize("how", RESETS)
def test_a_reset_by_others_loses_no_peak(probe, allocator, how):
    allocator.allocate(10 * MIB)
    probe.enter("forward")
    allocator.spike(50 * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        RESETS[how]()
    allocator.spike(5 * MIB)
    probe.enter("backward")
    assert peaks(probe) == {"load": 10, "forward": 60, "backward": 0}
    assert probe.account("tick")["peak_allocated_bytes"] == 60 * MIB


def test_the_script_reads_the_peak_since_its_own_reset(probe, allocator):
    """Our harvests reset the allocator's peaks; the script must not notice."""
    alone = Allocator()

    def both(call: str, *arguments: int) -> None:
        getattr(allocator, call)(*arguments)
        getattr(alone, call)(*arguments)

    both("allocate", 10 * MIB)
    train = [("forward", 30), ("backward", 40), ("step", 5), ("other", 1)]
    for number in range(3):
        for name, size in train:
            probe.enter(name)
            both("spike", size * MIB)
            assert torch.cuda.max_memory_allocated(0) == alone.peak[0]
            assert torch.cuda.max_memory_reserved(0) == alone.held_peak[0]
            flat = torch.cuda.memory_stats(0)
            assert flat["allocated_bytes.large_pool.peak"] == alone.peak[0]
            assert flat["allocated_bytes.all.current"] == alone.now[0]
            assert flat["max_split_size"] == -1
        if number == 1:
            torch.cuda.reset_peak_memory_stats(0)
            alone.reset(0)
    assert torch.cuda.max_memory_allocated(0) == 50 * MIB


def test_retries_survive_a_reset_of_the_totals(probe, allocator):
    allocator.allocate(MIB)
    allocator.retries[0] = 3
    torch.cuda.reset_accumulated_memory_stats(0)
    allocator.retries[0] = 2
    probe.enter("forward")
    assert probe.account("tick")["alloc_retries"] == 5


def test_named_phases_are_measured_beside_the_engines(probe, allocator):
    allocator.allocate(10 * MIB)
    with probe.named_phase("train"):
        train_step(probe, allocator, 20, 30, 5)
        with probe.named_phase("eval"):
            allocator.spike(70 * MIB)
    allocator.spike(3 * MIB)
    probe.enter("forward")
    assert peaks(probe) == {"load": 10, "train": 80, "forward": 30, "backward": 40, "step": 15, "other": 13,
                            "eval": 80}  # fmt: skip


def test_a_second_device_and_device_use_are_seen_by_the_ticker(probe, allocator):
    allocator.allocate(10 * MIB)
    probe.watch()
    allocator.allocate(60 * MIB, 1)
    probe.watch()
    account = probe.account("tick")
    assert account["cuda_device"] == 1
    assert account["peak_device_used_bytes"] == 60 * MIB
    assert (account["device_total_bytes"], account["device_name"]) == (100 * MIB, "GPU number 1")
    assert account["peak_allocated_bytes"] == 60 * MIB


def test_a_device_that_this_rank_does_not_use_is_not_touched(probe, allocator, monkeypatch):
    touched: list[int] = []
    cudart = SimpleNamespace(cudaMemGetInfo=lambda device: (touched.append(device) or 0, MIB))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    allocator.allocate(MIB, 1)
    probe.watch()
    assert touched == [1]  # asking about device 0 would make a context there


def test_nothing_is_read_before_the_script_initialises_cuda(probe, allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("would start the driver"))
    probe.watch()
    probe.enter("forward")
    account = probe.account("tick")
    assert account["peak_allocated_bytes"] is None


def test_a_forked_child_gets_pytorchs_own_functions_back(probe, allocator):
    probe.disown()
    assert torch._C._cuda_memoryStats == allocator.stats
    assert torch._C._cuda_resetPeakMemoryStats == allocator.reset


def test_gpu_allocations_count_as_movement(probe, allocator, monkeypatch):
    allocator.allocate(MIB)
    monkeypatch.setattr(probe.movement, "_main_thread", lambda: [(1, 2)])
    probe.watch()
    probe.watch()
    probe.movement.seconds -= 100
    probe.watch()
    assert probe.account("tick")["idle_seconds"] >= 100
    allocator.spike(MIB)
    probe.watch()
    assert probe.account("tick")["idle_seconds"] < 1


# -- out of memory --------------------------------------------------------------------------------


def test_an_oom_tells_what_was_asked_and_what_was_live(probe, allocator, monkeypatch):
    weight = torch.nn.Parameter(torch.zeros(1000, 50))
    segment = {
        "device": 0, "address": weight.data_ptr(),
        "blocks": [{"state": "active_allocated", "size": 200_192}, {"state": "inactive", "size": 10 * MIB},
                   {"state": "active_allocated", "size": 512}],
    }  # fmt: skip
    other = {"device": 1, "address": 1, "blocks": [{"state": "active_allocated", "size": 99 * MIB}]}
    monkeypatch.setattr(torch.cuda.memory, "memory_snapshot", lambda: [segment, other])
    observers = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    watch = OomWatch(probe, MemorySnapshots(probe))
    watch.attach(torch)

    class Engine:
        module = SimpleNamespace(named_parameters=lambda: [("lm_head.weight", weight)])

    engine = Engine()
    watch.know(lambda: engine)
    allocator.allocate(30 * MIB)
    allocator.free(10 * MIB)
    probe.position = (4, 4)
    probe.enter("backward")
    for _ in range(5):
        observers[0](0, 64 * MIB, 100 * MIB, 2 * MIB)
    assert len(probe.events) == 3  # a script that catches it again and again fills no file
    record = probe.events[0]
    assert (record["asked_bytes"], record["device_free_bytes"]) == (64 * MIB, 2 * MIB)
    assert (record["phase"], record["step"]) == ("backward", 5)
    assert (record["allocated_bytes"], record["fragmentation_bytes"]) == (20 * MIB, 10 * MIB)
    assert record["biggest_blocks"] == [
        {"bytes": 200_192, "shape": [1000, 50], "dtype": "float32", "name": "lm_head.weight"},
        {"bytes": 512},
    ]


@pytest.mark.parametrize(("free", "is_full"), [(3 * MIB, True), (2048 * MIB, False)])
def test_nccl_without_memory(probe, monkeypatch, free, is_full):
    """As seen on an H200 whose allocator had taken what was free before the first log."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 140 << 30))
    error = torch.distributed.DistBackendError(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Failed to CUDA calloc async 608 bytes"
    )
    record = error_record(probe, error, "")
    assert (record.get("out_of_memory"), record.get("memory")) == ((True, "gpu") if is_full else (None, None))
    log = RankLog(rank=0, path=Path("rank0"), records=[{**record, "time": 1.0}])
    end = rank_end(0, Evidence(expected_ranks=1, logs={0: log}), RankExit(rank=0, code=1))
    assert (end.oom is not None, end.consequence) == (is_full, not is_full)
    assert ("the GPU was full" in str(end.error)) is is_full


def test_what_counts_as_out_of_memory(probe):
    cuda = torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB"
    )
    with pytest.raises(RuntimeError, match="can't allocate memory") as host:
        torch.empty(1 << 55, dtype=torch.uint8)
    for error, memory, asked in ((cuda, "gpu", int(2.5 * (1 << 30))), (host.value, "host", 1 << 55)):
        record = error_record(probe, error, "")
        assert (record["out_of_memory"], record["memory"], record["asked_bytes"]) == (True, memory, asked)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("out of range"))
    assert asked_bytes("Tried to allocate 20.00 MiB") == 20 * MIB
    assert asked_bytes("no number here") is None


# -- growth ---------------------------------------------------------------------------------------


def test_a_leak_reaches_the_account_of_its_rank(probe, allocator, monkeypatch):
    monkeypatch.setattr(rank_probe, "_ALWAYS_READ", 1000)  # steps without duration leave no time to read
    allocator.allocate(MIB)
    for _ in range(80):
        allocator.allocate(MIB)
        train_step(probe, allocator, 3, 2, 1)
    (leak,) = probe.account("tick")["leaks"]
    assert leak["memory"] == "gpu"
    assert leak["bytes_per_step"] == pytest.approx(MIB)


def test_importing_the_probe_imports_nothing_heavy():
    heavy = "{'torch', 'pydantic', 'rich', 'yaml', 'numpy'}"
    code = f"import sys, zerokit.launcher.rank.process; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
