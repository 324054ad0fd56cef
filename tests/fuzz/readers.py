"""Every reader of the project, with small valid files to mutate.

A reader is a function of a folder. What it returns does not matter; it may raise an InputError.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import edfio
import numpy as np
import scipy.io
from helpers import device_files
from helpers.commands import get_config
from helpers.golden import CHECKPOINT
from helpers.raw_files import wfdb_text, write_edf, write_mat

from data_prep.corpora.challenge import read_challenge
from data_prep.corpora.corpus import open_corpus
from data_prep.corpora.ludb import read_waves
from data_prep.dataset.builder import build
from data_prep.dataset.checks import read_ledger
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import RecordRef
from data_prep.formats.any_file import read_any
from data_prep.formats.tables import read_labels
from data_prep.synthetic_heart.records import write_corpus
from lvcg_jax.config.files import save_config
from lvcg_jax.embed.table import Table, load_table, save_table
from lvcg_jax.export.torch_file import read_torch_file
from lvcg_jax.reconstruct.learned.trained import read_network, save_network
from lvcg_jax.runs.history import lowest_validation, noted_data
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.runs.trained import model_config

GENERATOR = np.random.default_rng(0)
SIGNAL = np.cumsum(GENERATOR.normal(0, 0.02, (100, 12)), axis=0)
GIVEN = {"rate": 500, "unit": "mV", "leads": list(LEADS)}


@dataclass(frozen=True)
class Reader:
    """A function that reads a folder, and the names of the files there that are mutated."""

    prepare: Callable[[Path], None]
    read: Callable[[Path], object]
    files: tuple[str, ...]


def _any_file(name: str, prepare: Callable[[Path], None], **given) -> Reader:
    return Reader(prepare, lambda folder: read_any(folder / name, record_id="r", **given), (name,))


def _other_formats(folder: Path) -> None:
    """A header of signals that the wfdb package reads, of several formats."""
    text, adc = wfdb_text("r", SIGNAL[:20], LEADS, "r.dat")
    formats = iter(["212", "80", "61", "24", "310", "32"] * 2)
    lines = [
        line.replace(" 16 ", f" {next(formats)} ", 1).replace("r.dat", f"{i}.dat")
        if line.startswith("r.dat")
        else line
        for i, line in enumerate(text.splitlines())
    ]
    (folder / "r.hea").write_text("\n".join(lines).replace("1000/mV", "1000000000/mV"))
    for i in range(1, 13):
        (folder / f"{i}.dat").write_bytes(adc.tobytes())


def _bdf(folder: Path) -> None:
    leads = [
        edfio.BdfSignal(column, 25, label=lead, physical_dimension="mV")
        for lead, column in zip(LEADS, SIGNAL.T, strict=True)
    ]
    edfio.Bdf(leads).write(folder / "r.bdf")


def _csv(folder: Path) -> None:
    rows = [",".join(LEADS), *(",".join(f"{x:.4f}" for x in row) for row in SIGNAL)]
    (folder / "r.csv").write_text("\n".join(rows))


def _struct(folder: Path, packed: bool) -> None:
    struct = {"sex": "Male", "age": np.array([[74.0]]), "data": SIGNAL.T}
    scipy.io.savemat(folder / "r.mat", {"ECG": struct}, do_compression=packed)


def _npz(folder: Path) -> None:
    np.savez(folder / "r.npz", signal=SIGNAL, rate=500, unit="mV", leads=LEADS)


def _table(folder: Path, ending: str) -> None:
    names = np.array(["a", "b", "c"])
    save_table(
        folder / f"t.{ending}",
        Table(
            names,
            names,
            np.array(["train"] * 3),
            [{"rhythm": ["AF"]}, {}, {"rhythm": []}],
            np.ones((3, 4), np.float32),
            {"structure": 4},
            {"checkpoint": "x", "tasks": '{"rhythm": ["AF"]}'},
            np.arange(3),
            {"num_beats": np.arange(3), "defects": np.array(["", "gap:V1:3", ""])},
        ),
    )


def _network(folder: Path) -> None:
    params = {"layer": {"kernel": np.ones((3, 4), np.float32)}}
    save_network(folder / "n.safetensors", params, {"mean": np.ones(3)}, {"network": "field"})


def _shards(folder: Path) -> None:
    write_corpus(folder / "raw", patients=10, records_per_patient=1, rate=100, seconds=4)
    build(open_corpus("synthetic", folder / "raw"), folder / "d", Preprocess(), progress=False)
    shutil.rmtree(folder / "raw")
    (folder / "d").rename(folder / "data")


def _read_shards(folder: Path) -> object:
    return [list(ShardSet(folder / "data", "train")), list(read_ledger(folder / "data"))]


def _run(folder: Path) -> None:
    save_config(get_config("smoke"), folder / "config.json")
    rows = [
        {"step": i, "kind": kind, "loss": 1.0} for i in (1, 2) for kind in ("train", "validation")
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "versions.json").write_text(json.dumps({"jax": "1", "data": "x"}))


def _read_run(folder: Path) -> object:
    model_config(folder / "config.json")
    return read_metrics(folder), lowest_validation(folder), noted_data(folder)


def _text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


# samples since the mark before, and a code: '(' N ')' twice, and the end
ANNOTATIONS = np.array([code << 10 | 20 for code in (39, 1, 40) * 2] + [0], "<u2").tobytes()


def _device(name: str, data: bytes | None) -> Reader:
    def prepare(folder: Path) -> None:
        if data is None:
            device_files.dicom(folder / name, FEW)
        else:
            (folder / name).write_bytes(data)

    return _any_file(name, prepare)


FEW = device_files.COUNTS[:400]
DEVICES = {
    "GE MUSE XML": _device("r.xml", device_files.muse(FEW)),
    "Philips XML": _device("r.xml", device_files.philips(FEW)),
    "HL7 aECG": _device("r.xml", device_files.aecg(FEW)),
    "SCP-ECG": _device("r.scp", device_files.scp(FEW)),
    "ISHNE": _device("r.ecg", device_files.ishne(FEW)),
    "Kardia JSON": _device("r.json", device_files.kardia(FEW[:, :6])),
    "Apple Health CSV": _device("r.csv", device_files.apple(FEW[:, 0])),
    "DICOM": _device("r.dcm", None),
}
LABELS = 'record_id,patient_id,split,finding\na,p1,train,x;y\nb,p2,test,\nc,p3,,"z, z"\n'
SHARD = "data/synthetic-train.array_record-00000-of-00001"
READERS = {
    "WFDB header and signal": Reader(
        lambda folder: write_mat(folder / "r", SIGNAL, "426177001") and None,
        lambda folder: read_challenge(RecordRef("r", "r", None, {}, str(folder / "r"))),
        ("r.hea", "r.mat"),
    ),
    "WFDB, other formats": Reader(
        _other_formats, lambda folder: read_any(folder / "r.hea", record_id="r"), ("r.hea",)
    ),
    "MATLAB 5": _any_file("r.mat", lambda folder: _struct(folder, False)),
    "MATLAB 5, compressed": _any_file("r.mat", lambda folder: _struct(folder, True)),
    "EDF": _any_file("r.edf", lambda folder: write_edf(folder / "r.edf", SIGNAL) and None),
    "BDF": _any_file("r.bdf", _bdf),
    "CSV": _any_file("r.csv", _csv, rate=500, unit="mV"),
    "npy": _any_file("r.npy", lambda folder: np.save(folder / "r.npy", SIGNAL), **GIVEN),
    "npz": _any_file("r.npz", _npz),
    **DEVICES,
    "annotations": Reader(
        lambda folder: (folder / "r.ii").write_bytes(ANNOTATIONS) and None,
        lambda folder: read_waves(folder / "r.ii", "r", 5000),
        ("r.ii",),
    ),
    "labels.csv": Reader(
        _text("labels.csv", LABELS),
        lambda folder: read_labels(folder / "labels.csv"),
        ("labels.csv",),
    ),
    "records.csv": Reader(
        _text("records.csv", "record_id,path,rate,unit,leads,x\na,a.npy,500,mV,I;II,y\n"),
        lambda folder: open_corpus("arrays", folder),
        ("records.csv",),
    ),
    "shards and ledger": Reader(
        _shards,
        _read_shards,
        (SHARD, "data/dataset.json", "data/ledger.csv", "data/beat_counts-train.npy"),
    ),
    "run directory": Reader(_run, _read_run, ("config.json", "metrics.jsonl", "versions.json")),
    "embeddings, npz": Reader(
        lambda folder: _table(folder, "npz"),
        lambda folder: load_table(folder / "t.npz"),
        ("t.npz",),
    ),
    "embeddings, parquet": Reader(
        lambda folder: _table(folder, "parquet"),
        lambda folder: load_table(folder / "t.parquet"),
        ("t.parquet",),
    ),
    "torch": Reader(
        lambda folder: shutil.copy(CHECKPOINT, folder / "c.pt") and None,
        lambda folder: read_torch_file(folder / "c.pt"),
        ("c.pt",),
    ),
    "safetensors": Reader(
        _network, lambda folder: read_network(folder / "n.safetensors"), ("n.safetensors",)
    ),
}
