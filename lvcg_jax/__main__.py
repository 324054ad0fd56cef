"""The `lvcg` command: every door of the project by name, `lvcg NAME --flag=value`.

This file imports nothing heavy: `lvcg --help` must answer at once, and JAX takes seconds.
"""

import difflib
import importlib
import sys

from data_prep.base.command import run_command
from data_prep.base.errors import InputError
from data_prep.base.memory import keep_freed_memory

# Name -> (module, what it does), in the order in which a user meets them.
COMMANDS = {
    "Data": {
        "synthetic": ("data_prep.synthetic", "write a synthetic ECG corpus, to try things out"),
        "convert": ("data_prep.convert", "write one ECG file of any format as a WFDB record"),
        "build": ("data_prep.build", "turn records into shards of beats"),
        "verify": ("data_prep.verify", "check that a data set is whole and sound"),
        "inspect": ("data_prep.inspect", "show what a data set holds of one record"),
        "statistics": ("data_prep.statistics", "tabulate data sets: records, patients, classes"),
    },
    "Models": {
        "field_modes": (
            "lvcg_jax.studies.field_modes",
            "make a geometry of more modes than three, for train",
        ),
        "train": ("lvcg_jax.train.__main__", "pre-train a model; continues a run that was stopped"),
        "embed": ("lvcg_jax.embed.__main__", "embed shards, a folder of records, or one file"),
        "predict": (
            "lvcg_jax.predict.__main__",
            "answer for records with a head of probe --save",
        ),
        "serve": (
            "lvcg_jax.serve.__main__",
            "answer over HTTP: a file in, numbers or a report out",
        ),
        "export": (
            "lvcg_jax.export.__main__",
            "write the model as StableHLO, as ONNX or as a folder",
        ),
        "import_torch": (
            "lvcg_jax.export.import_torch",
            "read a checkpoint of the authors' PyTorch code",
        ),
        "add_parts": (
            "lvcg_jax.export.add_parts",
            "add parts to embeddings: patterns, levels of the median beat, a record token",
        ),
        "norm_statistics": (
            "lvcg_jax.export.norm_statistics",
            "measure a model's norm statistics again, with all leads",
        ),
        "package_weights": (
            "lvcg_jax.export.package_weights",
            "make a run's weights part of the package",
        ),
    },
    "Evaluation": {
        "probe": (
            "lvcg_jax.probe.__main__",
            "fit linear or attention probes, or fine-tune, beside controls",
        ),
        "median_beat": ("lvcg_jax.probe.median_beat", "make the control that learns nothing"),
        "reconstruct": ("lvcg_jax.reconstruct.__main__", "derive hidden leads from visible ones"),
        "fit_leads": (
            "lvcg_jax.reconstruct.learned.__main__",
            "train a network that derives leads, for reconstruct",
        ),
        "results": (
            "lvcg_jax.studies.results",
            "embed, probe and tabulate a run with its controls",
        ),
        "robustness": ("lvcg_jax.studies.robustness", "move electrodes, leave leads out"),
        "view_agreement": (
            "lvcg_jax.studies.view_agreement",
            "compare few-lead embeddings with all-lead ones",
        ),
        "lead_density": (
            "lvcg_jax.studies.lead_density",
            "compare records of derived leads with true ones",
        ),
        "readout": ("lvcg_jax.studies.readout", "read diagnoses in records of derived leads"),
        "shift": ("lvcg_jax.studies.shift", "compare embeddings of a record cut a little later"),
        "membership": (
            "lvcg_jax.studies.membership",
            "test whether a model shows whom it was trained on",
        ),
        "geometry_report": (
            "lvcg_jax.studies.geometry_report",
            "hold lead directions against Frank leads",
        ),
        "ablate": ("lvcg_jax.studies.ablate", "train variants of a config and tabulate them"),
        "search": ("lvcg_jax.studies.search", "score candidate changes on the validation split"),
        "ceiling": (
            "lvcg_jax.studies.ceiling.__main__",
            "train supervised networks on several forms of the records",
        ),
        "compare_peers": (
            "lvcg_jax.studies.peers.__main__",
            "train other methods and LVCG with one budget, and compare them",
        ),
        "delineation_report": (
            "data_prep.delineation_report",
            "hold wave boundaries against cardiologists",
        ),
    },
    "Pictures": {
        "report": ("lvcg_jax.report.__main__", "make one HTML page of a run or of a record"),
        "map": ("lvcg_jax.report.maps", "draw embeddings of the same records side by side"),
        "vcg": ("lvcg_jax.report.vcg", "draw the loops of one record, with axes and angles"),
        "day": ("lvcg_jax.report.day", "draw a long record over time: rate, drift, predictions"),
    },
    "Speed": {
        "bench": (
            "lvcg_jax.bench.__main__",
            "measure training, embedding, deriving, reading and saving",
        ),
        "scaling": (
            "lvcg_jax.bench.scaling",
            "list what a step sends between devices, and what bounds it on a chip",
        ),
        "benchmark": ("data_prep.benchmark", "measure the build of a data set"),
    },
}
MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


def help_text() -> str:
    """All commands, a line each."""
    width = max(map(len, MODULES)) + 2
    lines = ["usage: lvcg COMMAND [--flag=value ...]     (lvcg COMMAND --help lists its flags)"]
    for group, commands in COMMANDS.items():
        lines += [
            "",
            f"{group}:",
            *(f"  {name:{width}}{line}" for name, (_, line) in commands.items()),
        ]
    return "\n".join(lines)


def module_of(name: str) -> str:
    """The module behind a command, or an InputError with the nearest name."""
    if name in MODULES:
        return MODULES[name]
    near = difflib.get_close_matches(name.replace("-", "_"), MODULES, n=1)
    hint = f"did you mean {near[0]}?" if near else "`lvcg --help` lists all commands"
    raise InputError(f"no command '{name}': {hint}")


def main(argv: list[str] | None = None) -> int | None:
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name == "--version":
        from lvcg_jax import __version__

        print(f"lvcg_jax {__version__}")
        return 0
    module = importlib.import_module(module_of(name))
    keep_freed_memory()  # again: it needs JAX, which most commands have imported only now
    return module.main(rest)


def console() -> None:
    """Where the `lvcg` console script starts."""
    run_command(main)


if __name__ == "__main__":
    console()
