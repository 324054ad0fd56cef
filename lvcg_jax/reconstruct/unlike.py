"""Records unlike those that a method learned from: visible leads that are not what they are called.

A disturbance changes the visible leads of a window and leaves the hidden ones, which are the truth,
as they are. Beats keep their places.
"""

from collections.abc import Callable

import numpy as np

from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.segment import stitch_beats

# lead -> (sign, lead whose signal it has); what an electrode in another place would record
ARMS_SWAPPED = {
    "I": (-1, "I"),
    "II": (1, "III"),
    "III": (1, "II"),
    "aVR": (1, "aVL"),
    "aVL": (1, "aVR"),
}
CHEST_MOVED = {f"V{i}": (1, f"V{i + 1}") for i in range(1, 6)} | {"V6": (1, "V5")}


def wiring(leads: dict[str, tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The sign [12] of every lead, and the number [12] of the lead whose signal it has."""
    sign, place = np.ones(len(LEADS), np.float32), np.arange(len(LEADS))
    for lead, (s, other) in leads.items():
        sign[LEADS.index(lead)], place[LEADS.index(lead)] = s, LEADS.index(other)
    return sign, place


def rewire(leads: dict[str, tuple[int, str]]) -> Callable[[dict], dict]:
    """Visible leads with the normalised signals of others."""
    sign, place = wiring(leads)

    def change(window: dict) -> dict:
        shown = mask_leads(window["visible"])[:, None]
        beats, signal = (np.asarray(window[name], np.float32) for name in ("beats", "signal"))
        moved = sign[:, None] * signal[place]
        return window | {
            "beats": np.where(shown, sign[:, None] * beats[:, place], beats),
            "signal": np.where(shown, moved, signal),
        }

    return change


def add_noise_lead(window: dict) -> dict:
    """The last visible lead is white noise of the size that the lead had."""
    lead = np.flatnonzero(mask_leads(window["visible"]))[-1]
    rng = np.random.default_rng(window["uid"])
    beats = np.asarray(window["beats"], np.float32).copy()
    beats[:, lead] = rng.normal(size=beats[:, lead].shape)
    signal = np.asarray(window["signal"], np.float32).copy()
    where = (window["start"], window["length"], int(window["num_samples"]))
    signal[lead] = stitch_beats(beats[:, lead : lead + 1], *where)[0]
    return window | {"beats": beats, "signal": signal}


DISTURBANCES = {
    "arm electrodes swapped": rewire(ARMS_SWAPPED),
    "chest electrodes one place on": rewire(CHEST_MOVED),
    "last visible lead is noise": add_noise_lead,
}
# names of classes, of any task
CLASSES = {
    "left bundle branch block": ("CLBBB", "LBBB"),
    "paced": ("PACE",),
}
