"""What every way to derive leads has in common: its interface, and the signals that it reads.

A window is a dict as in data/windows.py; a method may look only at the leads in the bit mask
window['visible']. Axis letters: l lead, T sample.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from data_prep.ecg.segment import stitch_beats


class LeadMethod(Protocol):
    """One or more named ways to derive leads that share their work."""

    units: dict[str, str]  # name -> 'z' (normalised as the window is) or 'mV'

    def fit(self, windows: Iterable[dict]) -> None:
        """Learns from training records, which may be read several times; called before
        `predict`."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        """All twelve leads [12,T] of each window from its visible ones, by name."""


@runtime_checkable
class LeadMethodWithBars(LeadMethod, Protocol):
    """A LeadMethod that can also say how sure it is of every sample."""

    def predict_with_bars(
        self, windows: Sequence[dict]
    ) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        """What `predict` gives, of those names that it is known for, each with its standard
        deviations [12,T] in the same unit, 0 in visible leads. LEVEL of the true samples
        should lie within REACH of them (bands.py)."""


def signal_of(window: dict) -> np.ndarray:
    """The normalised leads [12,T] of a window: as stored, or stitched from its beats if the shards
    hold only those."""
    if "signal" in window:
        return np.asarray(window["signal"], np.float32)
    beats = np.asarray(window["beats"], np.float32)
    return stitch_beats(beats, window["start"], window["length"], int(window["num_samples"]))


def to_mv(z: np.ndarray, window: dict) -> np.ndarray:
    """Normalised leads [12,T] in mV."""
    return z * window["scale"][:, None] + window["offset"][:, None]
