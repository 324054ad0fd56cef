"""What is lost where beats are stretched to one length and back, and how hidden leads get it back.

The steepest parts of a QRS lose a little, and so do samples at the seams. It is known of the
visible leads, and a regression on these, sample by sample, says what hidden leads have lost with
them. Axis letters: l lead, p sample in beat, T sample.
"""

import numpy as np

from data_prep.ecg.leads import mask_leads
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.linear import regression_matrix


def lead_products(covariance: np.ndarray, leads: int) -> np.ndarray:
    """Mean products [l,l] of leads at the same sample, from a covariance over all leads and
    samples."""
    by_sample = covariance.reshape(leads, -1, leads, covariance.shape[0] // leads)
    return np.einsum("lpmp->lm", by_sample) / by_sample.shape[1]


def lost_in_stretching(window: dict) -> np.ndarray:
    """What the visible leads lose, [12,T]; 0 in the others."""
    where = (window["start"], window["length"], int(window["num_samples"]))
    back = stitch_beats(np.asarray(window["beats"], np.float32), *where)
    return np.where(mask_leads(window["visible"])[:, None], signal_of(window) - back, 0.0)


def lost_power(window: dict) -> np.ndarray:
    """The mean error power [T] of the visible leads."""
    lost = lost_in_stretching(window)[mask_leads(window["visible"])] ** 2
    return np.convolve(lost.mean(0), np.ones(3) / 3, "same")


def whole_signal(derived: np.ndarray, window: dict, products: np.ndarray) -> np.ndarray:
    """Leads [12,T] that were derived beat by beat, with what stretching took from them; visible
    leads as they are. `products` are those of lead_products."""
    visible = mask_leads(window["visible"])
    lost = regression_matrix(products, visible) @ lost_in_stretching(window)
    return np.where(visible[:, None], signal_of(window), derived + lost).astype(np.float32)
