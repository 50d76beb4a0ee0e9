"""What recorded snapshots tell, against counters, planted leaks and sizes that are known."""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.snapshots import TRUTH, recorded, unpickled, written
from zerokit.errors import InputError
from zerokit.snapshots.explanation import DeviceMemory, Explanation, explain, explain_file
from zerokit.snapshots.sections import answer, sections

WHOLE = (
    "plain", "plain-long", "checkpointing", "lora", "trainer", "zero-2", "zero-3", "compiled", "generation",
    "expandable", "launched-zero-1",
)  # fmt: skip
LEAKS = [name for name in TRUTH if name.startswith("leak-")]
_BATCH_BYTES = 1 << 15


@functools.cache
def _device(name: str) -> DeviceMemory:
    (device,) = explain_file(recorded(name)).devices
    return device


@pytest.mark.parametrize("name", WHOLE)
def test_the_peak_is_given_to_modules_and_phases(name: str) -> None:
    device = _device(name)
    assert device.memory.peak_allocated_bytes == TRUTH[name]["peak_allocated"]
    assert device.given_bytes >= 0.95 * device.memory.peak_allocated_bytes
    assert device.lined_bytes >= 0.95 * device.memory.peak_allocated_bytes


@pytest.mark.parametrize("name", WHOLE)
def test_peaks_by_phase_are_those_between_the_calls(name: str) -> None:
    phases, truth = _device(name).memory.phases, TRUTH[name]["phases"]
    for phase in ("init", "forward", "backward", "step", "generate"):
        if phase in truth:
            assert phases[phase] == truth[phase]
    if truth.get("load"):  # a first batch is loaded, too, and read beside the model
        assert 0 <= phases["load"] - truth["load"] <= 2 * _BATCH_BYTES


def test_what_is_live_has_the_sizes_of_the_model() -> None:
    for name in ("plain", "trainer", "checkpointing"):
        held = Counter[str]()
        for row in _device(name).memory.at_peak:
            held[row.what] += row.bytes
        truth = TRUTH[name]
        assert held["model"] == pytest.approx(truth["weights"], rel=0.02)
        assert held["optimizer states"] == pytest.approx(truth["optimizer_states"], rel=0.02)
        assert held["cuBLAS workspace"] == 2 * (32 << 20)  # forward's thread and backward's


def test_gradients_that_backward_made_are_given_to_the_line_that_they_are_of() -> None:
    """The head's are whole at the peak: 512 × 4,000 weights and 4,000 biases in fp32."""
    rows = [row for row in _device("plain").memory.at_peak if row.what == "gradients"]
    assert [(row.module, row.location, row.bytes) for row in rows] == [
        ("Classifier", "/job/jobs.py:142", 512 * 4000 * 4 + 32 * 512)
    ]


def test_modules_are_classes_where_their_source_is_known() -> None:
    modules = {row.module for row in _device("trainer").memory.at_peak}
    assert {"LlamaMLP", "LlamaAttention", "LlamaRMSNorm", "Adam", "Module.to"} <= modules
    assert {row.module for row in _device("plain").memory.at_peak} >= {"Block", "Classifier"}


def test_lines_are_the_users_else_those_of_the_library_that_called_pytorch() -> None:
    assert {row.location.partition(":")[0] for row in _device("compiled").memory.at_peak} == {"/job/jobs.py"}
    recomputed = [row for row in _device("checkpointing").memory.at_peak if row.module == "LlamaMLP"]
    assert {row.location.partition(":")[0] for row in recomputed} == {
        "transformers/models/llama/modeling_llama.py"
    }


def test_modules_are_files_where_their_source_is_not_known(tmp_path: Path) -> None:
    snapshot = unpickled("plain")
    del snapshot["zerokit"]
    (device,) = explain_file(written(tmp_path / "plain.pickle", snapshot)).devices
    assert "/job/jobs.py" in {row.module for row in device.memory.at_peak}
    assert device.given_bytes == device.memory.peak_allocated_bytes


@pytest.mark.parametrize("name", LEAKS)
def test_planted_leaks_are_found_with_their_line(name: str) -> None:
    (line,) = TRUTH[name]["planted"].values()
    found = {stay.location: stay for stay in _device(name).stays}
    assert found[f"/job/jobs.py:{line}"].bytes_per_step > 0
    if name not in ("leak-losses", "leak-exceptions"):  # whose graph and arguments stay as well
        assert len(found) == 1


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_stays_where_nothing_was_planted(name: str) -> None:
    assert _device(name).stays == ()


def test_a_failed_allocation_says_why_and_what_to_do() -> None:
    failed = _device("oom").out_of_memory
    assert failed is not None
    assert failed.asked_bytes == TRUTH["oom"]["asked"]
    assert failed.driver_free_bytes == TRUTH["oom"]["device_free"]
    assert (failed.phase, failed.module) == ("forward", "Block")
    assert "batch" in failed.fix
    assert "set_per_process_memory_fraction" in failed.reason


def test_a_failed_allocation_without_stacks_is_told_without_phase(tmp_path: Path) -> None:
    snapshot = unpickled("oom")
    for event in snapshot["device_traces"][0]:
        event["frames"] = []
    told = explain_file(written(tmp_path / "oom.pickle", snapshot))
    assert answer(told)[0] == "GPU 0 had no room for 0.12 GiB"


def test_free_memory_in_pieces_is_told_from_none() -> None:
    failed = _device("oom-fragmented").out_of_memory
    assert failed is not None
    assert failed.free_bytes == 70 * (4 << 20) >= failed.asked_bytes > failed.largest_free_bytes == 4 << 20
    assert "expandable_segments" in failed.fix


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("without-history", "there is no history"),
        ("state-only", "there is no history"),
        ("without-stacks", "there are no stacks"),
        ("cut-short", "max_entries had cut"),
        ("begun-late", "recording began later"),
    ],
)
def test_what_a_file_does_not_tell_is_said(name: str, words: str) -> None:
    told = explain_file(recorded(name))
    assert words in told.notes[0]
    (device,) = told.devices
    assert device.given_bytes < 0.95 * device.memory.peak_allocated_bytes
    assert any("no known phase and module" in line for section in sections(told) for line in section.lines)


@pytest.mark.parametrize("own", [5, {"scopes": 5}, {"scopes": {"x.py": 5}}, {"scopes": {"x.py": {"a": "b"}}}])
def test_damaged_names_of_classes_are_refused(tmp_path: Path, own: object) -> None:
    snapshot = {**unpickled("plain"), "zerokit": own}
    with pytest.raises(InputError, match="classes are not named"):
        explain_file(written(tmp_path / "plain.pickle", snapshot))


def test_two_snapshots_tell_what_grew() -> None:
    told = explain(recorded("plain"), recorded("plain-long"))
    assert told.grown is not None
    grown = told.grown[0][0]
    assert (grown.what, grown.module) == ("activations", "Block")
    assert explain(recorded("plain"), recorded("plain")).grown == {0: ()}


def test_a_rehearsal_stands_beside_what_was_seen(tmp_path: Path) -> None:
    phases = {
        "load": TRUTH["plain"]["phases"]["load"],
        "forward": 292765184,
        "backward": 300000000,
        "eval": 1,
    }
    path = tmp_path / "rehearsal.json"
    path.write_text(
        json.dumps({"schema": "zerokit.rehearsal/1", "complete": True, "ranks": [{"phases": phases}]})
    )
    told = explain(recorded("plain"), rehearsal=path)
    rows = {row[0]: row[2] for row in next(iter(sections(told))).rows}
    assert rows["backward"] == "← peak  predicted 0.28 GiB, +6.6% seen"
    assert rows["step"] == "not rehearsed"
    assert "not seen" in rows["eval"]
    path.write_text(path.read_text().replace("292765184", "0"))
    rows = {row[0]: row[2] for row in next(iter(sections(explain(recorded("plain"), rehearsal=path)))).rows}
    assert rows["forward"] == "predicted 0 B"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[" * 100_000,
        *(
            f'{{"schema": "zerokit.rehearsal/1", "complete": true, "ranks": [{{"phases": {phases}}}]}}'
            for phases in ("{}", "[1]", '{"forward": Infinity}', '{"forward": -1}', '{"forward": "1"}')
        ),
    ],
)
def test_what_is_no_complete_rehearsal_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rehearsal.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a complete result of `zerokit rehearse"):
        explain(recorded("plain"), rehearsal=path)


def test_a_gpu_is_compared_with_its_own_or_with_none(tmp_path: Path) -> None:
    """Ranks of one machine write a snapshot each, of a GPU each; a file may have several."""
    first, second = unpickled("plain"), unpickled("plain-long")
    for segment in second["segments"]:
        segment["device"] = 1
    other = {**second, "device_traces": [[], *second["device_traces"]]}
    both = {
        **first,
        "segments": first["segments"] + second["segments"],
        "device_traces": first["device_traces"] + second["device_traces"],
    }
    of_rank, of_both = written(tmp_path / "rank.pickle", other), written(tmp_path / "both.pickle", both)
    same_gpu = explain(recorded("plain"), recorded("plain-long"))
    assert explain(recorded("plain"), of_rank).grown == {1: same_gpu.grown[0]}  # type: ignore[index]
    told = explain(recorded("plain"), of_both)
    assert told.grown == {0: ()}
    assert [(note.id, note.level) for note in told.notes] == [("snapshot-not-compared", "warning")]
    assert sum("more than in" in section.title for section in sections(told)) == 1


def test_what_the_earlier_of_two_does_not_tell_is_said_too() -> None:
    told = explain(recorded("without-history"), recorded("plain"))
    (note,) = told.notes
    assert "without-history.pickle: there is no history" in note
    assert told.to_dict()["notes"] == [note.to_dict()]
    assert told.to_dict()["before"]["notes"][0]["id"] == note.id == "snapshot-without-history"


def test_the_answer_begins_with_what_failed_or_grows() -> None:
    assert answer(explain_file(recorded("oom")))[0].startswith("GPU 0 had no room for 0.12 GiB in forward")
    assert "/job/jobs.py:563" in answer(explain_file(recorded("leak-average")))[-1]
    assert answer(Explanation(path="x", devices=())) == []


@pytest.mark.parametrize("name", ["oom", "cut-short"])
def test_a_damaged_file_is_explained_or_refused(name: str, tmp_path: Path) -> None:
    draw, whole = random.Random(7), recorded(name).read_bytes()
    path = tmp_path / "damaged.pickle"
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 2, 5))):
            damaged[draw.randrange(2, len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):
            told = explain_file(path)
            assert list(sections(told)) or not told.devices
