"""What a thread calls between operators: Python's functions and those in C, whoever counts."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading

import pytest

from zerokit.rehearsal.process import calls


def _leaf(values):
    return len(values) + max(values)


def _numbers():
    yield from (1, 2)


@contextlib.contextmanager
def _managed():
    yield


def _work() -> None:
    _leaf([1])
    _leaf([2])
    for _ in _numbers():
        pass
    with _managed():
        pass


def _of_work() -> tuple[int, int]:
    """By a profile function in Python, which sees each call: a generator's are none."""
    found = [0, 0]

    def profile(frame, event, argument) -> None:
        if event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            found[0] += 1
        elif event == "c_call" and argument is not sys.setprofile:
            found[1] += 1

    sys.setprofile(profile)
    _work()
    sys.setprofile(None)
    return found[0], found[1]


_OF_WORK = _of_work()


def _operator(counter: calls.Calls) -> tuple[int, int]:
    counter.enter()
    _leaf([1, 2, 3])  # as the dispatch mode's own
    found = counter.take()
    counter.leave()
    return found


@pytest.fixture
def counter():
    made = calls.counter()
    yield made
    made.end()


def test_what_is_called_between_operators_is_counted(counter: calls.Calls) -> None:
    counter.begin()
    _operator(counter)
    _work()
    python, c = _operator(counter)
    assert (python - 1, c) == _OF_WORK  # `_operator` itself is one
    assert _operator(counter) == (1, 0)


def test_what_a_run_on_a_gpu_does_not_call_is_left_out(counter: calls.Calls) -> None:
    source = "def ours(work):\n    len([])\n    work()\n"
    space: dict = {}
    exec(compile(source, "/env/torch/_subclasses/fake.py", "exec"), space)  # noqa: S102
    counter.begin()
    _operator(counter)
    space["ours"](_work)
    python, c = _operator(counter)
    assert (python - 1, c) == _OF_WORK


def test_each_thread_has_its_own_counts(counter: calls.Calls) -> None:
    counter.begin()
    _operator(counter)
    found = []

    def other() -> None:
        _work()  # before its first operator
        found.append(_operator(counter))
        _work()
        found.append(_operator(counter))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found[0] == (0, 0)
    assert (found[1][0] - 1, found[1][1] - 1) == _OF_WORK  # `append`, too


def test_nothing_is_counted_after_the_end(counter: calls.Calls) -> None:
    counter.begin()
    _operator(counter)
    counter.end()
    _work()
    _operator(counter)
    _work()
    assert _operator(counter) == (0, 0)
    counter.begin()
    _operator(counter)
    _work()
    assert _operator(counter)[0] == 1 + _OF_WORK[0]
