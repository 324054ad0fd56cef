"""A training within a study: at a budget, stopped by a signal, or ended with a reason."""

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from lvcg_jax.config.fields import FREE_FIELDS, flatten

WARMUP_SHARE = 10  # warm-up is at most a tenth of the steps
LOST_AFTER = 2.0  # seconds: an interruption that has ended nothing by then is raised again


class Stopped(Exception):
    """Somebody asked the command to stop."""


def budgeted(config: ConfigDict, steps: int) -> ConfigDict:
    """The config at this budget: only the last checkpoint counts, and it is validated once."""
    config = config.copy_and_resolve_references()
    config.optim.warmup_steps = min(config.optim.warmup_steps, steps // WARMUP_SHARE)
    config.train.steps = config.train.validate_every = steps
    config.train.log_every = min(config.train.log_every, max(steps // 10, 1))
    config.train.checkpoint_every = min(config.train.checkpoint_every, steps)
    config.train.keep_checkpoints = 1
    return config


def reason_of(error: Exception, data: Path | None) -> str:
    """One line for the table, without the path of the shards."""
    line = first_line(error)[:300]
    line = line.replace(str(data), data.name) if data else line
    return line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"


def fingerprint(config: ConfigDict) -> str:
    """All fields of a config that touch what is computed, as text."""
    fields = {name: value for name, value in flatten(config).items() if name not in FREE_FIELDS}
    return json.dumps(fields, sort_keys=True)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """SIGTERM and Ctrl-C do the same: a training saves a checkpoint first, everything else ends at
    once.

    What is raised within a callback (JAX has one for garbage) is lost, and then raised again.
    """
    again: list[threading.Timer] = []

    def interrupt(*_):
        again.append(threading.Timer(LOST_AFTER, signal.raise_signal, (signal.SIGTERM,)))
        again[-1].daemon = True
        again[-1].start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)  # a training puts its own in this place
    before_int = signal.signal(signal.SIGINT, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_int)
