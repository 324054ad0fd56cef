"""Figures that others have published, to stand beside ours: macro AUROC by corpus, task and share
of training labels.

They are on the corpora's usual splits (PTB-XL: folds 1-8 train, 9 validation, 10 test) and mostly
from models that were pre-trained on other and larger data, so they give a scale, not a paired
comparison.
"""

from dataclasses import dataclass

CAVEAT = (
    "Published figures are for the usual splits (PTB-XL: folds 1-8 train, 9 validation, 10 test;"
    " CPSC 2018: the split of the paper) and for models pre-trained elsewhere, so they give a"
    " scale and are no paired comparison."
)


@dataclass(frozen=True)
class Published:
    """One row of somebody's table; scores in points."""

    name: str
    source: str
    # (corpus, task) -> {share of labels: macro AUROC x 100}
    scores: dict[tuple[str, str], dict[float, float]]


def _shares(one: float, ten: float, all_labels: float) -> dict[float, float]:
    return {0.01: one, 0.1: ten, 1.0: all_labels}


PUBLISHED = (
    Published(
        "LVCG, paper",
        "linear probe, pre-trained on 800,000 records of MIMIC-IV-ECG; LVCG paper (ICML 2026)",
        {
            ("ptbxl", "super"): _shares(75.33, 79.03, 80.13),
            ("ptbxl", "sub"): _shares(70.61, 74.62, 79.19),
            ("ptbxl", "form"): _shares(52.28, 59.12, 71.24),
            ("ptbxl", "rhythm"): _shares(72.03, 79.87, 83.94),
            ("cpsc2018", "diagnosis"): _shares(71.09, 79.44, 84.15),
        },
    ),
    Published(
        "HeartLang",
        "linear probe; the best method of the LVCG paper's table",
        {
            ("ptbxl", "super"): _shares(78.94, 85.59, 87.52),
            ("ptbxl", "sub"): _shares(64.68, 79.34, 88.91),
            ("ptbxl", "form"): _shares(58.70, 63.99, 80.23),
            ("ptbxl", "rhythm"): _shares(62.08, 76.22, 90.34),
        },
    ),
    Published(
        "LVCG, rebuilt",
        "linear probe; a public re-implementation of the authors' release, 500,000 steps",
        {("ptbxl", "super"): _shares(76.21, 82.88, 85.27)},
    ),
    Published(
        "random weights, rebuilt",
        "linear probe; the same re-implementation's control",
        {("ptbxl", "super"): {1.0: 75.70}},
    ),
    Published(
        "supervised from scratch",
        "all weights trained on the labels; best of the public PTB-XL benchmark",
        {
            ("ptbxl", "super"): {1.0: 93.0},
            ("ptbxl", "sub"): {1.0: 93.0},
            ("ptbxl", "form"): {1.0: 89.9},
            ("ptbxl", "rhythm"): {1.0: 95.7},
        },
    ),
    Published(
        "supervised from scratch",
        "all weights trained on the labels of CPSC 2018",
        {("cpsc2018", "diagnosis"): {1.0: 97.4}},
    ),
)


def published_for(corpus: str, task: str) -> list[tuple[Published, dict[float, float]]]:
    """The rows that have figures for a task of a corpus."""
    return [(row, row.scores[corpus, task]) for row in PUBLISHED if (corpus, task) in row.scores]
