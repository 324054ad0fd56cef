"""How well a set of lead directions describes real hearts: held against the Frank leads that PTB
measured.

    lvcg geometry_report --raw=PTB --out=geometry.md --save_fit=fit.json
    lvcg train --config=configs/pretrain.py --config.geometry.matrix=fit.json ...

PTB records hold the twelve leads and vx, vy, vz of Frank's own electrodes. For every geometry
('paper', 'dower', two fitted ones, and any file of --geometry) and for leads in mV and z-scored:

- r with vx, vy, vz of the heart vector lifted from all twelve leads;
- R2 of lift + project on the twelve leads: how much of them three numbers per sample can hold;
- R2, MSE and MAE of the other leads from the visible ones (II, V2, V5), with two controls that know
  no geometry: linear regression, and the visible lead that is most correlated in training patients
  (with its sign).

There is one value per patient (first record, first 10 s, resampled to 100 Hz, 0.67-40 Hz; R2 = 1 -
squared error / variance, both summed over leads and samples). Over patients: the median (of MSE and
MAE, as usual, the mean), with a bootstrap interval. What is fitted never sees the patient that it
is scored on: patients fall into folds by a hash of their id, and in a fit every patient counts
alike. 'normalise=record' divides all leads of a record by one number, which changes no r and no R2:
its values are those in mV.

Axis letters: r record (one per patient), l and k lead, T and t sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.lottery import fold_of, split_of_patient
from data_prep.base.progress import progress_bar
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg import signal
from data_prep.ecg.geometry import dipole_matrix, lead_matrix, lift_matrix, save_matrix
from data_prep.ecg.leads import LEADS, canonical, parse_leads
from data_prep.ecg.record import Record
from lvcg_jax.reconstruct.linear import copy_matrix, regression_matrix
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.text.tables import markdown_table, with_interval

FRANK = ("vx", "vy", "vz")
RATE, SECONDS, BAND, ORDER = 100.0, 10.0, (0.67, 40.0), 3
MAX_MV, MAX_GAP, FLAT_SHARE, FLAT_MV = 20.0, 0.1, 0.5, 0.03  # as in data_prep.ecg.preprocess
EPS = 1e-4
ROWS = (
    "paper",
    "dower",
    "fit",
    "fit12",
    "linear regression, no geometry",
    "copy the best visible lead",
)
FEWEST_PATIENTS = 10


@dataclass(frozen=True)
class Hearts:
    """Leads and measured Frank vectors of one record of each patient, in mV."""

    patients: tuple[str, ...]
    leads: np.ndarray  # [r,12,T]
    frank: np.ndarray  # [r,3,T]
    left_out: tuple[str, ...] = ()  # 'patient123: V1 is flat'


def load_hearts(raw: str | Path, progress: bool = True) -> Hearts:
    """The first record of every patient of a PTB folder; those without all fifteen signals are
    named in left_out."""
    corpus = open_corpus("ptb", raw)
    first = {}
    for ref in sorted(corpus.refs, key=lambda ref: (ref.patient_id, ref.record_id)):
        first.setdefault(ref.patient_id, ref)
    kept, left_out = {}, []
    for patient, ref in progress_bar(
        first.items(), desc="patients", unit="patient", disable=not progress
    ):
        try:
            kept[patient] = prepare(corpus.load(ref))
        except InputError as error:
            left_out.append(f"{patient}: {error}")
    if len(kept) < FEWEST_PATIENTS:
        why = f" ({left_out[0]})" if left_out else ""
        raise InputError(
            f"{raw}: {len(kept)} patients with 12 leads and vx, vy, vz; at least"
            f" {FEWEST_PATIENTS}{why}"
        )
    both = np.stack(list(kept.values()))
    return Hearts(tuple(kept), both[:, : len(LEADS)], both[:, len(LEADS) :], tuple(left_out))


def prepare(record: Record) -> np.ndarray:
    """Twelve leads and Frank's three [15,T] of a record: 100 Hz, band-passed, the first ten
    seconds."""
    there = {canonical(name) or name.strip().lower(): i for i, name in enumerate(record.leads)}
    absent = [name for name in (*LEADS, *FRANK) if name not in there]
    if absent:
        raise InputError(f"record {record.record_id} has no {', '.join(absent)}")
    x = record.signal[:, [there[name] for name in (*LEADS, *FRANK)]].T
    x, lost = signal.fill_gaps(signal.drop_impossible(x, MAX_MV), record.rate, MAX_GAP)
    size = round(SECONDS * RATE)
    filtered = signal.bandpass(signal.resample(x, record.rate, RATE), RATE, *BAND, ORDER)[:, :size]
    if filtered.shape[1] < size:
        raise InputError(f"record {record.record_id} is shorter than {SECONDS:g} s")
    window = slice(0, round(SECONDS * record.rate))
    bad = lost[:, window].any(1) | signal.find_flat(x[:, window], record.rate, FLAT_SHARE)
    bad |= signal.find_quiet(filtered, FLAT_MV)
    if bad.any():
        raise InputError(
            f"record {record.record_id}: {(*LEADS, *FRANK)[int(bad.argmax())]} is flat or has gaps"
        )
    return filtered


def z_score(leads: np.ndarray) -> np.ndarray:
    """Every lead [r,12,T] with mean 0 and variance 1, as the model sees it with
    normalise='lead'."""
    return (leads - leads.mean(-1, keepdims=True)) / leads.std(-1, keepdims=True)


def _weights(leads: np.ndarray) -> np.ndarray:
    """A weight per record [r] by which every patient counts alike in a fit, whatever the
    voltage."""
    return 1.0 / (leads**2).mean((1, 2))


def fit_frank(leads: np.ndarray, frank: np.ndarray) -> np.ndarray:
    """Lead directions [12,3] by least squares of leads [r,12,T] on Frank vectors [r,3,T]."""
    weights = _weights(leads)
    inner = np.einsum("r,rkt,rjt->kj", weights, frank, frank)
    return np.linalg.solve(inner, np.einsum("r,rkt,rlt->kl", weights, frank, leads)).T


def fit_leads(leads: np.ndarray) -> np.ndarray:
    """Lead directions [12,3] from the twelve leads alone: the three dimensions that hold most of
    them.

    Such a factorisation leaves the axes open; they are those nearest to Dower's.
    """
    _, vectors = np.linalg.eigh(products(leads))
    top = vectors[:, -3:]
    return top @ (top.T @ lead_matrix("dower"))


def products(leads: np.ndarray) -> np.ndarray:
    """Products of the leads [r,12,T] with each other, summed with the weights of a fit, [12,12]."""
    return np.einsum("r,rlt,rkt->lk", _weights(leads), leads, leads)


def score_prediction(truth: np.ndarray, predicted: np.ndarray) -> tuple[float, float, float]:
    """R2 (leads pooled), MSE and MAE of leads [l,T]."""
    error = truth - predicted
    spread = truth - truth.mean(1, keepdims=True)
    return (
        1 - float((error**2).sum() / (spread**2).sum()),
        float((error**2).mean()),
        float(np.abs(error).mean()),
    )


def score_geometry(
    a: np.ndarray, leads: np.ndarray, frank: np.ndarray, visible: np.ndarray
) -> list[float]:
    """The values of GEOMETRY_SCORES of one record: leads [12,T] in mV or z-scored, measured vector
    [3,T]."""
    every = np.ones(len(LEADS), bool)
    vcg = lift_matrix(a, every, EPS) @ leads
    correlations = [
        float(np.corrcoef(lifted, measured)[0, 1])
        for lifted, measured in zip(vcg, frank, strict=True)
    ]
    from_few = a @ (lift_matrix(a, visible, EPS) @ leads)
    hidden = ~visible
    return [
        *correlations,
        score_prediction(leads, a @ vcg)[0],
        *score_prediction(leads[hidden], from_few[hidden]),
    ]


def score_weights(weights: np.ndarray, leads: np.ndarray, visible: np.ndarray) -> list[float]:
    """The values of GEOMETRY_SCORES of a control, which has no vector and so no correlation."""
    hidden = ~visible
    return [np.nan] * 4 + list(score_prediction(leads[hidden], (weights @ leads)[hidden]))


def cross_fit(hearts: Hearts, folds: int, fit: Callable, score: Callable) -> np.ndarray:
    """Scores [r,c]: `fit(training rows)` on the patients of the other folds, `score(fitted, row)`
    on each patient."""
    fold = np.array([fold_of(patient, folds) for patient in hearts.patients])
    values: dict[int, list[float]] = {}
    for k in np.unique(fold):
        if (fold != k).sum() < 2:
            raise InputError(
                f"{len(fold)} patients in {folds} folds leave nobody to fit on: give more --folds"
            )
        fitted = fit(fold != k)
        values.update({i: score(fitted, i) for i in np.flatnonzero(fold == k)})
    return np.array([values[i] for i in range(len(fold))])


def evaluate(
    hearts: Hearts, visible: np.ndarray, geometries: Sequence[str] = (), folds: int = 5
) -> dict[tuple[str, str], np.ndarray]:
    """{(row, 'mV' or 'z-scored'): scores [r,7] in the order of GEOMETRY_SCORES}: geometries, then
    controls."""
    table = {}
    size = np.sqrt((hearts.frank**2).mean((1, 2), keepdims=True))
    for unit, x, vector in (
        ("mV", hearts.leads, hearts.frank),
        ("z-scored", z_score(hearts.leads), hearts.frank / size),
    ):

        def scored(a, i, x=x):
            return score_geometry(a, x[i], hearts.frank[i], visible)

        def controlled(weights, i, x=x):
            return score_weights(weights, x[i], visible)

        rows = {
            name: np.array([scored(lead_matrix(name), i) for i in range(len(x))])
            for name in ("paper", "dower")
        }
        rows["fit"] = cross_fit(
            hearts, folds, lambda r, x=x, v=vector: fit_frank(x[r], v[r]), scored
        )
        rows["fit12"] = cross_fit(hearts, folds, lambda r, x=x: fit_leads(x[r]), scored)
        for name in geometries:
            rows[Path(name).name] = np.array([scored(lead_matrix(name), i) for i in range(len(x))])
        for name, matrix in zip(ROWS[-2:], (regression_matrix, copy_matrix), strict=True):
            fit = lambda r, x=x, matrix=matrix: matrix(products(x[r]), visible)  # noqa: E731
            rows[name] = cross_fit(hearts, folds, fit, controlled)
        table |= {(name, unit): values for name, values in rows.items()}
    return table


def report(
    table: dict[tuple[str, str], np.ndarray], hearts: Hearts, visible: np.ndarray, folds: int
) -> str:
    """The scores as a Markdown page."""
    names = [lead for lead, shown in zip(LEADS, visible, strict=True) if shown]
    few = f"{len(LEADS) - len(names)} leads from {', '.join(names)}"
    lines = [
        "# Lead directions against measured Frank leads",
        "",
        "`lvcg geometry_report --raw=PTB`",
        "",
        f"{len(hearts.patients)} patients of PTB: first record, first {SECONDS:g} s, {RATE:g} Hz,"
        f" {BAND[0]:g}-{BAND[1]:g} Hz, lift eps {EPS:g}. Medians over patients (MSE and MAE:"
        " means) with 95% bootstrap intervals over patients. R2 pools the leads and samples of a"
        " record. `fit` (leads on Frank), `fit12` (from the leads alone) and the controls are"
        f" fitted on other patients ({folds} folds). The paper's +z points to the front, Frank's"
        " to the back: hence its negative r.",
        "",
    ]
    head = ["geometry", "leads in", *(f"r with {name}" for name in FRANK)]
    head += ["12-lead R2 of lift + project", f"R2 of {few}", "its MSE", "its MAE"]
    rows, bootstrap = [], PatientBootstrap(hearts.patients)
    for (name, unit), values in table.items():
        found = [bootstrap.summary(column) for column in values.T]
        cells = [with_interval(one, "median") for one in found[:5]]
        cells += [with_interval(one, digits=4 if unit == "mV" else 3) for one in found[5:]]
        rows.append([name, unit, *cells])
    lines += markdown_table(head, rows)
    if hearts.left_out:
        lines += [f"Left out: {'; '.join(hearts.left_out)}.", ""]
    return "\n".join(lines)


def fit_to_save(hearts: Hearts) -> tuple[np.ndarray, int]:
    """Lead directions [12,3] in mV, in Frank's axes, fitted on the training patients of a
    data_prep.build split.

    So a run with this geometry can still be tested on PTB's validation and test patients. Also how
    many those are.
    """
    rows = np.array([split_of_patient(patient) == "train" for patient in hearts.patients])
    if rows.sum() < FEWEST_PATIENTS:
        raise InputError(
            f"{rows.sum()} training patients are too few to fit lead directions: give a"
            " larger PTB folder"
        )
    return fit_frank(hearts.leads[rows], hearts.frank[rows]), int(rows.sum())


def main(argv: list[str] | None = None) -> int:
    parser = Parser("geometry_report", __doc__)
    parser.add_argument(
        "--raw", required=True, help="folder of PTB Diagnostic (patient001/..., with .dat and .xyz)"
    )
    parser.add_argument(
        "--geometry",
        action="append",
        default=[],
        help="one more geometry beside paper, dower and the fits, may be repeated: a file, JSON"
        " {'I': [x, y, z], ...} or CSV lead,x,y,z, in Frank's axes, where lead = x*vx + y*vy +"
        " z*vz (not the inverse, leads to vector)",
    )
    parser.add_argument(
        "--visible", default="II,V2,V5", help="leads that the others are predicted from (II,V2,V5)"
    )
    parser.add_argument(
        "--folds",
        type=positive_int,
        default=5,
        help="folds of patients for what is fitted (default 5)",
    )
    parser.add_argument("--out", help="Markdown file to write as well")
    parser.add_argument(
        "--save_fit", help="JSON file for the fitted lead directions, for --config.geometry.matrix"
    )
    args = parser.parse_args(argv)
    visible = np.isin(LEADS, parse_leads(args.visible))
    if visible.all():
        raise InputError("--visible names all twelve leads: nothing is left to predict")
    if args.folds < 2:
        raise InputError(f"--folds={args.folds}: give 2 or more")
    if args.save_fit and Path(args.save_fit).suffix.lower() != ".json":
        raise InputError(f"--save_fit={args.save_fit}: give a name that ends in .json")
    more = [name for name in args.geometry if name not in ROWS]
    for name in more:
        dipole_matrix(name)
    hearts = load_hearts(args.raw)
    text = report(evaluate(hearts, visible, more, args.folds), hearts, visible, args.folds)
    print(text, end="")
    # files, if asked for
    try:
        if args.out:
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
            Path(args.out).write_text(text, encoding="utf-8")
        if args.save_fit:
            matrix, patients = fit_to_save(hearts)
            save_matrix(args.save_fit, matrix)
    except OSError as error:
        raise InputError(
            f"cannot write {error.filename} ({error.strerror}): give another --out or --save_fit"
        ) from None
    if args.save_fit:
        print(f"\nlead directions fitted on {patients} training patients: {args.save_fit}")
        print(f"use them with --config.geometry.matrix={args.save_fit}")
    return 0


if __name__ == "__main__":
    run_command(main)
