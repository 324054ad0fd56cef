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
    few                of the heads for few leads that are in the file too: their leads and scores
    chosen_by          how thresholds, calibration and the flag were chosen

A head of a number (`lvcg probe --target`, kind 'number') has one class, its name; its score
becomes the number by slope and offset, and in the place of a threshold stands half the width of an
interval. A head of `lvcg probe --protocol=attention` (kind 'attention') also reads the beats of a
record: what attention.py makes of them is added to the scores of the linear layer.

A head may hold others for the same question that learned from embeddings of few leads (`few`);
each record is answered by the one whose leads are most like those that it shows.

Heads that the package carries lie in PACKAGED/heads, named WEIGHTS-TASK.

Axis letters: m row, r record, d feature, c class.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
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
# facts of a head for few leads: those of its own, and those of the head that it is kept in
_FEW_FACTS = ("leads", "scores")
_SHARED = ("task", "classes", "checkpoint", "preprocess_hash", "parts")
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
    few: tuple["Head", ...] = ()  # for the same question, each for the few leads in its facts

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

    def of_leads(self, visible: Iterable[str]) -> "Head":
        """Of this head and those for few leads the one whose leads are most like these: it shares
        the largest part of all that either has."""
        there = set(visible)

        def shared(head: Head) -> float:
            leads = set(head.facts["leads"])
            return len(there & leads) / max(len(there | leads), 1)

        return max((self, *self.few), key=shared)

    def answer(
        self,
        x: np.ndarray,
        numbers: np.ndarray,
        beats: BeatInputs | None = None,
        leads: Sequence[Iterable[str]] | None = None,
    ) -> Answers:
        """Answers for embeddings [m,d], and for the beats [m] of the same rows if it reads them.
        Rows with one of the numbers [m] are windows of one record, whose scores and distances are
        averaged. If the leads [m] that the rows show are given, a record is answered by the head
        for those that all its windows show."""
        if leads is None or not self.few:
            return self._answer(x, numbers, beats)
        _, record = np.unique(numbers, return_inverse=True)
        shown: dict[int, set[str]] = {}
        for r, names in zip(record.tolist(), leads, strict=True):
            shown[r] = shown.get(r, set(names)) & set(names)
        owners: dict[int, list[int]] = {}
        for r in sorted(shown):
            owners.setdefault(id(self.of_leads(shown[r])), []).append(r)
        found: dict[str, np.ndarray] = {}
        for head in (self, *self.few):
            records = np.array(owners.get(id(head), []), int)
            rows = np.flatnonzero(np.isin(record, records))
            if not len(rows):
                continue
            some = beats.take(rows) if head.attention and beats is not None else None
            answers = head._answer(x[rows], np.searchsorted(records, record[rows]), some)
            for one in fields(Answers):
                part = getattr(answers, one.name)
                whole = found.setdefault(
                    one.name, np.zeros((len(shown), *part.shape[1:]), part.dtype)
                )
                whole[records] = part
        return Answers(**found)

    def _answer(self, x: np.ndarray, numbers: np.ndarray, beats: BeatInputs | None) -> Answers:
        """Answers of this head alone."""
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
        mine = self.facts["leads"]
        if not set(mine) - there:
            return None
        shown = ", ".join(lead for lead in mine if lead in there)
        words = f"head '{self.task}' was trained with {len(mine)} leads, here are {shown}"
        few = self.of_leads(there)
        if few is not self:
            same = set(few.facts["leads"]) == there
            named = "these" if same else ", ".join(few.facts["leads"])
            words += f": its part for {named} answers, with a test macro AUROC of"
            now, full = (100 * head.facts["scores"]["macro_auroc"] for head in (few, self))
            return f"{words} {now:.1f}{'' if same else ' there'}, {full:.1f} with all"
        for view in self.facts.get("views", []):
            if set(view["leads"]) == there & set(mine):
                now, full = 100 * view["macro_auroc"], 100 * view["all_leads"]
                return f"{words}: its test macro AUROC is {now:.1f} with these, {full:.1f} with all"
        return f"{words}: what that costs was not measured"

    def tensors(self) -> dict[str, np.ndarray]:
        """All arrays by name; those of a head for few leads begin with 'fewN/'."""
        held = {
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
        for number, head in enumerate(self.few):
            held |= {f"{_few(number)}{name}": x for name, x in head.tensors().items()}
        return held

    def save(self, path: str | Path) -> None:
        """Writes the file that `load_head` reads, in whole or not at all."""
        held = {name: np.ascontiguousarray(x) for name, x in self.tensors().items()}
        few = [{name: head.facts[name] for name in _FEW_FACTS} for head in self.few]
        facts = _rounded(self.facts | ({"few": few} if few else {}))
        text = facts | {"format": FORMAT, "check": _check(held)}
        text = json.dumps(text, allow_nan=False, separators=(",", ":"))
        write_whole(path, tensor_bytes(held, metadata={_KEY: text}))


def _few(number: int) -> str:
    """What the names of the arrays of a head for few leads begin with."""
    return f"few{number}/"


def _head_of(t: dict[str, np.ndarray], facts: dict) -> Head:
    """A head from its arrays and facts, without those for few leads; a ValueError if the arrays do
    not fit together."""
    d, c = sum(facts["parts"].values()) or len(t["shift"]), len(facts["classes"])
    shapes = {
        "weights": (d, c), "bias": (c,), "shift": (d,), "scale": (d,), "platt": (2, c),
        "thresholds": (c,), "axes": (d, len(t["along"])), "beside": (d,),
        "quantiles": LEVELS.shape,
    }  # fmt: skip
    wrong = [name for name, shape in shapes.items() if t[name].shape != shape]
    if wrong:
        raise ValueError(f"{list_some(wrong)} of a wrong shape")
    places = (t[name] for name in ("axes", "along", "beside", "quantiles"))
    attention = None
    if facts.get("kind") == ATTENTION:
        attention = Attention.from_tensors(facts["attention"], t, c)
    return Head(
        Linear(t["weights"], t["bias"], t["shift"], t["scale"]),
        t["platt"],
        t["thresholds"],
        Spread(t["shift"], t["scale"], *places),
        facts,
        attention,
    )


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
        missing = [name for name in _FACTS if name not in facts]
        if facts.get("format") != FORMAT or missing:
            raise ValueError(f"format {facts.get('format')}, without {list_some(missing) or '-'}")
        if facts["check"] != _check(t):
            raise ValueError("its checksum")
        few = []
        for number, mine in enumerate(facts.get("few", [])):
            own = {
                k.removeprefix(_few(number)): x for k, x in t.items() if k.startswith(_few(number))
            }
            few.append(_head_of(own, {k: x for k, x in facts.items() if k in _SHARED} | mine))
        head = replace(_head_of(t, facts), few=tuple(few))
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
