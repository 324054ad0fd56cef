"""Pictures of a reconstruction study."""

from pathlib import Path

import numpy as np

from data_prep.ecg.leads import LEADS
from data_prep.ecg.svg import write_picture
from lvcg_jax.text.charts import Series, line_chart

SPREAD = 0.5  # of the distance between two leads, over which the methods of a lead are spread


def draw_lead_errors(path: Path, result: dict) -> Path:
    """The error of every hidden lead by method, with its interval, of one view of the study."""
    methods = result["methods"]
    leads = [lead for lead in LEADS if any(lead in found["per_lead"] for found in methods.values())]
    series = []
    for number, (name, found) in enumerate(methods.items()):
        # beside each other, so that no interval hides another
        shift = SPREAD * ((number + 0.5) / len(methods) - 0.5)
        values = [found["per_lead"].get(lead, {}).get("mse", {}) for lead in leads]
        mean, low, high = ([_number(v.get(key)) for v in values] for key in ("mean", "low", "high"))
        places = [place + shift for place in range(len(leads))]
        series.append(
            Series(places, mean, name, number, line=False, marks=True, low=low, high=high)
        )
    chart = line_chart(
        series,
        result["view"],
        "hidden lead",
        "mean squared error (log scale)",
        log_y=True,
        x_ticks=list(enumerate(leads)),
        plot_height=220,
    )
    records = f"{result['records']} records, {result['patients']} patients"
    caption = f"{records}. In variances of the true lead: zero scores 1. Bars: 95% over patients."
    return write_picture(path, "Error by lead", [chart], caption)


def _number(value: float | None) -> float:
    """A positive number, as the scale needs; NaN, which is not drawn, for what is not there."""
    return value if value is not None and value > 0 else np.nan
