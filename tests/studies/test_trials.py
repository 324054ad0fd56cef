"""Trainings within studies: how they are stopped."""

import signal
import sys
import time

import pytest

from lvcg_jax.studies import trials


class Garbage:
    """Stops the command while it is cleared away, where Python ignores what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_stop_that_comes_within_a_callback_is_not_lost(monkeypatch):
    monkeypatch.setattr(trials, "LOST_AFTER", 0.2)
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), trials.stop_signals():
        del [Garbage()][0]
        for _ in range(100):
            time.sleep(0.1)
    assert len(ignored) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    time.sleep(0.5)  # nothing comes after the end
