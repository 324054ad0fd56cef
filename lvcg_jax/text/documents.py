"""JSON documents that commands write for each other, and read with a check that they are what they
should be."""

import json
import math
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError

# The scores of a row of `lvcg geometry_report`, in order.
GEOMETRY_SCORES = ("r_x", "r_y", "r_z", "r2_all", "r2", "mse", "mae")


def read_json(path: Path, formats: tuple[str, ...], written_by: str) -> dict:
    """A JSON document with one of these formats."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {written_by} writes it") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as JSON ({error}); {written_by} writes it"
        ) from None
    if isinstance(found, list):  # the bare results of launch/demo.py
        found = {"format": "list", "results": found}
    if not isinstance(found, dict) or found.get("format") not in formats:
        kind = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise InputError(
            f"{path} is not what {written_by} writes (format {kind!r}, not {formats[0]!r})"
        )
    return found


def read_probe(path: Path) -> dict:
    """probe.json of `lvcg probe` (or of the demo), or the results file of `lvcg results`."""
    formats = ("lvcg-probe-2", "lvcg-results-1", "list")
    document = read_json(path, formats, "lvcg probe --out=FILE, or lvcg results,")
    rows = document.get("results")
    if not rows or not all(
        isinstance(row, dict) and {"task", "models", "cells", "differences"} <= set(row)
        for row in rows
    ):
        raise InputError(f"{path} holds no probe results: write it anew with lvcg probe --out=FILE")
    return document


def to_json(document: dict) -> str:
    """JSON text in which a value that does not exist is null."""
    return json.dumps(_plain(document), indent=1, allow_nan=False) + "\n"


def _plain(value):
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
