"""Limb leads that obey Einthoven's and Goldberger's laws: III = II - I, aVR = -(I + II) / 2, and so
on.

A method predicts each lead by itself, and six limb leads so predicted fit together only nearly.
"""

import numpy as np

from data_prep.ecg.leads import LIMB


def obey_limb_laws(mv: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Leads [12,T] in mV of which some are `seen` [12]: the same, with derived limb leads moved to
    the nearest ones (least squares in mV) that fit together and to the visible limb lead.

    With two or more visible limb leads the others were computed from them, and nothing is moved.
    """
    limb = seen[:6]
    count = int(limb.sum())
    if count >= 2:
        return mv
    # leads I and II [2,T]: what the visible lead fixes, and the best along what it leaves free
    fixed = np.linalg.pinv(LIMB[limb]) @ mv[:6][limb]
    free = np.linalg.svd(LIMB[limb])[2][count:].T  # [2,2-count]
    weight = np.linalg.pinv(LIMB[~limb] @ free)
    both = fixed + free @ (weight @ (mv[:6] - LIMB @ fixed)[~limb])
    found = mv.copy()
    found[:6][~limb] = (LIMB @ both)[~limb]
    return found
