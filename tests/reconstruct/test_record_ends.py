"""Derived leads end with the record, not in a beat that has not been recorded."""

import numpy as np

from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import Record
from data_prep.ecg.segment import stitch_beats
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.reconstruct.methods import NetworkLeads
from lvcg_jax.reconstruct.one_record import derive


class EndsInUpstrokes(NetworkLeads):
    """A network that has learned that intervals are flat and end in an upstroke of five units."""

    def __init__(self):
        self.units = {"lvcg": "z"}

    def predict(self, windows):
        found = []
        for w in windows:
            beats = np.zeros((len(w["length"]), 12, w["beats"].shape[-1]))
            beats[..., -4:] = 5.0
            found.append(stitch_beats(beats, w["start"], w["length"], w["num_samples"]))
        return {"lvcg": found}


def test_a_window_does_not_end_in_the_upstroke_of_a_beat_that_is_not_there():
    signal, _ = make_record(patient=1, seconds=25, rate=250)
    record = Record("r", "r", signal, 250.0, list(LEADS), {}, None, "file")
    preprocess = Preprocess(normalise="record", peaks="vcg")
    result, _ = derive(record, ["I", "II", "V2"], preprocess, [EndsInUpstrokes()], None)
    v5 = result.mv["lvcg"][LEADS.index("V5")]
    windows = preprocess.prepare(signal[:, [0, 1, 7]], 250, ["I", "II", "V2"])
    assert len(windows) == 3
    for w in windows:
        place = round(w.start_seconds * w.rate)
        here = v5[place : place + w.signal.shape[1]]
        steps = np.abs(np.diff(here))
        assert steps[-1] == 0 and w.length[-1] >= 2  # the last interval is a partial one
        ends = (w.start + w.length - 2)[w.complete]
        assert all(steps[end - 6 : end + 2].max() > 0.5 for end in ends)  # true beats keep theirs
