"""Heads: what `lvcg probe --save=HEAD` keeps of a probe, so that it answers for new records.

One safetensors file with JSON in its metadata: the linear layer, the calibration of its scores, a
threshold for each class, where its training records lie, and facts:

    task, classes      what it answers, by name
    checkpoint         name and hash of the weights whose embeddings it reads; no others will do
    preprocess_hash    of the preprocessing that made the beats
    parts              names and sizes of the parts of these embeddings
    leads              that most of its training records had
    training           corpus, splits, protocol, setting
    scores             on the test split, with intervals, and by class
    views              the same with fewer leads, where that was measured
    chosen_by          how thresholds, calibration and the flag were chosen

A head of a number (`lvcg probe --target`, kind 'number') has one class, its name; its score
becomes the number by slope and offset, and in the place of a threshold stands half the width of an
interval. A head of `lvcg probe --protocol=attention` (kind 'attention') also reads the beats of a
record: what attention.py makes of them is added to the scores of the linear layer.

Heads that the package carries lie in PACKAGED/heads, named WEIGHTS-TASK.

Axis letters: m row, r record, d feature, c class.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.words import first_line, list_some
from lvcg_jax.runs import weights
from lvcg_jax.runs.attention import Attention, BeatInputs
from lvcg_jax.stats.blocks import by_blocks
from lvcg_jax.stats.calibration import apply_platt
from lvcg_jax.stats.layer import Linear
from lvcg_jax.stats.scaling import mean_by
from lvcg_jax.stats.spread import LEVELS, Spread

FORMAT = 1
ENDING = ".safetensors"
UNLIKE = 0.95  # a record farther away than this share of the training records is flagged
DEFAULT = "super"  # the task that is answered if no head is named
# kinds of heads: that give a number, and that read beats beside the embedding
NUMBER, ATTENTION = "number", "attention"
_KEY = "lvcg_head"
_FACTS = ("check", "task", "classes", "checkpoint", "preprocess_hash", "parts", "leads", "scores")
HEAD_HELP = (
    f"file of lvcg probe --save, or a packaged head by name (default {DEFAULT}); may be repeated"
)


@dataclass(frozen=True)
class Answers:
    """What a head says of some records."""

    values: np.ndarray  # [r,c] calibrated probabilities; [r,1] of a head of a number
    decisions: np.ndarray  # bool [r,c]: at the threshold of its class, or above; [r,0] of a number
    quantile: np.ndarray  # [r] share of the training records that are nearer to their mean
    unlike: np.ndarray  # bool [r]: quantile above UNLIKE


@dataclass(frozen=True, repr=False)
class Head:
    """A classifier of embeddings."""

    layer: Linear
    platt: np.ndarray  # [2,c] slope and offset, from scores to probabilities
    thresholds: np.ndarray  # [c] probabilities; NaN: none could be chosen, the answer is no
    spread: Spread
    facts: dict
    attention: Attention | None = None

    def __repr__(self) -> str:
        return f"Head({self.task}: {len(self.classes)} classes, of {self.facts['checkpoint']})"

    @property
    def task(self) -> str:
        return self.facts["task"]

    @property
    def is_number(self) -> bool:
        """Whether it gives a number, and not probabilities of classes."""
        return self.facts.get("kind") == NUMBER

    @property
    def classes(self) -> list[str]:
        return self.facts["classes"]

    def answer(
        self, x: np.ndarray, numbers: np.ndarray, beats: BeatInputs | None = None
    ) -> Answers:
        """Answers for embeddings [m,d], and for the beats [m] of the same rows if it reads them;
        rows with one of the numbers [m] are windows of one record, whose scores and distances are
        averaged."""
        if x.shape[1] != len(self.layer.shift):
            raise InputError(
                f"head '{self.task}' reads embeddings of {len(self.layer.shift)} numbers, not of"
                f" {x.shape[1]}"
            )
        scores = by_blocks(self.layer, x)
        if self.attention is not None:
            if beats is None:
                raise InputError(
                    f"head '{self.task}' is an attention head, which reads beats beside embeddings:"
                    " ask it with lvcg predict and --record, --folder or --data"
                )
            scores = scores + self.attention(beats)
        scores = mean_by(numbers, scores)
        distance = mean_by(numbers, by_blocks(self.spread.distance, x)[:, None])[:, 0]
        quantile = self.spread.share_nearer(distance)
        if self.is_number:
            values, decisions = self.platt[0] * scores + self.platt[1], np.zeros((len(scores), 0))
        else:
            values = apply_platt(self.platt, scores)
            decisions = values >= self.thresholds
        return Answers(values, decisions.astype(bool), quantile, quantile > UNLIKE)

    def require(self, checkpoint: str, preprocess_hash: str) -> None:
        """An InputError unless embeddings of these weights and preprocessing are what it reads."""
        mine, other = (name.rpartition("#")[2] for name in (self.facts["checkpoint"], checkpoint))
        if mine != other:
            raise InputError(
                f"head '{self.task}' reads embeddings of {self.facts['checkpoint']}, not of"
                f" {checkpoint or 'an unnamed model'}: use those weights, or fit a head to these"
                " with lvcg probe --save"
            )
        if preprocess_hash != self.facts["preprocess_hash"]:
            raise InputError(
                f"head '{self.task}' needs the preprocessing {self.facts['preprocess_hash']}, not"
                f" {preprocess_hash or 'an unknown one'}: embed the records with its weights"
            )

    def lead_warning(self, visible: Iterable[str]) -> str | None:
        """What is known of the loss if only these leads are there; None if none of its leads is
        missing."""
        there = set(visible)
        missing = [lead for lead in self.facts["leads"] if lead not in there]
        if not missing:
            return None
        shown = ", ".join(lead for lead in self.facts["leads"] if lead in there)
        words = f"head '{self.task}' was trained with {len(self.facts['leads'])} leads, here are"
        for view in self.facts.get("views", []):
            if set(view["leads"]) == there & set(self.facts["leads"]):
                now, full = 100 * view["macro_auroc"], 100 * view["all_leads"]
                loss = f"its test macro AUROC is {now:.1f} with these, {full:.1f} with all"
                return f"{words} {shown}: {loss}"
        return f"{words} {shown}: what that costs was not measured"

    def save(self, path: str | Path) -> None:
        """Writes the file that `load_head` reads, in whole or not at all."""
        tensors = {
            "weights": np.asarray(self.layer.weights, np.float32),
            "bias": np.asarray(self.layer.bias, np.float32),
            "shift": np.asarray(self.layer.shift, np.float32),
            "scale": np.asarray(self.layer.scale, np.float32),
            "platt": np.asarray(self.platt, np.float64),
            "thresholds": np.asarray(self.thresholds, np.float64),
            "axes": np.asarray(self.spread.axes, np.int8),
            "along": np.asarray(self.spread.along, np.float32),
            "beside": np.asarray(self.spread.beside, np.float32),
            "quantiles": np.asarray(self.spread.quantiles, np.float32),
            **(self.attention.tensors() if self.attention else {}),
        }
        held = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
        facts = _rounded(self.facts) | {"format": FORMAT, "check": _check(held)}
        text = json.dumps(facts, allow_nan=False, separators=(",", ":"))
        write_whole(path, tensor_bytes(held, metadata={_KEY: text}))


def _check(tensors: dict[str, np.ndarray]) -> str:
    """Sixteen hex digits of the content of all tensors."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    return digest.hexdigest()[:16]


def _rounded(value):
    """Facts with numbers of four digits, which is more than any of them is sure of."""
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(x) for x in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def check_ending(path: str | Path) -> None:
    if Path(path).suffix != ENDING:
        raise InputError(f"--save={path}: the file of a head ends in {ENDING}")


def folder() -> Path:
    """Where the heads of the package lie."""
    return weights.PACKAGED / "heads"


def names() -> list[str]:
    """The names of the packaged heads, WEIGHTS-TASK."""
    return sorted(path.stem for path in folder().glob(f"*{ENDING}"))


def find_head(name: str | Path, of: str | None = None) -> Path:
    """The file of a head: a path, WEIGHTS-TASK, or TASK alone for the weights `of`, which are by
    default the first that have such a head."""
    if Path(name).is_file():
        return Path(name)
    tried = [str(name), *(f"{one}-{name}" for one in ([of] if of else weights.DEFAULTS))]
    found = next((one for one in tried if one in names()), None)
    if found is None:
        there = f"packaged are {', '.join(names())}" if names() else "none are packaged"
        raise InputError(f"no file of a head {name}, and no packaged head of that name ({there})")
    return folder() / f"{found}{ENDING}"


def load_head(name: str | Path, of: str | None = None) -> Head:
    """A head from a file or by name, as `find_head` finds it; an InputError for what is none."""
    path = find_head(name, of)
    try:
        data = path.read_bytes()
        t = read_tensors(data)
        facts = json.loads(_metadata(data)[_KEY])
        layer = Linear(t["weights"], t["bias"], t["shift"], t["scale"])
        places = (t[name] for name in ("axes", "along", "beside", "quantiles"))
        spread = Spread(t["shift"], t["scale"], *places)
        attention = None
        if facts.get("kind") == ATTENTION:
            attention = Attention.from_tensors(facts["attention"], t, len(facts["classes"]))
        head = Head(layer, t["platt"], t["thresholds"], spread, facts, attention)
        missing = [name for name in _FACTS if name not in facts]
        if facts.get("format") != FORMAT or missing:
            raise ValueError(f"format {facts.get('format')}, without {list_some(missing) or '-'}")
        d, c = sum(facts["parts"].values()) or len(t["shift"]), len(facts["classes"])
        shapes = {
            "weights": (d, c), "bias": (c,), "shift": (d,), "scale": (d,), "platt": (2, c),
            "thresholds": (c,), "axes": (d, len(t["along"])), "beside": (d,),
            "quantiles": LEVELS.shape,
        }  # fmt: skip
        wrong = [name for name, shape in shapes.items() if t[name].shape != shape]
        if wrong or facts["check"] != _check(t):
            raise ValueError(f"{list_some(wrong)} of a wrong shape" if wrong else "its checksum")
    # safetensors and json each have errors of their own for a damaged file
    except Exception as error:
        raise InputError(
            f"{path} is damaged or not a head of lvcg probe --save ({first_line(error, 80)})"
        ) from None
    return head


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, which begins with the length of a JSON header."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])["__metadata__"]


def weights_of(path: Path, head: Head) -> str | Path:
    """The weights whose embeddings a head reads: of the run directory that it lies in, or packaged;
    an InputError if neither is at hand."""
    if (path.parent / "config.json").is_file():
        return path.parent
    name = head.facts["checkpoint"].rpartition("#")[0]
    if name not in weights.names():
        raise InputError(
            f"head {path} reads embeddings of {head.facts['checkpoint']}: give --checkpoint=RUN,"
            " the run directory of these weights"
        )
    return name
