"""How wide the bands of the Gaussian beat must be, learned from training patients held out of its
fit.

The covariances (gaussian_beat.py) give a standard deviation to every derived sample. It is
multiplied by a factor that bands.py learns from held-out records, once for each set of visible
leads that is asked for. What a record is known by are two distances, x_v' (C_vv + noise)^-1 x_v by
visible sample, of what its beats share and of how they differ, and the coordinates of the former
along the first modes of C_vv. A record unlike the training records gets a wider band.

Bands of a calibrated record are learned from held-out patients with two records, the first of
which calibrates the others. Where too few patients have two, the factor of a record that is not
calibrated is taken.

Axis letters: n beat, l lead, p sample in beat, v visible sample.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from data_prep.base.lottery import fold_of
from data_prep.ecg.leads import mask_leads
from lvcg_jax.reconstruct.bands import FEWEST, Widening, features, learn_widening

# one patient in ten is held out, until there are so many records
HELD_FOLDS, HELD = 10, 1000
HELD_BEATS = 4  # of each of these records whose errors are counted
MODES = 12  # along which the coordinates of a record are taken


class Held(NamedTuple):
    """The complete beats of a record."""

    patient: str
    beats: np.ndarray  # [n,l,p]
    there: np.ndarray  # bool [l] leads that the record has


class Conditioned(Protocol):
    """The Gaussians of a fit, given what is seen: gaussian_beat.BeatGaussians."""

    def posterior(self, part: str, seen: np.ndarray, visible: int): ...

    def variance(self, part: str, posterior) -> np.ndarray: ...


class BeatWidths:
    """What the standard deviations of derived beats are multiplied by."""

    def __init__(self, gaussians: Conditioned, held: list[Held]):
        self.gaussians, self.held = gaussians, held
        self._modes = lru_cache(None)(lambda *key: self._whole(*key).modes(MODES))
        self._widening = lru_cache(None)(self._learn)

    def factor(
        self,
        part: str,
        visible: int,
        seen: np.ndarray,
        filled: np.ndarray,
        base: np.ndarray,
        rest: np.ndarray,
    ) -> np.ndarray | float:
        """Factors [l,p] of a record from its mean beat [l,p], with what is not `seen` [l,p] of it
        filled in, and from how its complete beats differ from that, [n,l,p].

        `part` is 'drift' for a record with a calibration `base` [l,p], 'common' for one without.
        """
        for which, origin in ((part, base), ("common", np.zeros_like(base))):
            widening = self._widening(which, visible, seen.shape[1])
            if widening:
                known = self._features(which, visible, seen, filled - origin, rest)
                return widening.of_record(known) * widening.sample
        return 1.0

    def _whole(self, part: str, visible: int, samples: int):
        """The posterior for the visible leads of a whole beat."""
        seen = mask_leads(visible)[:, None] & np.ones(samples, bool)
        return self.gaussians.posterior(part, seen, visible)

    def _features(
        self, part: str, visible: int, seen: np.ndarray, mean: np.ndarray, rest: np.ndarray
    ) -> np.ndarray:
        """What a record is known by (bands.features): its mean beat [l,p] as a draw from the
        Gaussian `part`, and how its complete beats differ from it, [n,l,p]."""
        samples, n = mean.shape[1], len(rest)
        own = self._whole("change", visible, samples)
        changes = own.distance(rest).sum() / (n - 1) if n > 1 else np.nan
        distance = self.gaussians.posterior(part, seen, visible).distance(mean[None])[0]
        place = mean[mask_leads(visible)].ravel() @ self._modes(part, visible, samples)
        return features(np.array([distance, changes]), place)

    def _learn(self, part: str, visible: int, samples: int) -> Widening | None:
        """From the held-out records, with these leads visible; None if too few have these leads
        and others."""
        shown = mask_leads(visible)
        seen = shown[:, None] & np.ones(samples, bool)
        records = self._calibrated() if part == "drift" else [(x, 0.0) for x in self.held]
        records = [
            (record, base)
            for record, base in records
            if len(record.beats) > 1 and record.there[shown].all() and record.there[~shown].any()
        ]
        if len(records) < FEWEST:
            return None

        # derive their beats as GaussianBeat does, and keep the errors
        shared, own = (self._whole(which, visible, samples) for which in (part, "change"))
        deviation = np.sqrt(
            self.gaussians.variance(part, shared) + self.gaussians.variance("change", own)
        )
        known, errors, hidden = [], [], []
        for (_, beats, there), base in records:
            mean = beats.mean(0)
            expected = base + shared.mean((mean - base)[None])[0]
            rest = beats - np.where(seen, mean, expected)
            known.append(self._features(part, visible, seen, mean - base, rest))
            some = slice(None, HELD_BEATS)
            found = expected + own.mean(rest[some])
            errors.append((found - beats[some]) / np.maximum(deviation, 1e-6))
            hidden.append(there & ~shown)
        return learn_widening(np.stack(known), 2, errors, np.stack(hidden))

    def _calibrated(self) -> list[tuple[Held, np.ndarray]]:
        """Later records of patients whose first one has all leads, with its mean beat."""
        first: dict[str, np.ndarray] = {}
        later = []
        for record in self.held:
            if record.patient in first:
                later.append((record, first[record.patient]))
            elif record.there.all():
                first[record.patient] = record.beats.mean(0)
        return later


def complete_beats(windows: Iterable[dict]) -> Iterator[Held]:
    """Patient, complete beats and leads of every window that has a complete beat."""
    for window in windows:
        complete = np.asarray(window["complete"], bool)
        if complete.any():
            beats = np.asarray(window["beats"], np.float32)[complete]
            yield Held(window.get("patient_id", ""), beats, mask_leads(window["lead_mask"]))


def hold_out(records: Iterable[Held], held: list[Held]) -> Iterator[Held]:
    """The records without those of some patients, which go to `held`; if they are too few to learn
    from, they come last instead."""
    patients = set()
    for record in records:
        patient = record.patient
        fresh = bool(patient) and len(held) < HELD and not fold_of(patient, HELD_FOLDS)
        if fresh or patient in patients:
            patients.add(patient)
            held.append(record)
        else:
            yield record
    if len(held) < FEWEST:
        yield from held
        held.clear()
