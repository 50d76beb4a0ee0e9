"""How long without progress is a hang, where the user did not say."""

from __future__ import annotations

from zerokit.launcher.supervisor.heartbeat_default import Heartbeat


def test_the_heartbeat_follows_what_the_run_has_shown() -> None:
    heartbeat = Heartbeat(None)
    assert heartbeat.seconds([0]) == 300.0  # nothing seen yet
    heartbeat.note_progress(0, "forward", 1.0, trained=True)
    assert heartbeat.seconds([0]) == 60.0
    heartbeat.note_progress(0, "save", 1.0, trained=True)
    assert heartbeat.seconds([0]) == 300.0  # its first checkpoint
    heartbeat.note_progress(0, "forward", 20.0, trained=True)
    assert heartbeat.seconds([0]) == 200.0  # which was quiet for 20 s, and ended well
    heartbeat.note_progress(0, "save", 500.0, trained=True)
    assert heartbeat.seconds([0]) == 600.0


def test_a_heartbeat_that_was_given_stays() -> None:
    heartbeat = Heartbeat(7.0)
    heartbeat.note_progress(0, "save", 500.0, trained=True)
    assert heartbeat.seconds([0]) == 7.0 and not heartbeat.off
    assert Heartbeat(0.0).off
