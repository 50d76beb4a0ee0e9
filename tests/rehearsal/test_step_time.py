"""The step time of a rehearsal: what is recorded, and that recording changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from zerokit.catalog import gpus
from zerokit.cli.rehearse import command
from zerokit.machine import measured
from zerokit.machine.measured import Measured
from zerokit.rehearsal import step_time
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.script.entry_points import Target
from zerokit.timing import operators
from zerokit.timing.host_speed import HostSpeed

SCRIPT = """
import torch

BATCH, WIDTH, WIDE = 512, 1024, 4096
layers = torch.nn.Linear(WIDTH, WIDE), torch.nn.ReLU(), torch.nn.Linear(WIDE, WIDTH)
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    total = sum(number for number in range(1000)) + len([float(number) for number in range(50)])
    batch = torch.randn(BATCH, WIDTH, device="cuda")
    torch.empty(100_000, dtype=torch.bfloat16).copy_(torch.ones(100_000))
    torch.empty(50_000, dtype=torch.bfloat16, device="cuda").copy_(torch.ones(50_000).pin_memory())
    pinned = torch.ones(60_000).pin_memory()
    torch.empty(60_000, dtype=torch.bfloat16, device="cuda").copy_(pinned, non_blocking=True)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


def request(folder: Path, **more: object) -> RehearsalRequest:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    target = Target(script=str(script), module=None, arguments=())
    return RehearsalRequest(target=target, gpu=gpus.load("h200"), gpus=1, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "operators.json"
    done = rehearse(request(folder, operators=path))
    assert done.stopped is None
    return folder, done, list(operators.from_rows(json.loads(path.read_text())))


def test_one_step_is_recorded_with_its_arithmetic(recorded):
    _, _, events = recorded
    products = [event for event in events if event.flops]
    # two layers forward, two weights and one input backward: each 2·512·1024·4096
    assert [event.flops for event in products] == [2.0 * 512 * 1024 * 4096] * 5
    assert [event.thread == 0 for event in products] == [True, True, False, False, False]
    weight = next(event for event in products if event.thread == 0)
    assert weight.shapes == ((1, 512, 4096, 1024),)
    assert weight.bytes_written == 4 * 512 * 4096
    waits = Counter(event.name for event in events if event.synchronizes)
    assert waits == {"_local_scalar_dense": 1, "copy_": 1}


def test_a_copy_on_the_host_reads_its_source_alone(recorded):
    _, _, events = recorded
    copied, _ = (event for event in events if event.kind == operators.HOST and event.name == "copy_")
    assert (copied.bytes_read, copied.bytes_written) == (400_000, 200_000)


def test_a_copy_to_the_gpu_casts_on_the_host_unless_it_is_asynchronous(recorded):
    _, _, events = recorded
    kinds = (operators.HOST, operators.TO_DEVICE, operators.KERNEL)
    copies = [event for event in events if event.name == "copy_" and event.kind in kinds][1:]
    assert [(event.kind, event.layout, event.bytes_read) for event in copies] == [
        (operators.HOST, operators.TEMPORARY, 4 * 50_000),
        (operators.TO_DEVICE, operators.PAGEABLE, 2 * 50_000),
        (operators.TO_DEVICE, "", 4 * 60_000), (operators.KERNEL, operators.CAST, 4 * 60_000),
    ]  # fmt: skip


def test_python_between_operators_is_counted(recorded):
    _, _, events = recorded
    randn = next(event for event in events if event.name == "randn")
    # sum, range's and the list's calls are the script's own: 50 of float, which is a type, are none, nor are
    # the thousand times that a generator goes on
    assert 0 < randn.python_calls + randn.c_calls < 60
    inside = [event for event in events if event.thread != 0]
    # autograd's own thread runs no Python here
    assert sum(event.python_calls for event in inside) == 0


def test_recording_does_not_change_the_memory(recorded):
    folder, done, _ = recorded
    without = rehearse(request(folder, step_time=False))
    assert without.step_seconds is None
    assert without.ranks == done.ranks


def test_the_same_script_takes_the_same_time_again(recorded):
    folder, done, _ = recorded
    again = rehearse(request(folder))
    assert again.step_seconds == pytest.approx(done.step_seconds, rel=1e-9)


def test_the_answer_is_a_range_until_the_host_is_known(recorded):
    folder, done, _ = recorded
    said = json.loads(json.dumps(done.to_dict()))
    low, high = said["step_seconds_range"]
    assert low < said["step_seconds"] < high
    assert said["step"]["paced_by"] == "host" and said["step"]["parts"]["gpu product"] > 0
    known = rehearse(request(folder, host=HostSpeed(factor=0.5, source="a test")))
    assert known.step_seconds_range == (known.step_seconds, known.step_seconds)
    assert known.step_seconds < done.step_seconds


def test_too_few_steps_give_no_time(tmp_path):
    short = request(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(6)", "range(2)"))
    done = rehearse(short)
    assert done.step_seconds is None
    assert any("a step is timed from the third on, and the script took 2" in note for note in done.notes)


PROBED = Measured(
    host="node1", device="cuda", device_name="NVIDIA H200", ranks=8, torch_version="2.13.0",
    measured_at="2026-01-01T00:00:00+00:00", matmul_flops=700e12, matmul_precision="bf16",
    memory_copy_bytes_per_second=4.24e12, host_to_device_bytes_per_second=18.7e9,
    device_to_host_bytes_per_second=10.9e9, cpu_adam_parameters_per_second=4e9, cpu_adam_kind="deepspeed",
    collectives=(), host_factor=0.7,
)  # fmt: skip


def test_a_probe_counts_where_the_machine_has_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert step_time.machine(gpus.load("h200")) == (None, None)
    measured.save(PROBED, measured.path())
    host, rates = step_time.machine(gpus.load("h200"))
    assert host is not None and host.factor == 0.7
    assert rates is not None and rates.matmul_flops == 700e12
    assert rates.host_to_device_bytes_per_second == 8 * 18.7e9  # a node's
    assert step_time.machine(gpus.load("a100-80gb")) == (None, None)


def test_measurements_of_before_the_probe_are_still_read():
    old = {name: value for name, value in PROBED.as_dict().items() if name != "host_factor"}
    assert measured.from_dict(old).host_factor is None
    with pytest.raises(ValueError, match="positive"):
        measured.from_dict({**old, "host_factor": 0.0})


def test_a_host_speed_that_cannot_be_is_refused():
    done = CliRunner().invoke(command, ["--host-speed", "0", "train.py"])
    assert done.exit_code == 2 and "--host-speed" in done.output
