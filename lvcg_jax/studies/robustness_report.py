"""Figures of lvcg_jax.studies.robustness, made from its numbers alone."""

from pathlib import Path

from data_prep.ecg.svg import Drawing, write_picture
from lvcg_jax.text.charts import Series, line_chart
from lvcg_jax.text.tables import percent


def draw_perturbation(path: str | Path, result: dict) -> Path:
    """The charts of moved electrodes as a picture."""
    note = (
        f"Change against electrodes in place, mean of {result['seeds']} draws; bars: 95% bootstrap"
        " over patients. Curves are set a little apart."
    )
    return write_picture(path, "Moved electrodes", moved_charts(result), note, columns=2)


def draw_sparsity(path: str | Path, result: dict) -> Path:
    """The charts of fewer leads as a picture."""
    note = (
        f"Nested sets: the first leads of {', '.join(result['order'])}; open marks: devices."
        " Bars: 95% bootstrap over patients."
    )
    return write_picture(path, "Fewer leads", fewer_charts(result), note, columns=2)


def moved_charts(result: dict) -> list[Drawing]:
    """Change of AUROC with most labels and of the R2 of derived leads with the size of each kind of
    perturbation."""
    fraction, charts = max(result["fractions"]), []
    for kind, x_label in (
        ("noise", "noise on each lead direction (no unit)"),
        ("rotation", "rotation (degrees)"),
    ):
        names = [name for name in result["perturbations"] if name.startswith(kind)]
        ticks = [(float(i), name.split()[1]) for i, name in enumerate(names)]
        auroc, r2 = [], []
        for number, probe in enumerate(result["probe"]):
            gaps = {d["control"]: d for d in probe["differences"] if d["fraction"] == fraction}
            rows = [
                [-100 * gaps[n][k] for k in ("difference", "high", "low")] if n in gaps else None
                for n in names
            ]
            auroc += _moved_curve(rows, probe["task"], number, len(result["probe"]))
        for number, way in enumerate(("lift_and_project", "lift_only")):
            found = [result["perturbations"][n]["derived"][way]["r2"] for n in names]
            rows = [[f[k] for k in ("mean", "low", "high")] for f in found]
            rows = [None if None in row else row for row in rows]
            r2 += _moved_curve(rows, way.replace("_", " "), number, 2)
        for curves, what, y_label in (
            (auroc, f"{percent(fraction)} of the labels", "change of AUROC (x 100)"),
            (r2, "derived leads", "change of R2, derived leads"),
        ):
            if curves:
                title = f"{kind}, {what}"
                charts.append(line_chart(curves, title, x_label, y_label, x_ticks=ticks, zero=True))
    return charts


def _moved_curve(rows: list[list[float] | None], label: str, number: int, of: int) -> list[Series]:
    """Values with intervals at 0, 1, 2, ..., each curve a little aside so that bars do not cover
    each other."""
    shift = 0.07 * (number - (of - 1) / 2)
    there = [(i + shift, *row) for i, row in enumerate(rows) if row]
    if not there:
        return []
    x, y, low, high = (list(column) for column in zip(*there, strict=True))
    return [Series(x, y, label, number, marks=True, low=low, high=high)]


def fewer_charts(result: dict) -> list[Drawing]:
    """AUROC of each task, and R2 of the hidden leads, over the number of visible leads."""
    sets, charts = result["sets"], []
    for frozen, retrained in zip(result["frozen"], result["retrained"], strict=True):
        curves = []
        for colour, (probe, label) in enumerate(
            ((frozen, "probe of 12 leads"), (retrained, "retrained"))
        ):
            found = {
                c["model"]: [100 * c[k] for k in ("macro_auroc", "low", "high")]
                for c in probe["cells"]
                if c["fraction"] == 1.0
            }
            curves += _fewer_curves(sets, found, label, colour)
        charts.append(_leads_chart(curves, frozen["task"], "test macro AUROC (x 100)"))
    curves = []
    for colour, (method, label) in enumerate(
        (("lvcg", "LVCG"), ("regression", "linear regression"))
    ):
        found = {
            name: [s["r2"][method][k] for k in ("mean", "low", "high")]
            for name, s in sets.items()
            if method in s.get("r2", {})
        }
        found = {name: values for name, values in found.items() if None not in values}
        curves += _fewer_curves(sets, found, label, colour)
    if curves:
        charts.append(_leads_chart(curves, "hidden leads", "R2 of hidden leads"))
    return charts


def _leads_chart(curves: list[Series], title: str, y_label: str) -> Drawing:
    ticks = [(float(k), str(k)) for k in (1, 2, 3, 4, 6, 8, 10, 12)]
    return line_chart(curves, title, "number of visible leads", y_label, x_ticks=ticks)


def _fewer_curves(sets: dict, found: dict, label: str, colour: int) -> list[Series]:
    """The nested sets as a curve, devices as open marks with their names."""
    nested = [name for name in reversed(sets) if name in found and name.split()[0].isdigit()]
    devices = [name for name in sets if name in found and not name.split()[0].isdigit()]

    def columns(names: list[str]) -> tuple:
        rows = [found[name] for name in names]
        return [len(sets[name]["leads"]) for name in names], *(
            list(column) for column in zip(*rows, strict=True)
        )

    curves = []
    if nested:
        x, y, low, high = columns(nested)
        curves.append(Series(x, y, label, colour, marks=True, low=low, high=high))
    if devices:
        x, y, _, _ = columns(devices)
        words = devices if colour == 0 else ()
        curves.append(Series(x, y, "", colour, line=False, marks=True, words=words))
    return curves
