"""What is wrong with a record, for the ledger: functions of signals, with every threshold stated
here.

They judge and name; they do not change any number that Preprocess computes. Each word in the
`defects` of a ledger is one of KINDS, followed by details after colons, for example
`limb_inconsistent:0.24mV`. The thresholds were chosen on public recordings:

- `detector_disagreement`: of 120 LUDB records with cardiologists' QRS marks it names all 20 in
  which the lead II detector is wrong (F1 under 90%), and none of the 98 in which it is right
  (F1 over 95%).
- `limb_inconsistent`: digital rounding leaves at most 0.003 mV; in LUDB, where each lead was
  filtered by itself, there are 0.24 mV.
- `dead_record`: in 3,100 records of five corpora, the quietest live one moves by 0.66 mV every two
  seconds in some lead; a PTB record with its electrodes off moves by 0.14 mV.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from data_prep.ecg import segment
from data_prep.ecg.leads import LEADS, canonical, mask_leads, order_leads
from data_prep.ecg.preprocess import Preprocess, Window
from data_prep.ecg.signal import span

KINDS = {
    "nan": "samples without a value, repaired",
    "gap": "a longer stretch without a value: the lead is missing",
    "spikes": "impossible values, repaired",
    "flat": "the lead stands still: missing",
    "railed": "the lead is at its converter's limit: missing",
    "absent": "the file has no such lead",
    "recovered": "limb lead computed from the others",
    "unknown_lead": "a signal that is none of the twelve leads",
    "short": "the window is shorter than asked",
    "tail_left_out": "a rest shorter than half a window",
    "window_left_out": "a window without a usable lead or beat",
    "long_interval": "more than the upper R-R bound between two beats",
    "merged_tail": "more beats than stored: the last ones are one interval",
    "one_beat": "a single R peak",
    "peaks_fallback_vcg": "lead II was no help: beats from the heart vector",
    "fast_rhythm": "beats of a fast regular rhythm, which nothing quiet lies between",
    "limb_inconsistent": "limb leads contradict Einthoven's law",
    "low_quality_lead_ii": "lead II is small or has no dominant peaks",
    "detector_disagreement": "beats on lead II and beats of the heart vector differ",
    "duplicate_of": "the same signal as the record named",
    "dead_record": "next to no signal in any lead",
    "unreadable": "the file cannot be read as a record",
    "too_short": "less than one second",
    "too_long": "more samples than a record may have",
    "no_lead": "every lead is missing",
    "no_beats": "no R peak",
    "failed": "the record broke the preprocessing",
    "crashed": "reading or preparing it ended the worker process",
    "checksum": "the samples of a lead do not add up to what the header states",
    "header_repaired": "the header is broken: leads and rate come from the .mat file",
    "not_annotated": "no cardiologist's marks for this lead",
}
LIMB_MV = 0.05  # 99th percentile of the largest contradiction among the limb leads
DEAD_MV, DEAD_SECONDS = 0.25, 2.0  # no lead moves by this much in the median two-second block
# fewer leads are never judged dead: a single lead may well be that small
DEAD_LEADS = 6
SMALL_LEAD_II_MV = 0.15  # 1st to 99th percentile of filtered lead II
MIN_KURTOSIS = 4.0  # of lead II: normal noise has 3, a sine 1.5, a clean ECG 10 and more
MATCH_SECONDS = 0.15  # peaks of two detectors this close are the same beat
MAX_DISAGREEMENT = 0.1  # share of all detected beats that only one detector sees
# Each row gives zero for consistent limb leads I, II, III, aVR, aVL, aVF, and needs only the leads
# whose weight is not zero.
_LAWS = np.array(
    [
        [-1, 1, -1, 0, 0, 0],
        [0.5, 0.5, 0, 1, 0, 0],
        [-0.5, 0, 0.5, 0, 1, 0],
        [0, -0.5, -0.5, 0, 0, 1],
    ],
    np.float32,
)


def signal_hash(signal: np.ndarray, rate: float, leads: Sequence[str]) -> str:
    """Sixteen hex digits that identify the content of a record [T,c]: values, rate and lead
    names."""
    digest = hashlib.sha256(
        f"{rate:g} {signal.shape} {[canonical(name) or name for name in leads]}".encode()
    )
    digest.update(np.ascontiguousarray(signal, np.float32))
    return digest.hexdigest()[:16]


def einthoven_residual(signal: np.ndarray, leads: Sequence[str]) -> float:
    """How far the limb leads [T,c] contradict each other, in mV: 99th percentile over time of the
    worst law.

    The laws are II = I + III and the definitions of the three augmented leads, as far as the leads
    exist; 0 if none applies.
    """
    residual = limb_residuals(signal, leads)
    if not residual.size:
        return 0.0
    rank = residual_rank(len(residual))
    return float(np.partition(residual, rank, axis=0)[rank].max())


def residual_rank(count: int) -> int:
    """Which of so many contradictions is their 99th percentile."""
    return int(0.99 * (count - 1))


def limb_residuals(
    signal: np.ndarray, leads: Sequence[str], exists: np.ndarray | None = None
) -> np.ndarray:
    """Contradictions [T,laws] in mV, at the samples where all limb leads of the record have
    values. Of a part of a record, `exists` [6] says which limb leads have any in the whole."""
    names = [canonical(name) for name in leads]
    columns = np.array([names.index(lead) if lead in names else -1 for lead in LEADS[:6]])
    limb = signal[:, columns]  # [T,6]
    finite = np.isfinite(limb) & (columns >= 0)
    exists = finite.any(axis=0) if exists is None else exists
    if not finite.all():
        limb = np.where(exists, limb, 0.0)[(finite | ~exists).all(axis=1)]
    laws = _LAWS[~((_LAWS != 0) & ~exists).any(axis=1)]
    return np.abs(limb @ laws.T)


def is_dead(mv: np.ndarray, rate: float, leads: Sequence[str]) -> bool:
    """Whether the filtered signal [12,T] in mV shows no heartbeat; `leads` are those in the
    file."""
    if len({canonical(name) for name in leads} - {None}) < DEAD_LEADS:
        return False
    size = min(round(DEAD_SECONDS * rate), mv.shape[1])
    blocks = mv[:, : mv.shape[1] // size * size].reshape(len(mv), -1, size)
    return bool(np.median((blocks.max(axis=2) - blocks.min(axis=2)).max(axis=0)) < DEAD_MV)


def lead_ii_defect(x: np.ndarray) -> str | None:
    """What is wrong with filtered lead II [T] in mV: `span=0.09mV`, `kurtosis=2.3`, or None."""
    size = span(x)
    if size < SMALL_LEAD_II_MV:
        return f"span={size:.2f}mV"
    squared = np.square(x - x.mean())
    kurtosis = np.square(squared).mean() / max(squared.mean() ** 2, 1e-12)
    return f"kurtosis={kurtosis:.1f}" if kurtosis < MIN_KURTOSIS else None


def disagreement(one: np.ndarray, other: np.ndarray, num_samples: int, rate: float) -> float:
    """The share of the peaks of two detectors that only one of them found.

    Peaks near the ends of the window do not count.
    """
    reach = MATCH_SECONDS * rate
    lonely = counted = 0
    for these, those in ((one, other), (other, one)):
        these = these[(these > reach) & (these < num_samples - reach)]
        counted += len(these)
        if len(those):
            right = (
                np.searchsorted(those, these).clip(1, len(those) - 1)
                if len(those) > 1
                else np.zeros_like(these)
            )
            gap = np.minimum(
                np.abs(those[right] - these), np.abs(those[np.maximum(right - 1, 0)] - these)
            )
            lonely += int((gap > reach).sum())
        else:
            lonely += len(these)
    return lonely / counted if counted else 0.0


def window_peaks(window: Window) -> np.ndarray:
    """The R peaks [m], in samples, between which the intervals of the window lie."""
    return window.start if window.complete[0] else window.start[1:]


def window_defects(
    window: Window, mv: np.ndarray, preprocess: Preprocess, detectors: bool = True
) -> list[str]:
    """Defects of one prepared window, with its filtered signal mv [12,T], that Preprocess does not
    name itself."""
    present, two = mask_leads(window.lead_mask), LEADS.index("II")
    num_samples, rate = mv.shape[1], window.rate
    defects = []
    if num_samples < round(preprocess.seconds * rate):
        defects.append(f"short:{num_samples / rate:.2f}s")
    if not present[two]:
        return defects
    wrong = lead_ii_defect(mv[two])
    if wrong:
        defects.append(f"low_quality_lead_ii:{wrong}")
    if detectors and "peaks_fallback_vcg" not in window.defects:
        counts = _disagreeing(window, mv, present, preprocess)
        if counts:
            defects.append(f"detector_disagreement:{counts[0]}:{counts[1]}")
    return defects


def _disagreeing(
    window: Window, mv: np.ndarray, present: np.ndarray, preprocess: Preprocess
) -> tuple | None:
    """The number of beats of the window's detector and of another one, or None if they agree.

    The quick detector clears most records; where it objects, the thorough one decides.
    """
    ours, rate, end = window_peaks(window), window.rate, mv.shape[1]
    if "merged_tail" in window.defects:  # the peaks within the last interval are not stored
        end = int(ours[-1])
    vcg = (present, rate, preprocess.peak_distance, preprocess.geometry)
    if preprocess.peaks == "vcg":
        heights = (preprocess.peak_height, preprocess.peak_retry_height)
        detectors = [
            lambda: segment.r_peaks_lead_ii(
                mv[LEADS.index("II")], rate, *heights, preprocess.peak_distance
            )
        ]
    else:
        detectors = [
            lambda: segment.r_peaks_quick(mv, *vcg),
            lambda: segment.r_peaks_vcg(mv, *vcg, refine=False),
        ]
    for detect in detectors:
        theirs = detect()
        theirs = theirs[theirs <= end]
        if disagreement(ours, theirs, end, rate) <= MAX_DISAGREEMENT:
            return None
    return len(ours), len(theirs)


def record_defects(signal: np.ndarray, leads: Sequence[str]) -> list[str]:
    """Defects of a whole record [T,c] in mV."""
    # enough for most records, and cheaper than a percentile
    if limb_residuals(signal, leads).max(initial=0.0) <= LIMB_MV:
        return []
    return limb_words(einthoven_residual(signal, leads))


def limb_words(residual: float) -> list[str]:
    """The defect of limb leads that contradict each other by so many mV, if that is much."""
    return [f"limb_inconsistent:{residual:.2f}mV"] if residual > LIMB_MV else []


def dropped_defects(signal: np.ndarray, leads: Sequence[str]) -> list[str]:
    """Leads that are absent, without values or flat in a record [T,c] that could not be
    prepared."""
    x, _ = order_leads(signal, leads)
    names = {canonical(name) for name in leads}
    defects = []
    for lead, row in zip(LEADS, x, strict=True):
        bad = int((~np.isfinite(row)).sum())
        if lead not in names:
            defects.append(f"absent:{lead}")
        elif bad:
            defects.append(f"nan:{lead}:{bad}")
        elif np.ptp(row) == 0:
            defects.append(f"flat:{lead}")
    return defects


def kind(word: str) -> str:
    """The kind of a defect: 'w2:gap:V3:40' -> 'gap'."""
    first, *rest = word.split(":")
    return rest[0] if rest and first[0] == "w" and first[1:].isdigit() else first


def kinds(cell: str) -> set[str]:
    """The kinds of defects in a cell of the ledger: 'flat:V1;w2:gap:V3:40' -> {'flat', 'gap'}."""
    return {kind(word) for word in cell.split(";") if word}
