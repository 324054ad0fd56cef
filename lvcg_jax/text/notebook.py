"""How objects show themselves in a notebook, and how they become data frames."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from data_prep.base.errors import InputError


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """A small table of facts."""
    row = Markup("<tr><th style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>")
    rows = Markup("").join(row.format(name, value) for name, value in facts.items())
    return str(Markup("<table><caption>{}</caption>{}</table>").format(escape(title), rows))


def part_words(parts: Mapping[str, int]) -> str:
    """'structure 604 + dynamics 256 + rhythm 128'."""
    return " + ".join(f"{name} {size}" for name, size in parts.items())


def part_names(parts: Mapping[str, int]) -> list[str]:
    """A name for each number of an embedding: structure0, structure1, ..., rhythm127."""
    return [f"{name}{i}" for name, size in parts.items() for i in range(size)]


def to_frame(columns: Mapping[str, Any], embedding: np.ndarray, parts: Mapping[str, int]):
    """A pandas.DataFrame of columns [m], and one column for each number of an embedding [m,d]."""
    import pyarrow as pa  # late: most commands never need it

    numbers = dict(zip(part_names(parts), np.asarray(embedding, np.float32).T, strict=True))
    table = pa.table({name: pa.array(list(x)) for name, x in columns.items()} | numbers)
    try:
        return table.to_pandas()
    except ImportError:
        raise InputError("to_pandas needs pandas: pip install pandas") from None
