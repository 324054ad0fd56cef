"""Do records whose hidden leads were derived lie where records with true leads lie? Their densities
in embedding space, as a picture and a table.

    lvcg lead_density --checkpoint=best --data=SHARDS --k=3 --out=DIR

Of every test record --k leads are visible, drawn by its uid; the others are derived by each method
of reconstruct/methods.py and put in the place of the true ones, at the true beats and sizes. Both
records, of true and of derived leads, are embedded with all leads visible. Features are
standardised, and principal components fitted, on the records with true leads.

overlap  of two densities along a principal component: 1 if they are the same, 0 if they lie apart
cosine   of a record's embedding with derived leads and its own with true ones

Overlap says that derived records look like true ones as a crowd, cosine that each looks like
itself. 'zero' derives nothing, and is what a method must beat. Writes lead_density.md and
lead_density.svg.

Axis letters: k row, d feature, l lead, T sample.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.segment import cut_beats
from data_prep.ecg.svg import Drawing, write_picture
from lvcg_jax.data.entries import list_entries
from lvcg_jax.embed.dataset import check_place
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.reconstruct.methods import METHODS, check_methods, choose_eps, make_methods
from lvcg_jax.reconstruct.views import Row, Source, Windows, derive_rows, drawn_view, read_windows
from lvcg_jax.runs import weights
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.stats.scaling import fit_pca, mean_and_scale, unit_rows
from lvcg_jax.text.charts import Series, line_chart
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import command_line
from lvcg_jax.text.tables import markdown_table, with_interval

TRUE = "true leads"
COMPONENTS = 2
GRID = 200  # points of a density
CHUNK = 64  # records at a time


def embed_derived(model: LVCG, source: Source, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Embeddings [k,d] of the rows' records with their true leads (TRUE), and with the hidden ones
    as each method derives them."""
    found: dict[str, list[np.ndarray]] = {}
    with progress_bar(total=len(rows), unit="rec", desc="derive") as bar:
        for first in range(0, len(rows), CHUNK):
            some = rows[first : first + CHUNK]
            windows = read_windows([row.entry for row in some])
            changed: dict[str, list[dict]] = {}
            for (row, truth, derived), window in zip(
                derive_rows([source], some), windows, strict=True
            ):
                hidden = mask_leads(row.hidden)
                for name, leads in {TRUE: truth, **derived}.items():
                    mixed = np.where(hidden[:, None], leads, truth)
                    changed.setdefault(name, []).append(with_leads(window, mixed))
                bar.update()
            for name, mine in changed.items():
                found.setdefault(name, []).append(join_parts(model.embed_windows(mine)[1]))
    return {name: np.concatenate(parts).astype(np.float64) for name, parts in found.items()}


def with_leads(window: dict, mv: np.ndarray) -> dict:
    """A window with other leads [l,T], in mV, at the same beats; leads that it lacks stay empty."""
    z = (mv - window["offset"][:, None]) / window["scale"][:, None]
    z = np.where(mask_leads(window["lead_mask"])[:, None], z, 0.0).astype(np.float32)
    beats = cut_beats(z, window["start"], window["length"], window["beats"].shape[-1])
    return window | {"beats": beats}


def density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A smooth density of values [k] over an even grid, of sum 1."""
    from scipy.stats import gaussian_kde  # late: it takes a second to import

    smooth = gaussian_kde(values)(grid) if np.ptp(values) > 1e-9 else np.zeros(len(grid))
    return smooth / max(smooth.sum(), 1e-300)


def compare(
    embeddings: dict[str, np.ndarray], patients: Sequence[str], resamples: int
) -> tuple[list[list[str]], list[Drawing]]:
    """The rows of the table, and a chart of densities for each component."""
    # all in the coordinates of the true leads
    mean, scale = mean_and_scale(embeddings[TRUE])
    scaled = {name: (x - mean) / scale for name, x in embeddings.items()}
    pca = fit_pca(scaled[TRUE], COMPONENTS)
    if pca.n_components_ < COMPONENTS:
        raise InputError("the embeddings of these records are all alike: there is no density")
    places = {name: pca.transform(x) for name, x in scaled.items()}

    charts, overlaps = [], {name: [] for name in embeddings}
    for c in range(COMPONENTS):
        values = np.concatenate([place[:, c] for place in places.values()])
        room = 0.1 * np.ptp(values)
        grid = np.linspace(values.min() - room, values.max() + room, GRID)
        curves = {name: density(place[:, c], grid) for name, place in places.items()}
        for name, curve in curves.items():
            overlaps[name].append(float(np.minimum(curve, curves[TRUE]).sum()))
        share = 100 * pca.explained_variance_ratio_[c]
        step = grid[1] - grid[0]
        series = [
            Series(grid, curve / step, name, number - 1)
            for number, (name, curve) in enumerate(curves.items())
        ]
        label = f"principal component {c + 1} ({share:.0f}% of variance)"
        charts.append(line_chart(series, f"component {c + 1}", label, "density", zero=True))

    own = unit_rows(embeddings[TRUE], mean, scale)
    bootstrap, rows = PatientBootstrap(patients, resamples), []
    for name, x in embeddings.items():
        if name != TRUE:
            cosine = bootstrap.summary((unit_rows(x, mean, scale) * own).sum(1))
            rows.append([name, with_interval(cosine), *(f"{o:.2f}" for o in overlaps[name])])
    return rows, charts


def main(argv: list[str] | None = None) -> int:
    parser = Parser("lead_density", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add_shared(parser, "data", "out", "resamples")
    add("--k", type=int, default=3, help="visible leads (default 3)")
    methods = "lvcg,regression,geometry:paper,zero"
    add("--methods", default=methods, help=f"of {', '.join(METHODS)} (default {methods})")
    add("--limit", type=positive_int, default=500, help="test records at most (default 500)")
    fit = "training records for fitted methods, at most (default 2000)"
    add("--fit_records", type=positive_int, default=2000, help=fit)
    args = parser.parse_args(argv)
    if not 1 <= args.k < len(LEADS):
        raise InputError(f"--k={args.k}: give 1 to 11; with twelve there is nothing to derive")
    out, names = Path(args.out), check_methods(args.methods.split(","))
    check_place(out / "lead_density.md")

    # the model, the methods and the views
    model = LVCG.load(weights.choose(args.checkpoint))
    test, train = ShardSet(args.data, "test"), ShardSet(args.data, "train")
    test.require_preprocess(model.preprocess)
    eps = choose_eps(None, model)
    source = Source(make_methods(names, model, eps))
    for method in source.methods:
        method.fit(Windows(list_entries([train], args.fit_records)))
    view = drawn_view(list_entries([test], args.limit), args.k, 1, 0, model.directions, eps)

    # the table and the picture
    embeddings = embed_derived(model, source, view.rows)
    embeddings = {name: embeddings[name] for name in (TRUE, *names)}
    patients = [row.entry.patient_id for row in view.rows]
    rows, charts = compare(embeddings, patients, args.resamples)
    header = ["hidden leads by", "cosine with itself", "overlap 1", "overlap 2"]
    about = (
        f"{len(view.rows)} test records of {test.metadata['corpus']}, {args.k} leads visible, model"
        f" {model.checkpoint}; cosine with 95% bootstrap over patients."
    )
    lines = [about, "", *markdown_table(header, rows), *(f"- {note}" for note in view.notes)]
    command, title = command_line("lead_density", argv), "Derived leads against true ones"
    text = "\n".join([f"# {title}", "", f"```bash\n{command}\n```", "", *lines, ""])
    write_whole(out / "lead_density.md", text)
    picture = write_picture(out / "lead_density.svg", title, charts, about, columns=2)
    print("\n".join(lines))
    print(f"lead_density.md, {picture.name}: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
