"""What a trained model says of a record: its embedding, its beats, its heart vector, and the answer
of a head.

Axis letters: w window of a record, n beat, d feature.
"""

from dataclasses import dataclass

import numpy as np

from lvcg_jax.embed.table import beat_weighted_mean
from lvcg_jax.runs.attention import BeatInputs
from lvcg_jax.runs.heads import Head
from lvcg_jax.text.notebook import facts_html, part_words, to_frame


@dataclass(frozen=True, repr=False)
class Embedding:
    """The embedding of one record, with one row per window of at most ten seconds.

    Attributes:
      embedding: float32 [w,d], the parts structure, dynamics and rhythm side by side.
      parts: the three parts by name, float32 [w,.] each.
      num_beats: [w] beats in each window.
      visible: per window, the leads that the model saw.
      rank: [w] dimensions that these leads span; below 3 a part of the heart vector is lost.
      condition: [w] condition number of their directions; inf if the rank is below 3 (or below the
        number of modes, if the model's geometry is a field).
      gain: [w] by how much the lift to the heart vector amplifies at most.
      defects: per window, what was found wrong, in the words of data_prep.ecg.quality.
      start_seconds: [w] where the window starts in the record.

    Example:
      >>> e = LVCG.load("paper").embed(signal, fs=500, leads=LEADS)
      >>> e.embedding.shape, e.mean.shape, e.parts["rhythm"].shape
      ((1, 640), (640,), (1, 128))
    """

    embedding: np.ndarray
    parts: dict[str, np.ndarray]
    num_beats: np.ndarray
    visible: list[list[str]]
    rank: np.ndarray
    condition: np.ndarray
    gain: np.ndarray
    defects: list[list[str]]
    start_seconds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """One vector [d] for the record: the mean of its windows, weighted by their beats."""
        return beat_weighted_mean(self.embedding, self.num_beats)

    def to_pandas(self):
        """A pandas.DataFrame with a row per window and a column for each number and flag."""
        columns = {
            "start_seconds": self.start_seconds,
            "num_beats": self.num_beats,
            "leads": [";".join(names) for names in self.visible],
            "rank": self.rank,
            "condition": self.condition,
            "gain": self.gain,
            "defects": [";".join(words) for words in self.defects],
        }
        return to_frame(columns, self.embedding, self._sizes)

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: x.shape[1] for name, x in self.parts.items()}

    def _facts(self) -> dict[str, object]:
        return {
            "windows": len(self.embedding),
            "numbers": f"{self.embedding.shape[1]} ({part_words(self._sizes)})",
            "beats": int(self.num_beats.sum()),
            "leads": ", ".join(dict.fromkeys(lead for names in self.visible for lead in names)),
            "rank": int(self.rank.min()),
            "defects": "; ".join(dict.fromkeys(w for words in self.defects for w in words)) or "-",
        }

    def __repr__(self) -> str:
        return f"Embedding({', '.join(f'{k}: {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts_html("Embedding", self._facts())


@dataclass(frozen=True)
class Prediction:
    """What a head says of one record.

    Attributes:
      task: the question that the head answers.
      probabilities: calibrated probability of each class by name; empty for a head of a number.
      value: what a head of a number says (`lvcg probe --target`), else None.
      interval: low and high around it, which held 90% of the validation records; else None.
      thresholds: of each class by name, chosen on validation records; NaN if none could be chosen.
      decisions: the classes at or above their thresholds.
      quantile: share of the head's training records that lie nearer to their mean than this one.
      unlike: whether that is above 0.95: the record is unlike those that the head learned from.
      warning: what is known of the loss if leads are missing that the head was trained with, and
        whether a part of it for few leads has answered; else None.
      embedding: the embedding of the record, with rank and defects.
    """

    task: str
    probabilities: dict[str, float]
    value: float | None
    interval: tuple[float, float] | None
    thresholds: dict[str, float]
    decisions: list[str]
    quantile: float
    unlike: bool
    warning: str | None
    embedding: Embedding


@dataclass(frozen=True)
class Beats:
    """The beats of one window, with one token each.

    Attributes:
      tokens: float32 [n,d], the token of each beat.
      start: [n] first sample of each beat, counted from the start of the window.
      length: [n] samples of each beat.
      complete: [n] whether the beat is a whole interval from R peak to R peak.
      rate: samples per second of `start` and `length`: those of the preprocessed signal.
      start_seconds: where the window starts in the record.
    """

    tokens: np.ndarray
    start: np.ndarray
    length: np.ndarray
    complete: np.ndarray
    rate: float
    start_seconds: float


@dataclass(frozen=True)
class HeartVector:
    """The heart vector of one window, as the model's encoder sees it.

    It is lifted from the visible leads of the normalised signal, so it has no unit.

    Attributes:
      vcg: float32 [3,T]; in the paper's geometry x to the left, y down, z to the front. In a field
        of k modes [k,T], their coordinates.
      r_peaks: samples of the R peaks, counted from the start of the window.
      rate: samples per second.
      start_seconds: where the window starts in the record.
      rank: dimensions that the visible leads span; below 3 a part of the vector is lost.
    """

    vcg: np.ndarray
    r_peaks: np.ndarray
    rate: float
    start_seconds: float
    rank: int


def prediction_of(head: Head, e: Embedding, beats: BeatInputs | None = None) -> Prediction:
    """The answer for one record: the mean over its windows, as in the probe."""
    answers = head.answer(e.embedding, np.zeros(len(e.embedding), int), beats, e.visible)
    values = answers.values[0].tolist()
    value = values[0] if head.is_number else None
    half = float(head.thresholds[0])
    seen = set.intersection(*map(set, e.visible))
    thresholds = dict(zip(head.classes, head.of_leads(seen).thresholds.tolist(), strict=True))
    return Prediction(
        task=head.task,
        probabilities={} if head.is_number else dict(zip(head.classes, values, strict=True)),
        value=value,
        interval=None if value is None else (value - half, value + half),
        thresholds={} if head.is_number else thresholds,
        decisions=[c for c, yes in zip(head.classes, answers.decisions[0], strict=False) if yes],
        quantile=float(answers.quantile[0]),
        unlike=bool(answers.unlike[0]),
        warning=head.lead_warning(seen),
        embedding=e,
    )
