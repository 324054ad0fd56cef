"""A model within a longer program: several threads, forked processes, interrupts and errors."""

import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.embed import devices


def ecg(number: int, seconds: float = 10.0) -> np.ndarray:
    return make_record(seed=3, patient=number, seconds=seconds)[0]


def test_several_threads_get_what_one_gets(model):
    calls = [(ecg(i, 3.0 + i % 7)[:, : 12 - i], 250, LEADS[: 12 - i]) for i in range(8)]
    alone = [model.embed(*call).embedding for call in calls]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: model.embed(*calls[i % 8]).embedding, range(24)))
    for i, found in enumerate(together):
        np.testing.assert_array_equal(found, alone[i % 8])


def test_records_of_any_length_share_three_shapes(model):
    """A shape is compiled once, so that a service that sees all lengths compiles three times."""
    assert len({model._few([{}] * windows) for windows in range(1, 9000, 7)}) == 3


def test_a_forked_process_is_told_to_be_spawned(model):
    model.embed(ecg(0), 250, LEADS)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forking, too
        child = os.fork()
    if child == 0:
        try:
            model.embed(ecg(0), 250, LEADS)
        except InputError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert "was forked" in said and "get_context('spawn')" in said


def test_ctrl_c_between_batches_leaves_a_model_that_works(model, monkeypatch):
    windows, whole = model._windows(ecg(1, 40.0), 250, LEADS, "mV", None), devices.embed_packed
    one_by_one = (model.max_beats, 1)
    _, expected = model.embed_windows(windows, *one_by_one)
    batches = []

    def interrupted(*arguments):
        batches.append(1)
        if len(batches) == 2:
            signal.raise_signal(signal.SIGINT)
        return whole(*arguments)

    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    monkeypatch.setattr(devices, "embed_packed", interrupted)
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        model.embed_windows(windows, *one_by_one)
    assert len(batches) == 2 and threading.active_count() == threads
    monkeypatch.undo()
    signal.signal(signal.SIGINT, ctrl_c)
    _, again = model.embed_windows(windows, *one_by_one)
    for name, values in expected.items():
        np.testing.assert_array_equal(again[name], values)


def test_an_error_leaves_nothing_behind(model):
    good = ecg(2)
    expected = model.embed(good, 250, LEADS).embedding

    def state():
        return np.geterr(), list(warnings.filters), os.getcwd(), threading.active_count()

    before = state()
    for bad in (good[:100], good * np.nan, good * 1e6, good.T, np.zeros_like(good)):
        with pytest.raises(InputError):
            model.embed(bad, 250, LEADS)
    assert state() == before
    np.testing.assert_array_equal(model.embed(good, 250, LEADS).embedding, expected)
