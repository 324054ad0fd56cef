"""How wide a network's bands must be, learned from the records that no training step saw.

A network that has a `spread` says how large it expects its errors to be. On records that it was
trained on they are smaller than elsewhere, and more alike. What it says is therefore multiplied by
factors that make LEVEL of the true samples of held-out records lie within REACH of it (bands.py):

    of the beat     by its token: coordinates along the first MODES directions in which tokens of
                    held-out records differ, and how far it is from what these describe. The
                    farther, the wider the band: it never becomes narrower by being unlike others
    of the sample   by lead and place in the beat
    of cut-off beats, the pieces at both ends of a record

Where training records are at hand the factors are those of the visible leads at hand; with the
network alone, of their number. Axis letters: n slot, l lead, p sample, d width of a token, f number
that a beat is known by.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.reconstruct.bands import FARTHEST, FEWEST, LEVEL, REACH, Widening, learn_widening
from lvcg_jax.reconstruct.learned.examples import draw_visible

DRAWS = 6  # sets of visible leads for each number of them
MODES = 16


class Slots(NamedTuple):
    """Some slots of one record, derived from some of its leads."""

    ratio: np.ndarray  # [n,l,p] errors by what was expected; NaN where the slot has no sample
    token: np.ndarray  # [n,d]
    complete: np.ndarray  # bool [n]
    hidden: np.ndarray  # bool [l] leads that the record has and that were not seen


class Widths(NamedTuple):
    """What expected errors are multiplied by."""

    widening: Widening
    ends: float  # factor of cut-off beats

    def factor(self, known: np.ndarray) -> np.ndarray:
        """Of beats known by [n,f]: [n,l,p]."""
        return self.widening.of_record(known)[:, None, None] * self.widening.sample


def find_modes(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Along which directions [d,k] tokens [b,d] differ most around their mean, and how much."""
    count = min(MODES, min(tokens.shape) // 2)
    centre = tokens.mean(0)
    _, power, modes = np.linalg.svd(tokens - centre, full_matrices=False)
    spread = np.maximum(power[:count] / np.sqrt(len(tokens)), 1e-6)
    return {"centre": centre, "modes": modes[:count].T, "spread": spread}


def known_by(token: np.ndarray, found: dict[str, np.ndarray]) -> np.ndarray:
    """What beats are known by [n,f], from tokens [n,d] and find_modes: first their distance."""
    far = token - found["centre"]
    place = far @ found["modes"]
    rest = ((far - place @ found["modes"].T) ** 2).mean(-1, keepdims=True)
    near = np.clip(place / found["spread"], -FARTHEST, FARTHEST)
    return np.concatenate([0.5 * np.log(rest + 1e-12), near], -1)


def learn_widths(records: Sequence[Slots], modes: dict[str, np.ndarray]) -> Widths | None:
    """From held-out records; those of one patient stand together. None if they are too few."""
    whole = [record for record in records if record.complete.any()]
    hidden = np.array([record.hidden for record in whole])
    if not len(whole) or hidden.sum(0).max() < FEWEST:
        return None
    known = np.stack([known_by(record.token[record.complete], modes).mean(0) for record in whole])
    widening = learn_widening(known, 1, [r.ratio[r.complete] for r in whole], hidden)
    # a lead that few of them have to derive gets the factors that are usual
    enough = hidden.sum(0) >= FEWEST
    usual = np.median(widening.sample[enough], axis=0)
    widths = Widths(
        widening._replace(sample=np.where(enough[:, None], widening.sample, usual)), 1.0
    )

    # by how much errors in cut-off beats are larger than that
    cut = [_reached(record, widths, modes) for record in records if not record.complete.all()]
    if len(cut) < FEWEST:
        return widths
    return widths._replace(ends=float(max(1.0, np.quantile(np.concatenate(cut), LEVEL) / REACH)))


def _reached(record: Slots, widths: Widths, modes: dict[str, np.ndarray]) -> np.ndarray:
    """Errors of a record's cut-off beats as multiples of their widths, one after another."""
    factor = widths.factor(known_by(record.token[~record.complete], modes))
    errors = np.abs(record.ratio[~record.complete] / factor)[:, record.hidden]
    return errors[np.isfinite(errors)]


def learn_by_number(look: Callable[[np.ndarray], list[Slots]]) -> dict[str, np.ndarray]:
    """Modes, and widths by the number of visible leads from 0 to 11, as arrays to be stored; `look`
    derives held-out records from visible leads, bool [l]."""
    drawn: dict[int, list[np.ndarray]] = {}
    for draw in range(DRAWS * (len(LEADS) - 1)):
        visible = draw_visible(np.random.default_rng(draw), 1 + draw // DRAWS)
        drawn.setdefault(int(visible.sum()), []).append(visible)
    tokens = [slots.token for some in drawn.values() for slots in look(some[0])]
    modes = find_modes(np.concatenate(tokens))
    found: dict[int, Widths] = {}
    for number, sets in drawn.items():
        records = [record for several in zip(*map(look, sets), strict=True) for record in several]
        if widths := learn_widths(records, modes):
            found[number] = widths
    if not found:  # a handful of records: as the network expects it
        one = np.ones(known_by(records[0].token, modes).shape[-1])
        found[0] = Widths(Widening(np.ones_like(records[0].ratio[0]), 0 * one, one, one, 0.0), 1.0)
    # a number that was not drawn gets the widths of the nearest one
    nearest = [found[min(found, key=lambda n: abs(n - i))] for i in range(len(LEADS))]
    fields = {
        name: np.stack([getattr(widths.widening, name) for widths in nearest])
        for name in Widening._fields
    }
    arrays = {f"token_{name}": x for name, x in modes.items()} | fields
    arrays["ends"] = np.array([widths.ends for widths in nearest])
    return {name: np.asarray(x, np.float32) for name, x in arrays.items()}


def stored_modes(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those that learn_by_number found."""
    return {name: arrays[f"token_{name}"] for name in ("centre", "modes", "spread")}


def stored_widths(arrays: dict[str, np.ndarray], number: int) -> Widths:
    """Those that learn_by_number found for this number of visible leads."""
    fields = {name: arrays[name][number] for name in Widening._fields}
    return Widths(Widening(**fields), float(arrays["ends"][number]))
