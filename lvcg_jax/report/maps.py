"""Embeddings of the same records side by side, as 2-D maps in the colours of a label: one SVG file.

    lvcg map --embeddings=LVCG=lvcg.npz --embeddings=random=random.npz --out=map.svg

The files are those of `lvcg embed`, `lvcg median_beat` or anybody's with the same record ids; only
records that all of them have are drawn, so every map shows the same ones in the same colours. Maps
are drawn by t-SNE or PCA of the standardised embeddings. A map shows neighbourhoods, not how well
labels can be told apart: that is what `lvcg probe` measures.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.ecg.svg import write_picture
from lvcg_jax.embed.dataset import check_place
from lvcg_jax.embed.table import Table, load_table
from lvcg_jax.probe.labels import in_order
from lvcg_jax.report.embedding_map import FEWEST_ROWS, make_maps
from lvcg_jax.text.charts import scatter
from lvcg_jax.text.flags import named_path

SEVERAL, NONE = "several", "none of them"  # in the place of a class


def shared_rows(tables: Sequence[Table], task: str, split: str, most: int) -> list[np.ndarray]:
    """For each table the rows [k] of the same records, in the same order: those labelled for the
    task, of the split, and at most so many, drawn at random but always the same."""
    places = [{key: row for row, key in enumerate(table.keys)} for table in tables]
    first = tables[0]
    keys = [
        key
        for row, key in enumerate(first.keys)
        if task in first.labels[row]
        and split in ("all", first.split[row])
        and all(key in place for place in places)
    ]
    if len(keys) < FEWEST_ROWS:
        raise InputError(
            f"{len(keys)} records are in all files and labelled for '{task}': a map needs"
            f" {FEWEST_ROWS}; check --task and --split, and that the files are of one data set"
        )
    keys.sort()
    if len(keys) > most:
        chosen = np.sort(np.random.default_rng(0).choice(len(keys), most, replace=False))
        keys = [keys[i] for i in chosen]
    return [np.array([place[key] for key in keys]) for place in places]


def colour_label(names: list[str]) -> str:
    """The one class of a record, or a word where it has not exactly one."""
    return names[0] if len(names) == 1 else SEVERAL if names else NONE


def draw_maps(
    path: Path, named: dict[str, Table], task: str, split: str, most: int, method: str
) -> Path:
    """Writes a map of each table."""
    tables = list(named.values())
    rows = shared_rows(tables, task, split, most)
    labels = [colour_label(tables[0].labels[row][task]) for row in rows[0]]
    drawings = []
    for (name, table), of_table in zip(named.items(), rows, strict=True):
        maps = make_maps(table.embedding[of_table], method == "tsne")
        if not maps:
            raise InputError(f"{name}: its embeddings vary along less than two directions")
        chosen = maps[-1]
        drawings.append(scatter(chosen.places, labels, name, chosen.x, chosen.y))
    where = "all splits" if split == "all" else f"split {split}"
    caption = (
        f"{maps[-1].title} of {len(labels)} records ({where}), each feature scaled to unit"
        f" variance; colours: task {task}, the commonest labels."
    )
    title = "The same records, embedded by " + " and ".join(named)
    return write_picture(path, title, drawings, caption, columns=2)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("map", __doc__)
    add = parser.add_argument
    add(
        "--embeddings",
        required=True,
        action="append",
        metavar="NAME=FILE",
        help="embeddings (.npz, .parquet) and what to call them; repeatable",
    )
    add("--task", help="label task that gives the colours (default: the first of the first file)")
    add("--split", default="all", help="split whose records are drawn (default all)")
    add("--method", choices=("tsne", "pca"), default="tsne", help="default tsne")
    add("--rows", type=positive_int, default=5000, help="records at most (default 5000)")
    add("--out", required=True, type=Path, metavar="SVG", help="picture to write")
    args = parser.parse_args(argv)
    check_place(args.out)
    named: dict[str, Table] = {}
    for text in args.embeddings:
        name, path = named_path("--embeddings", text)
        if name in named:
            raise InputError(f"--embeddings={text}: the name '{name}' is taken")
        named[name] = load_table(path)
    there = in_order(next(iter(named.values())).tasks)
    if not there or (args.task and args.task not in there):
        raise InputError(
            f"--task={args.task or ''}: the first file has {', '.join(there) or 'no labels'}"
        )
    task = args.task or there[0]
    print(draw_maps(args.out, named, task, args.split, args.rows, args.method))
    return 0


if __name__ == "__main__":
    run_command(main)
