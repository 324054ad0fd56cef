"""Maps of an embedding for a report: PCA and t-SNE on canvases, coloured by any label, naming what
is pointed at.

Ten thousand records take some 300 kB: a place is two 16-bit numbers, labels are numbers of a list.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from data_prep.base.pseudonyms import Pseudonyms
from lvcg_jax.embed.table import Table
from lvcg_jax.probe.labels import in_order
from lvcg_jax.report.page import macros, parts
from lvcg_jax.stats.scaling import fit_pca

MOST_ROWS = 10_000
FEWEST_ROWS = 12  # under so many records a map shows nothing
TSNE_INPUT = 50  # principal components that t-SNE starts from
SHOWN, ROOM = 99.0, 0.15  # percent of the rows that set the edges of a map; share around them
SPLIT = "split"  # what else records can be coloured by


@dataclass(frozen=True)
class Map:
    """Places [m,2] of the rows of a table."""

    title: str
    places: np.ndarray
    x: str  # what is to the right, with its unit
    y: str


def choose_rows(table: Table, most: int = MOST_ROWS) -> np.ndarray:
    """Rows [k] to show, in order: all, or some drawn at random, the same ones every time."""
    count = len(table.record_id)
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def pca_map(
    embedding: np.ndarray, title: str, also: np.ndarray | None = None
) -> tuple[Map, np.ndarray] | None:
    """The map of the first two components of rows [m,d], each feature scaled to unit variance, and
    the components.

    Rows `also` [k,d] are placed with them without a say in the axes. None if the rows are few or
    alike.
    """
    if len(embedding) < FEWEST_ROWS:
        return None
    spread = embedding.std(0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    pca = fit_pca(embedding / scale, TSNE_INPUT)
    if pca.n_components_ < 2:
        return None
    components = pca.transform(
        (embedding if also is None else np.concatenate([embedding, also])) / scale
    )
    share = 100 * pca.explained_variance_ratio_
    names = (f"principal component {k + 1} ({share[k]:.0f}% of variance)" for k in range(2))
    return Map(title, components[:, :2], *names), components


def make_maps(embedding: np.ndarray, with_tsne: bool = True) -> list[Map]:
    """PCA, and t-SNE of its first components; none if the rows are few or alike."""
    found = pca_map(embedding, "PCA")
    if found is None:
        return []
    first, components = found
    if not with_tsne:
        return [first]
    from sklearn.manifold import TSNE  # late: it takes a second to import

    perplexity = min(30.0, (len(components) - 1) / 4)
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(components)
    return [
        first,
        Map("t-SNE", places, f"t-SNE 1 (no unit; perplexity {perplexity:g})", "t-SNE 2 (no unit)"),
    ]


def quantise(places: np.ndarray) -> str:
    """Places [m,2] as 16-bit numbers from edge to edge, one scale for both directions, in base64.

    The edges leave room around the middle 99% of the rows; what lies farther out is drawn at an
    edge, so that a few odd records do not squeeze all others into a corner.
    """
    inner = np.percentile(places, ((100 - SHOWN) / 2, (100 + SHOWN) / 2), axis=0)
    room = ROOM * (inner[1] - inner[0])
    low = np.maximum(inner[0] - room, places.min(0))
    high = np.minimum(inner[1] + room, places.max(0))
    span = max(float((high - low).max()), 1e-12)
    whole = np.round(65535 * ((places - (low + high) / 2) / span + 0.5)).clip(0, 65535)
    return base64.b64encode(whole.astype("<u2").tobytes()).decode()


def label_rows(table: Table, rows: np.ndarray) -> list[dict]:
    """The tasks of a table, and the split, as {name, classes, rows}: '0,2;-;' is two classes, not
    labelled, none."""
    tasks = []
    known = table.tasks
    for task in in_order(known):
        classes = known[task]
        number = {name: str(i) for i, name in enumerate(classes)}
        cells = [table.labels[i].get(task) for i in rows]
        words = ["-" if cell is None else ",".join(number[name] for name in cell) for cell in cells]
        tasks.append({"name": task, "classes": classes, "rows": ";".join(words)})
    splits = sorted(set(table.split[rows].tolist()))
    if splits != [""]:
        number = {name: str(i) for i, name in enumerate(splits)}
        named = [name or "none" for name in splits]
        tasks.append(
            {
                "name": SPLIT,
                "classes": named,
                "rows": ";".join(number[s] for s in table.split[rows]),
            }
        )
    return tasks or [
        {"name": "nothing", "classes": ["all records"], "rows": ";".join(["0"] * len(rows))}
    ]


def shown_name(table: Table, row: int, names: Pseudonyms | None = None) -> str:
    """A record on a page: its id or pseudonym. Of a training record the row alone, so that a page
    names nobody whom a model was trained on; who has the table can look it up."""
    if table.split[row] == "train":
        return f"training record, row {row} of the table"
    name = str(table.record_id[row])
    return name if names is None else names.of(name)


def map_names(table: Table, rows: np.ndarray, names: Pseudonyms | None = None) -> list[str]:
    """What the pointer shows first: the record, and the window if there are several."""
    several = table.window is not None and len(set(table.window[rows].tolist())) > 1
    return [
        shown_name(table, i, names) + (f", window {table.window[i]}" if several else "")
        for i in rows
    ]


def maps_figure(
    maps: Sequence[Map],
    names: Sequence[str],
    tasks: Sequence[dict],
    caption: str,
    command: str,
    marks: Sequence[tuple[int, str]] = (),
) -> Markup:
    """Canvases with a choice of the colour; `marks` are rings (row, word)."""
    held = {
        "maps": [{"x": m.x, "y": m.y, "places": quantise(m.places)} for m in maps],
        "records": list(names),
        "tasks": list(tasks),
        "marks": [list(mark) for mark in marks],
    }
    choices = [
        {"name": task["name"], "choices": task["classes"] if may_be_alone(task) else ()}
        for task in tasks
    ]
    drawing = macros("map.html").maps_with_colours(maps, choices, held)
    return parts.figure(drawing, caption, command)


def may_be_alone(task: dict) -> bool:
    """Whether one class of a task is worth a map of its own, against all others."""
    return task["name"] != SPLIT and len(task["classes"]) > 1
