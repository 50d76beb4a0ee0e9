"""Signals after a run: the first skips what may be skipped, the second ends with the run's code."""

from __future__ import annotations

import os
import signal

import pytest

from zerokit.launcher.attempts import Interruptions


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_ends_what_can_be_skipped_and_only_that(number: signal.Signals) -> None:
    old = signal.getsignal(number)
    with Interruptions() as interruptions:
        with pytest.raises(KeyboardInterrupt), interruptions.skippable():
            send(number)
            pytest.fail("it went on")
        with pytest.raises(KeyboardInterrupt), interruptions.skippable():
            pytest.fail("nothing more is begun")
        assert interruptions.told_to_end is (number != signal.SIGINT)  # Ctrl-C skips, and a retry goes on
    assert signal.getsignal(number) is old


def test_a_second_one_ends_with_the_runs_own_code() -> None:
    with Interruptions() as interruptions:
        send(signal.SIGTERM)  # the report is being written
        interruptions.exit_code = 10
        with pytest.raises(SystemExit) as ended:
            send(signal.SIGTERM)
        assert ended.value.code == 10


def test_before_the_end_of_the_run_a_signal_does_what_it_did() -> None:
    with Interruptions(lambda: False) as interruptions:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert not interruptions.seen


def test_what_nohup_ignores_stays_ignored() -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptions() as interruptions, interruptions.skippable():
            send(signal.SIGHUP)
        assert not interruptions.seen
    finally:
        signal.signal(signal.SIGHUP, old)
