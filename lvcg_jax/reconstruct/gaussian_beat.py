"""A Gaussian model of the beat: hidden leads in closed form from any visible ones, with error bars.

Beats x_n [l,p] are stretched from R peak to R peak, each lead in its own standard deviations. Those
of a record are taken for

    x_n = m + d_n

with m what the beats of the record have in common and d_n how one of them differs, both Gaussian
with zero mean. Their covariances C over all leads and samples come from training records. Given the
visible samples v, the most likely value of all samples is

    C_.v (C_vv + noise)^-1 x_v

and their variance is known as well. This is the lift and projection of data_prep/ecg/geometry.py in
a larger space: with C = A A', for directions A of leads that are constant in time, and the noise
for Tikhonov's eps, it is the dipole; more modes than three make a field, and here the modes span
the whole beat.

Where the patient was recorded before with all leads, m is that record's mean beat plus a drift, a
third Gaussian, whose covariance comes from training patients who were recorded twice. So one visit
to a clinic calibrates what a few leads say ever after.

A partial interval at the start or end of a record is laid where it belongs in a beat of the
record's usual length; the rest of that beat counts as hidden.

The standard deviations that follow from the covariances are corrected on training patients who are
held out from these, for the visible leads that are asked for (beat_widths.py).

Axis letters: n beat, l lead, p sample in beat, v visible sample, a any sample, T sample.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.reconstruct.beat_widths import BeatWidths, Held, complete_beats, hold_out
from lvcg_jax.reconstruct.stretching import lead_products, lost_power, whole_signal

NAME = "gaussian beat"
CALIBRATED = "gaussian beat, calibrated"
PARTS = ("common", "change", "drift")
NOISE = 1e-2  # variance, as a share of a sample's mean variance; chosen on validation records
BLOCK = 256  # records whose products are added at a time
KEPT = 64  # visible subsets whose matrices are kept
KEPT_VARIANCES = 4096  # of these and of partial slots, 12 kB each


class Gaussian(NamedTuple):
    """Vectors [l,p] of zero mean."""

    covariance: np.ndarray  # [a,a], leads and samples in one row
    noise: float  # variance of what is seen around what it should be


class Moments:
    """Mean products of all leads and samples over vectors [l,p], some of which lack a lead."""

    def __init__(self, samples: int):
        size = len(LEADS) * samples
        self.samples, self.products = samples, np.zeros((size, size))
        self.pairs = np.zeros((len(LEADS), len(LEADS)))  # vectors that have both leads

    def add(self, x: np.ndarray, there: np.ndarray, worth: np.ndarray) -> None:
        """Vectors [n,l,p], the leads that they have [n,l], and what each counts for [n]."""
        flat = np.where(there[..., None], x, 0.0).reshape(len(x), -1).astype(np.float32)
        self.products += flat.T @ flat
        self.pairs += (there * worth[:, None]).T @ there.astype(np.float64)

    def gaussian(self) -> Gaussian:
        counted = np.maximum(self.pairs, 1.0).repeat(self.samples, 0).repeat(self.samples, 1)
        covariance = self.products / counted
        return Gaussian(covariance, NOISE * float(np.diag(covariance).mean()))


class Posterior:
    """What the samples that are seen, bool [l,p], say of all samples."""

    def __init__(self, gaussian: Gaussian, seen: np.ndarray):
        self.shape, self.seen = seen.shape, np.flatnonzero(seen)
        self._gaussian, self._across = gaussian, gaussian.covariance[self.seen]  # [v,a]
        within = self._across[:, self.seen].copy()
        within[np.diag_indices_from(within)] += gaussian.noise
        self._factor = cho_factor(within, lower=True)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """The expected samples [n,l,p], from the seen ones of x [n,l,p]."""
        weights = cho_solve(self._factor, x.reshape(len(x), -1)[:, self.seen].T)  # [v,n]
        return (weights.T @ self._across).reshape(x.shape)

    def variance(self) -> np.ndarray:
        """The variance [l,p] of every sample around its expectation."""
        explained = solve_triangular(self._factor[0], self._across, lower=True)  # [v,a]
        left = np.diag(self._gaussian.covariance) - (explained**2).sum(0)
        return np.maximum(left, 0.0).reshape(self.shape)

    def modes(self, count: int) -> np.ndarray:
        """The first modes [v,count] of what is seen, scaled so that coordinates have variance 1."""
        last = len(self.seen) - 1
        first = max(0, last + 1 - count)
        within = self._across[:, self.seen]
        power, modes = eigh(within, subset_by_index=(first, last))
        return modes[:, ::-1] / np.sqrt(np.maximum(power[::-1], 1e-12))

    def distance(self, x: np.ndarray) -> np.ndarray:
        """Squared distances [n] of what is seen of x [n,l,p] from zero, in units of what the
        Gaussian expects, by sample."""
        seen = x.reshape(len(x), -1)[:, self.seen].T  # [v,n]
        return (solve_triangular(self._factor[0], seen, lower=True) ** 2).mean(0)


class Placed(NamedTuple):
    """The slots of a record on the grid of a whole beat."""

    beats: np.ndarray  # [n,l,p]
    covered: np.ndarray  # bool [n,p] samples of the beat that the slot holds
    back: np.ndarray  # [n,p] where the slot's own samples lie in the beat, 0 to 1


def place(beats: np.ndarray, length: np.ndarray, complete: np.ndarray) -> Placed:
    """Slots [n,l,p], each stretched to p samples from its length [n], in their place in a beat.

    A partial first slot ends where a beat ends, a partial last one starts where a beat starts;
    both are as long a part of a beat as they are of the record's complete beats.
    """
    n, _, samples = beats.shape
    grid = np.linspace(0.0, 1.0, samples)
    usual = length[complete].mean() if complete.any() else length.max()
    share = np.where(complete, 1.0, np.clip(length / usual, 1.0 / samples, 1.0))[:, None]
    first = (np.arange(n)[:, None] == 0) & (n > 1)
    offset = np.where(first, 1.0 - share, 0.0)
    inside = (grid - offset) / share
    covered = (inside > -1e-6) & (inside < 1 + 1e-6)
    return Placed(read_at(beats, inside), covered, offset + share * grid)


def read_at(beats: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Beats [n,l,p] read between their samples, at [n,q] from 0 to 1: [n,l,q]."""
    last = beats.shape[-1] - 1
    position = np.clip(at, 0.0, 1.0) * last
    left = np.minimum(position.astype(np.int64), last - 1)
    weight = (position - left)[:, None]
    here, there = (np.take_along_axis(beats, i[:, None], -1) for i in (left, left + 1))
    return here + weight * (there - here)


def common_beat(placed: Placed, complete: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean [l,p] of a record's complete beats, or of what there is if none is complete, and
    the samples [p] for which there is one."""
    counted = placed.covered & (complete if complete.any() else ~complete)[:, None]
    count = counted.sum(0)
    total = np.where(counted[:, None], placed.beats, 0.0).sum(0)
    return total / np.maximum(count, 1), count > 0


class BeatGaussians:
    """The Gaussians of a fit, given what is seen; what was computed for whole beats is kept."""

    def __init__(self, moments: dict[str, Moments]):
        self.parts = {part: moments[part].gaussian() for part in PARTS}
        total = self.parts["common"].covariance + self.parts["change"].covariance
        self.products = lead_products(total, len(LEADS))
        self.whole = lru_cache(KEPT)(self._condition_whole)  # by part, visible leads and samples
        self._variances: dict[tuple[str, bytes], np.ndarray] = {}  # [l,p], by part and samples seen

    def posterior(self, part: str, seen: np.ndarray, visible: int) -> Posterior:
        """Of one of PARTS, given the samples [l,p] that are seen of the visible leads."""
        if seen.any(0).all():
            return self.whole(part, int(visible), seen.shape[1])
        return Posterior(self.parts[part], seen)

    def _condition_whole(self, part: str, visible: int, samples: int) -> Posterior:
        seen = mask_leads(visible)[:, None] & np.ones(samples, bool)
        return Posterior(self.parts[part], seen)

    def variance(self, part: str, posterior: Posterior) -> np.ndarray:
        """The variance [l,p] of a posterior, computed once for the samples that it sees."""
        key = (part, posterior.seen.tobytes())
        if key not in self._variances:
            if len(self._variances) == KEPT_VARIANCES:
                self._variances.clear()
            self._variances[key] = posterior.variance()
        return self._variances[key]


class GaussianBeat:
    """The method (see above) behind the interface of lead_method.LeadMethod."""

    def __init__(self, names: Sequence[str] = (NAME,)):
        self.units = dict.fromkeys(names, "z")

    def fit(self, windows: Iterable[dict]) -> None:
        """One pass over training records; a lead that a record lacks is left out."""
        moments: dict[str, Moments] = {}
        last: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # a patient's mean beat and its leads
        held: list[Held] = []
        found = hold_out(complete_beats(windows), held)
        while block := list(islice(found, BLOCK)):
            patients, beats, there = zip(*block, strict=True)
            if not moments:
                moments = {part: Moments(beats[0].shape[-1]) for part in PARTS}
            # each record counts once for what its beats share, each beat for how it differs
            means, leads = np.stack([some.mean(0) for some in beats]), np.stack(there)
            moments["common"].add(means, leads, np.ones(len(block)))
            numbers = np.array([len(some) for some in beats])
            moments["change"].add(
                np.concatenate(beats) - means.repeat(numbers, 0),
                leads.repeat(numbers, 0),
                (1.0 - 1.0 / numbers).repeat(numbers),
            )
            # and each further record of a patient for what has changed since the one before
            drifts = []
            for patient, *mine in zip(patients, means, leads, strict=True):
                if patient in last:
                    drifts.append((mine[0] - last[patient][0], mine[1] & last[patient][1]))
                last[patient] = mine
            if drifts:
                changes, both = map(np.stack, zip(*drifts, strict=True))
                moments["drift"].add(changes, both, np.ones(len(drifts)))
        self._check(moments)
        self.gaussians = BeatGaussians(moments)
        self.widths = BeatWidths(self.gaussians, held)

    def _check(self, moments: dict[str, Moments]) -> None:
        """An InputError if the training records cannot teach all that is asked for."""
        if not moments:
            raise InputError(f"cannot fit {NAME}: no training record has a complete beat")
        records = np.diag(moments["common"].pairs)
        unseen = [lead for lead, count in zip(LEADS, records, strict=True) if not count]
        if unseen:
            raise InputError(f"cannot fit {NAME}: no training record has {', '.join(unseen)}")
        if CALIBRATED in self.units and not moments["drift"].pairs.all():
            raise InputError(
                f"cannot fit {CALIBRATED}: no training patient has two records with all leads;"
                " raise --fit_records, or give other training records"
            )

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        return {
            name: [self.derive(w, calibrated=name == CALIBRATED)[0] for w in windows]
            for name in self.units
        }

    def predict_with_bars(
        self, windows: Sequence[dict]
    ) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        return {
            name: [self.derive(w, bars=True, calibrated=name == CALIBRATED) for w in windows]
            for name in self.units
        }

    def derive(
        self, window: dict, bars: bool = False, calibrated: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """All leads [12,T] of a window from its visible ones and, if asked for, their standard
        deviations, both in the units of the window's beats.

        If `calibrated`, window['calibration'] is the mean beat [12,p] of an earlier record.
        """
        visible = mask_leads(window["visible"])
        complete = np.asarray(window["complete"], bool)
        beats = np.asarray(window["beats"], np.float64)
        placed = place(beats, np.asarray(window["length"], np.float64), complete)

        # what the beats have in common, then what each has of its own
        mean, known = common_beat(placed, complete)
        seen = visible[:, None] & known
        part, base = (
            ("drift", window["calibration"]) if calibrated else ("common", np.zeros_like(mean))
        )
        shared = self.gaussians.posterior(part, seen, window["visible"])
        expected = base + shared.mean((mean - base)[None])[0]
        filled = np.where(seen, mean, expected)
        rest = placed.beats - filled
        found, posteriors = np.empty_like(beats), []
        for covered, slots in _alike(placed.covered):
            seen_of_slots = visible[:, None] & covered
            posterior = self.gaussians.posterior("change", seen_of_slots, window["visible"])
            found[slots] = expected + posterior.mean(rest[slots])
            posteriors.append((posterior, slots))

        # back to the slots, and from these to a signal
        where = (window["start"], window["length"], int(window["num_samples"]))
        signal = stitch_beats(read_at(found, placed.back), *where)
        signal = whole_signal(signal, window, self.gaussians.products)
        if not bars:
            return signal, None

        # how sure that is: what the Gaussians say, corrected as held-out records show
        variance = np.empty_like(beats)
        of_shared = self.gaussians.variance(part, shared)
        for posterior, slots in posteriors:
            variance[slots] = of_shared + self.gaussians.variance("change", posterior)
        variance *= (
            self.widths.factor(part, int(window["visible"]), seen, filled, base, rest[complete])
            ** 2
        )
        variance = stitch_beats(read_at(variance, placed.back), *where)
        deviation = np.sqrt(variance + lost_power(window))
        return signal, np.where(visible[:, None], 0.0, deviation).astype(np.float32)


def calibration_of(windows: Iterable[dict]) -> np.ndarray:
    """The mean complete beat [12,p] of a patient's windows, all of which have all leads."""
    return np.concatenate([beats for _, beats, _ in complete_beats(windows)]).mean(0)


def can_calibrate(window: dict) -> bool:
    """Whether a window has all leads, and a complete beat."""
    return bool(mask_leads(window["lead_mask"]).all() and np.any(window["complete"]))


def _alike(covered: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Slots [n,p] that cover the same samples, together: (samples [p], numbers of the slots)."""
    rows, group = np.unique(covered, axis=0, return_inverse=True)
    return [(row, np.flatnonzero(group.ravel() == i)) for i, row in enumerate(rows)]
