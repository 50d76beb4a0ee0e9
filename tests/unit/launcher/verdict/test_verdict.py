"""What counts as which outcome; secrets; folders; hangs, from made-up observations."""

from __future__ import annotations

import io
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import pytest
from rich.console import Console

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.evidence import Evidence, RankExit
from zerokit.launcher.verdict.report import build_report
from zerokit.launcher.verdict.verdict import judge, launcher_status, training_findings
from zerokit.report.render import print_report
from zerokit.report.schema import Outcome
from zerokit.report.words import failure_place, raised_at

T = 1000.0  # when the first rank of each case fails, in Unix seconds


def log(rank: int, *records: dict[str, Any], steps: int = 5) -> RankLog:
    """What a rank wrote of itself; it goes on for as long as there is no ``end``."""
    known = {"rank": rank, "pid": 100 + rank, "time": T - 1}
    start = {**known, "type": "start", "host": "h", "world_size": 2}
    tick = {**known, "type": "tick", "steps": steps, "phase": "forward"}
    later = [{**known, "time": T, "steps": steps, **record} for record in records]
    return RankLog(rank=rank, path=Path(f"rank-{rank:05d}.jsonl"), records=[start, tick, *later])


def finished(rank: int, **changed: Any) -> RankLog:
    return log(rank, {"type": "end", "state": "finished", "exit_code": 0, **changed})


def raised(rank: int, text: str = "ValueError: no", at: float = T, **changed: Any) -> RankLog:
    """A rank whose script ended with an exception at ``at``."""
    error = {"type": "error", "error": text, "traceback": f"Traceback …\n{text}", "time": at, **changed}
    return log(rank, error, {"type": "end", "state": "failed", "exit_code": 1, "time": at})


def running(*ranks: int) -> dict[int, RankLog]:
    """Ranks that left no last line."""
    return {rank: log(rank) for rank in ranks}


def evidence(**changed: Any) -> Evidence:
    values: dict[str, Any] = {
        "expected_ranks": 2,
        "logs": {0: finished(0), 1: finished(1)},
        "exits": [exit_(0, 0), exit_(1, 0)],
        "host": "h",
        "launcher_code": 0,
        "stop_ordered": False,
    }
    return Evidence(**values | changed)


def exit_(rank: int, code: int | None, signal: int | None = None, at: float = T) -> RankExit:
    return RankExit(rank=rank, host="h", code=code, signal=signal, at=at)


def overcame(rank: int) -> RankLog:
    return log(rank, {"type": "oom", "step": 2}, {"type": "end", "state": "finished", "exit_code": 0})


def stopped(rank: int) -> RankLog:
    return log(rank, {"type": "end", "state": "stopped", "exit_code": 0})


@pytest.mark.parametrize(
    ("changed", "outcome", "code"),
    [
        ({}, Outcome.OK, 0),
        # neither a process that ended well nor a file that says so is enough by itself
        ({"logs": {0: finished(0)}}, Outcome.LAUNCHER_LOST, 12),
        ({"logs": {}}, Outcome.LAUNCHER_LOST, 12),
        ({"logs": {0: finished(0), **running(1)}}, Outcome.LAUNCHER_LOST, 12),
        ({"exits": [exit_(0, 0), exit_(1, 3)], "launcher_code": 3}, Outcome.RANK_FAILED, 10),
        ({"exits": [exit_(0, 0), exit_(1, None, 9)], "launcher_code": 247}, Outcome.RANK_FAILED, 10),
        ({"logs": {0: finished(0), 1: raised(1)}, "exits": []}, Outcome.RANK_FAILED, 10),
        ({"logs": {0: finished(0), 1: raised(1, out_of_memory=True)}}, Outcome.OOM, 10),
        # an allocation that the script overcame; and one after which it left
        ({"logs": {0: finished(0), 1: overcame(1)}}, Outcome.OK, 0),
        ({"logs": {0: finished(0), 1: log(1, {"type": "oom", "step": 6})}, "exits": [exit_(1, 1)]},
         Outcome.OOM, 10),
        ({"logs": {0: finished(0), 1: log(1, {"type": "oom", "step": 2})}, "exits": [exit_(1, 1)]},
         Outcome.RANK_FAILED, 10),
        ({"oom_kills": 1, "logs": running(0, 1), "exits": [exit_(1, None, 9)]}, Outcome.OOM, 10),
        ({"launcher_lost": "gone", "exits": [], "logs": running(0, 1)}, Outcome.LAUNCHER_LOST, 12),
        ({"launcher_code": 2, "exits": [], "logs": {}}, Outcome.LAUNCHER_LOST, 12),
        # the launcher's own code tells of a rank whose end nobody saw
        ({"launcher_code": 247, "exits": [], "logs": {0: finished(0), **running(1)}},
         Outcome.RANK_FAILED, 10),
        ({"hung": "rank 1", "exits": [exit_(1, None, 9)]}, Outcome.HUNG, 11),
        ({"interrupted_by": 15, "hung": "x"}, Outcome.INTERRUPTED, 143),
        ({"logs": {0: stopped(0), 1: stopped(1)}, "stop_ordered": True}, Outcome.STOPPED, 0),
        ({"logs": {0: stopped(0), 1: stopped(1)}, "stop_ordered": None}, Outcome.STOPPED, 0),
        # a step limit that nobody ordered, or that only one rank reached, is no good end
        ({"logs": {0: stopped(0), 1: stopped(1)}}, Outcome.LAUNCHER_LOST, 12),
        ({"logs": {0: stopped(0), 1: finished(1)}, "stop_ordered": True}, Outcome.LAUNCHER_LOST, 12),
        ({"logs": {0: stopped(0), 1: raised(1)}, "stop_ordered": True}, Outcome.RANK_FAILED, 10),
        ({"timed_out": "not done within 5 s", "exits": []}, Outcome.TIMED_OUT, 11),
        ({"interrupted_by": 2, "timed_out": "not done within 5 s"}, Outcome.INTERRUPTED, 130),
        ({"interrupted_by": 2, "exits": [exit_(1, None, 9, at=T + 1)], "stopped_at": T},
         Outcome.INTERRUPTED, 130),
    ],
)  # fmt: skip
def test_outcomes(changed: dict[str, Any], outcome: Outcome, code: int) -> None:
    verdict = judge(evidence(**changed))
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)


@pytest.mark.parametrize(
    ("seen", "first", "states"),
    [
        # one rank leaves with a bare exit code, and a moment later another crashes: the crash tells more,
        # though zerokit had begun to end the run in between
        ({"exits": [exit_(0, 1), exit_(3, None, SIGABRT, at=T + 0.1)], "stopped_at": T + 0.01},
         3, "failed lost lost failed"),
        ({"exits": [exit_(0, 1), exit_(3, None, SIGSEGV, at=T + 0.1)], "stopped_at": T + 0.01},
         3, "failed lost lost failed"),
        # … but not when its own file says that it took zerokit's SIGTERM, or much later
        ({"exits": [exit_(0, 1), exit_(3, None, SIGABRT, at=T + 0.1)], "stopped_at": T + 0.01,
          "logs": {**running(0, 1, 2), 3: log(3, {"type": "end", "state": "terminated", "signal": 15})}},
         0, "failed lost lost terminated"),
        ({"exits": [exit_(0, 1), exit_(3, None, SIGABRT, at=T + 2)], "stopped_at": T + 0.01},
         0, "failed lost lost terminated"),
        # nor when its last words are those of NCCL's watchdog: that is what a peer's end looks like
        ({"exits": [exit_(0, 1), exit_(3, None, SIGABRT, at=T + 0.1)], "stopped_at": T + 0.01,
          "last_words": {3: "terminate called after throwing an instance of 'c10::DistBackendError'"}},
         0, "failed lost lost terminated"),
        # SIGABRT may be a victim's, an exception that was recorded is the script's own
        ({"exits": [exit_(0, 1), exit_(3, None, SIGABRT, at=T + 0.1)],
          "logs": {0: raised(0), **running(1, 2, 3)}}, 0, "failed lost lost failed"),
        # but no peer's failure makes a SIGSEGV or SIGKILL
        ({"exits": [exit_(0, 1), exit_(3, None, SIGSEGV, at=T + 0.1)],
          "logs": {0: raised(0), **running(1, 2, 3)}}, 3, "failed lost lost failed"),
        # the moment of the exception counts, not that at which its process was gone at last
        ({"exits": [exit_(3, None, SIGSEGV, at=T + 1), exit_(0, 1, at=T + 3)],
          "logs": {0: raised(0), **running(1, 2, 3)}}, 0, "failed lost lost failed"),
        # broken connections are consequences, however early they were noticed
        ({"exits": [exit_(0, 1), exit_(1, 1), exit_(2, None, 9, at=T + 4)],
          "logs": {0: raised(0, "RuntimeError: Connection closed by peer"),
                   1: raised(1, "torch.distributed.DistBackendError: NCCL error"), **running(2, 3)}},
         2, "terminated terminated failed lost"),
        # a TypeError is none, whatever its name holds
        ({"exits": [exit_(0, 1), exit_(1, 1)],
          "logs": {0: raised(0, "TypeError: 'NoneType' object is not callable"),
                   1: raised(1, "RuntimeError: Connection closed by peer"), **running(2, 3)}},
         0, "failed terminated lost lost"),
        # a SIGKILL before zerokit sent any is somebody else's; a later one is zerokit's
        ({"exits": [exit_(0, 1), exit_(3, None, SIGKILL, at=T + 0.1)], "stopped_at": T, "killed_at": T + 1},
         3, "failed lost lost failed"),
        ({"exits": [exit_(0, 1), exit_(3, None, SIGKILL, at=T + 0.1)], "stopped_at": T, "killed_at": T},
         0, "failed lost lost terminated"),
        ({"exits": [exit_(0, 1), exit_(3, None, SIGTERM, at=T + 0.1)], "stopped_at": T, "killed_at": T + 1},
         0, "failed lost lost terminated"),
        # a rank that had said its own exit code failed by itself, whatever ended what was left of it
        ({"exits": [exit_(0, 0), exit_(3, None, SIGTERM, at=T + 0.1)], "stopped_at": T + 0.05,
          "logs": {**running(1, 2), 0: finished(0),
                   3: log(3, {"type": "end", "state": "failed", "exit_code": 7})}},
         3, "finished lost lost failed"),
        # out of memory tells most of all
        ({"exits": [exit_(0, None, SIGSEGV), exit_(3, 1, at=T + 0.2)],
          "logs": {**running(0, 1, 2), 3: raised(3, "OutOfMemoryError", at=T + 0.2, out_of_memory=True)}},
         3, "failed lost lost failed"),
    ],
)  # fmt: skip
def test_the_first_failure(seen: dict[str, Any], first: int, states: str) -> None:
    verdict = judge(
        evidence(**{"expected_ranks": 4, "logs": running(0, 1, 2, 3), "launcher_code": None} | seen)
    )
    assert verdict.first_failure is not None and verdict.first_failure.rank == first
    assert [str(end.state) for end in verdict.ends] == states.split()
    assert verdict.why.startswith(f"rank {first} on h ")


def test_terminal_report_and_exit_code_name_one_rank() -> None:
    observed = evidence(
        expected_ranks=4, logs=running(0, 1, 2, 3), launcher_code=None,
        exits=[exit_(0, 1, at=10.0), exit_(3, None, SIGABRT, at=10.1)],
    )  # fmt: skip
    verdict = judge(observed)
    report = build_report(observed, verdict=verdict)
    assert verdict.why == report.why == "rank 3 on h was killed by SIGABRT"
    assert report.first_failure is not None and report.first_failure.rank == 3
    assert (report.outcome, report.exit_code) == (verdict.outcome, verdict.exit_code)


def test_a_lost_launcher_is_not_its_ranks_fault() -> None:
    """Ranks whose store was in the launcher fail with it; one that failed before it is the cause."""
    exits = [exit_(0, 1, at=T + 0.5), exit_(1, 1, at=T + 0.5)]
    broken = {rank: raised(rank, "DistNetworkError: TCPStore", at=T - 0.1) for rank in (0, 1)}
    lost = {"launcher_lost": "the launcher was lost", "stopped_at": T, "exits": exits}
    assert judge(evidence(logs=broken, **lost)).outcome is Outcome.LAUNCHER_LOST
    own = {0: raised(0, at=T - 5), 1: broken[1]}
    verdict = judge(evidence(logs=own, **lost))
    assert verdict.outcome is Outcome.RANK_FAILED and "rank 0" in verdict.why


@pytest.mark.parametrize(
    ("code", "status"), [(247, -9), (241, -15), (1, 1), (0, 0), (-9, -9), (127, 127), (245, -11)]
)
def test_deepspeeds_exit_codes(code: int, status: int) -> None:
    assert launcher_status(code) == status


@pytest.mark.parametrize(
    ("phase", "step", "named"),
    [
        ("backward", 6, "rank 1 on h, in backward of step 6"),
        # after the last of five steps there is no sixth
        ("other", 5, "rank 1 on h, in other after step 5"),
        ("eval", 5, "rank 1 on h, in eval after step 5"),
        ("load", None, "rank 1 on h, in load"),
    ],
)
def test_a_failure_names_no_step_that_never_was(phase: str, step: int | None, named: str) -> None:
    observed = evidence(logs={0: log(0), 1: raised(1, phase=phase, step=6)}, exits=[exit_(1, 1)])
    failure = build_report(observed).first_failure
    assert failure is not None and (failure.step, failure_place(failure)) == (step, named)
    killed = {"logs": {0: log(0), 1: log(1, {"type": "tick", "phase": phase})}, "exits": [exit_(1, None, 9)]}
    first = judge(evidence(**killed)).first_failure
    assert first is not None and first.step == step


def test_ranks_that_fail_with_one_error_are_told_together() -> None:
    both = {0: raised(0, at=T + 0.1), 1: raised(1)}
    why = judge(evidence(logs=both, exits=[exit_(1, 1), exit_(0, 1)])).why
    assert why == "rank 1 on h exited with code 1; rank 0 failed with the same error"
    other = {0: raised(0, "KeyError: 'a'", at=T + 0.1), 1: raised(1)}
    assert judge(evidence(logs=other, exits=[exit_(1, 1)])).why == "rank 1 on h exited with code 1"


@pytest.mark.parametrize(("error", "later", "first"), [("ValueError: no", 1, 0), ("ValueError: no", 60, 1),
                                                       ("KeyError: 'a'", 0.1, 1)])  # fmt: skip
def test_of_ranks_that_fail_alike_the_one_that_was_told_first_is_first(
    error: str, later: float, first: int
) -> None:
    """Rank 1 raised its error first, and the process of rank 0 ended first."""
    both = {0: raised(0, error, at=T + later), 1: raised(1)}
    verdict = judge(evidence(logs=both, exits=[exit_(0, 1, at=T + later), exit_(1, 1, at=T + later + 0.1)]))
    assert verdict.first_failure is not None and verdict.first_failure.rank == first
    assert verdict.why.startswith(f"rank {first} on h exited with code 1")


TRACEBACK = """Traceback (most recent call last):
  File "/home/me/old.py", line 3, in first
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 37, in <module>
    main()
  File "/home/me/train.py", line 25, in main
    trainer.train()
"""


@pytest.mark.parametrize(
    ("frames", "location"),
    [
        ("", "raised at /home/me/train.py:25, in main"),
        ('  File "/v/lib/python3.12/site-packages/torch/nn.py", line 9, in forward\n',
         "raised in a library, called from /home/me/train.py:25, in main"),
    ],
)  # fmt: skip
def test_a_failure_names_the_scripts_own_line(frames: str, location: str) -> None:
    failed = raised(1, traceback=TRACEBACK + frames + "ValueError: no")
    report = build_report(evidence(logs={0: log(0), 1: failed}, exits=[exit_(1, 1)]))
    assert report.first_failure is not None and raised_at(report.first_failure) == location
    console = Console(record=True, file=io.StringIO(), width=160)
    print_report(report, console, traceback=False)
    assert location in console.export_text()


def training_problems(known: dict[int, RankLog]) -> list[str]:
    return [finding.text for finding in training_findings(known)]


def logs(skipped: int, steps: int) -> dict[int, RankLog]:
    end = {"type": "end", "rank": 0, "steps": steps, "skipped_steps": skipped}
    return {0: RankLog(rank=0, path=Path("rank-00000.jsonl"), records=[end])}


@pytest.mark.parametrize(("skipped", "steps"), [(0, 10), (2, 5), (5, 100)])
def test_a_healthy_run(skipped: int, steps: int) -> None:
    assert training_problems(logs(skipped, steps)) == []


def test_all_steps_skipped() -> None:
    (text,) = training_problems(logs(10, 10))
    assert "all 10 optimizer steps were skipped (rank 0): the weights never changed" in text


def test_many_steps_skipped() -> None:
    (text,) = training_problems(logs(4, 10))
    assert "4 of 10 optimizer steps were skipped" in text


@pytest.mark.parametrize(
    ("learning", "text"),
    [
        ({"same": 12}, "the loss is the same to the last digit (rank 0, 12 backward passes)"),
        ({"same": 12, "zero_gradients": 12}, "the gradients are zero (rank 0, the last 12 steps)"),
        ({"not_finite": 3}, "the loss is not finite (rank 0, the last 3 backward passes)"),
    ],
)
def test_what_is_seen_of_the_training(learning: dict[str, int], text: str) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    (told,) = training_problems(known)
    assert told.startswith(text)


@pytest.mark.parametrize(
    ("learning", "certain"),
    [
        ({"losses": 12, "not_finite": 12}, True),
        ({"losses": 12, "not_finite": 3}, True),  # and each rank's, as what is lost is lost on all
        ({"losses": 12, "norms": 12, "zero_gradients": 12}, True),
        ({"losses": 90, "norms": 90, "zero_gradients": 30}, False),  # rewards are alike in the end (GRPO)
        ({"losses": 12, "same": 12, "norms": 12, "same_norms": 12}, True),
        ({"losses": 12, "same": 12, "norms": 12, "same_norms": 1}, False),  # a loss that is 0 on its samples
        ({"losses": 90, "same": 12, "norms": 90, "same_norms": 12}, False),
        ({"losses": 12, "same": 12}, False),  # no norm is computed
        ({"losses": 12, "same": 12, "weights": 12, "same_weights": 12}, True),  # ZeRO-0 in fp32
        ({"losses": 12, "same": 12, "weights": 12, "same_weights": 1}, False),
        ({"losses": 12, "rates": 12, "zero_rates": 12}, True),
    ],
)
def test_only_what_is_so_in_nearly_the_whole_run_is_no_success(
    learning: dict[str, int], certain: bool
) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    (finding,) = training_findings(known)
    assert finding.is_certain is certain


def test_a_rate_that_is_warmed_up_is_none_of_zero() -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = {"losses": 12, "rates": 12, "zero_rates": 3}
    assert training_findings(known) == []


CLIPS = {"call": "clip_grad_norm_(0.1)", "limit": 0.1, "ran": 1.0, "is_norm": True, "location": "train.py:9"}


@pytest.mark.parametrize(
    ("most_norm", "more", "accepted", "certain"),
    [
        (0.5, {}, False, True),
        (0.05, {}, False, False),  # neither would have clipped
        (0.5, {"limit": 9.0, "ran": 1.0}, False, False),
        (5.0, {"limit": 9.0, "ran": 0.0}, False, False),
        (0.5, {"by_trainer": True}, False, False),  # a Trainer's default, not the script's word
        (0.5, {}, True, False),
    ],
)
def test_clipping_that_does_nothing_counts_where_a_norm_reached_it(
    most_norm: float, more: dict[str, object], accepted: bool, certain: bool
) -> None:
    known = logs(0, 12)
    known[0].records[0] |= {"learning": {"most_norm": most_norm}, "training": {"clipping": CLIPS | more}}
    (finding,) = training_findings(known, is_accepted=accepted)
    assert finding.what.startswith("train.py:9: clip_grad_norm_(0.1) does nothing under DeepSpeed")
    assert finding.is_certain is certain


@pytest.mark.parametrize("facts", [5, {"lost": 5}, {"clipping": {"call": []}}, {"saves": {}}, {"short": {}}])
def test_a_damaged_account_tells_nothing(facts: object) -> None:
    known = logs(0, 12)
    known[0].records[0]["training"] = facts
    assert training_findings(known) == []


@pytest.mark.parametrize("learning", [{"same": 5}, {"not_finite": 1}, {"same": "x"}, 5])
def test_too_little_to_tell(learning: object) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    assert training_problems(known) == []


def _two_ranks(*learning: dict[str, object]) -> dict[int, RankLog]:
    return {
        rank: RankLog(rank=rank, path=Path("x.jsonl"), records=[{"type": "tick", "learning": known}])
        for rank, known in enumerate(learning)
    }


def test_ranks_that_read_the_same_batches() -> None:
    known = {"first_losses": "ab", "data_parallel": 2}
    (told,) = training_problems(_two_ranks(known, known))
    assert told.startswith("all 2 ranks computed the same losses from the first on")


@pytest.mark.parametrize(
    "known",
    [
        [{"first_losses": "ab", "data_parallel": 2}, {"first_losses": "cd", "data_parallel": 2}],
        [{"first_losses": "ab", "data_parallel": 2}, {}],
        [{"first_losses": "ab", "data_parallel": 1}] * 2,  # tensor parallel peers
        [{"first_losses": "ab", "data_parallel": 2}],  # the other rank's record is missing
        [{"first_losses": 5, "data_parallel": 2}] * 2,
    ],
)
def test_ranks_with_data_of_their_own(known: list[dict[str, object]]) -> None:
    assert training_problems(_two_ranks(*known)) == []


def test_no_ranks() -> None:
    assert training_problems({}) == []


def _calls(operation: str, *shapes: list[int]) -> dict[int, RankLog]:
    """Ranks whose third collective has these shapes."""
    found = {}
    for rank, shape in enumerate(shapes):
        calls = [
            {"number": n, "count": n, "operation": operation, "group": "0", "step": n, "phase": "other",
             "shape": shape if n == 3 else [4], "dtype": "float32"}
            for n in (1, 2, 3, 4)
        ]  # fmt: skip
        groups = {"0": {"ranks": list(range(len(shapes))), "calls": 4}}
        record = {"type": "calls", "rank": rank, "groups": groups, "calls": calls}
        found[rank] = RankLog(rank=rank, path=Path(f"rank-{rank}.jsonl"), records=[record])
    return found


def test_a_collective_of_unlike_sizes_that_ended_is_told() -> None:
    """NCCL does not notice: on two H200s such a run ends well as a process."""
    (told,) = training_problems(_calls("all_reduce", [4], [8]))
    assert told.startswith("rank 0 entered all_reduce of [4] float32 (step 4) and rank 1 all_reduce of [8]")
    logs = _calls("all_gather_into_tensor", [4], [8])
    assert "make the tensor the same" in training_problems(logs)[0]
    for rank, phase in enumerate(("forward", "eval")):
        (logs[rank].last("calls") or {})["calls"][0]["phase"] = phase
    (told,) = training_problems(logs)
    assert "rank 1 entered all_gather_into_tensor of [4] float32 in eval" in told
    assert "let every rank do it" in told


@pytest.mark.parametrize(
    ("operation", "shapes"),
    [("all_reduce", ([4], [2, 2])), ("all_gather", ([4], [8])), ("send", ([4], [8])), ("all_reduce", ([4],))],
)
def test_collectives_that_may_differ(operation: str, shapes: tuple[list[int], ...]) -> None:
    assert training_problems(_calls(operation, *shapes)) == []
