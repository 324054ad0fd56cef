"""What the service says of one uploaded record: numbers as JSON takes them, or the report."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError, NotSaid
from data_prep.ecg.leads import canonical, parse_leads
from data_prep.ecg.record import Record
from data_prep.formats.any_file import read_any
from lvcg_jax.embed.answers import Prediction, prediction_of
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.report.page import NOT_FOR_DIAGNOSIS
from lvcg_jax.report.record import Options, record_page
from lvcg_jax.runs.heads import Head
from lvcg_jax.serve.asked import Asked


@dataclass(frozen=True)
class Answers:
    """A model with its heads, and the longest record that it is asked to read."""

    model: LVCG
    checkpoint: str | Path  # where the model is from
    heads: list[Head]
    minutes: float

    def answer(self, path: Path, asked: Asked) -> dict | str:
        """Numbers, or the page of a report; an InputError for a record that cannot be used."""
        try:
            record = read_any(path, asked.rate, asked.unit, asked.lead_names)
        except NotSaid as error:
            raise InputError(f"{error} (here: the fields rate, unit and lead_names)") from None
        seconds = len(record.signal) / record.rate
        if seconds > 60 * self.minutes:
            raise InputError(
                f"record {record.record_id} lasts {seconds / 60:.0f} minutes, more than the"
                f" {self.minutes:g} that are taken here: use lvcg embed and lvcg predict"
            )
        return self._numbers(record, asked) if asked.answer == "json" else self._page(path, asked)

    def _page(self, path: Path, asked: Asked) -> str:
        how = (asked.rate, asked.unit, asked.lead_names)
        options = Options(
            str(path), self.checkpoint, asked.leads, None, None, *how, 0.0, asked.command(path.name)
        )
        return record_page(options, self.model, self.heads)

    def _numbers(self, record: Record, asked: Asked) -> dict:
        names = [canonical(name) for name in record.leads]
        columns = [i for i, name in enumerate(names) if name]
        visible = parse_leads(asked.leads) if asked.leads else None
        e = self.model.embed(
            record.signal[:, columns], record.rate, [names[i] for i in columns], visible=visible
        )
        windows = [
            {
                "start_seconds": float(e.start_seconds[w]),
                "num_beats": int(e.num_beats[w]),
                "leads": e.visible[w],
                "rank": int(e.rank[w]),
                "condition": _number(e.condition[w]),
                "gain": _number(e.gain[w]),
                "defects": e.defects[w],
                "embedding": e.embedding[w].tolist(),
            }
            for w in range(len(e.embedding))
        ]
        return {
            "seconds": len(record.signal) / record.rate,
            "rate": record.rate,
            "leads": record.leads,
            "notes": record.notes,
            "defects": list(dict.fromkeys([*record.defects, *np.concatenate(e.defects).tolist()])),
            "rank": int(e.rank.min()),
            "condition": _number(e.condition.max()),
            "embedding": e.mean.tolist(),
            "parts": self.model.part_sizes,
            "windows": windows,
            "predictions": {head.task: _said(prediction_of(head, e)) for head in self.heads},
            "checkpoint": self.model.checkpoint,
            "preprocess_hash": self.model.preprocess.hash(),
            "remark": NOT_FOR_DIAGNOSIS,
        }


def _said(found: Prediction) -> dict:
    """A prediction without what stands elsewhere in the answer."""
    number = {"value": found.value, "interval": found.interval}
    classes = {"probabilities": found.probabilities, "decisions": found.decisions}
    flags = {"quantile": found.quantile, "unlike": found.unlike, "warning": found.warning}
    return (classes if found.value is None else number) | flags


def _number(x: float) -> float | None:
    """JSON knows no infinity: of leads that do not span all dimensions the condition is null."""
    return float(x) if math.isfinite(x) else None
