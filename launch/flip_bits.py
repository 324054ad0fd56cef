"""Flips single bits in what commands write, and counts what becomes of them: the table of
docs/trust.md.

    python launch/flip_bits.py [--flips=500] [--seed=0]

Each flip changes one bit, somewhere in the files, and then reads them as a command would. It is
refused in one line, or harmless (what is read is the same to the last number), or silent: read, and
other than it was. Anything else is an error that a user would see as a stack trace.
"""

import hashlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

import jax  # noqa: E402
import numpy as np  # noqa: E402

from data_prep.base.command import Parser, natural_int, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.base.progress import progress_bar  # noqa: E402
from data_prep.corpora.corpus import open_corpus  # noqa: E402
from data_prep.dataset.builder import build  # noqa: E402
from data_prep.dataset.shards import ShardSet  # noqa: E402
from data_prep.ecg.preprocess import Preprocess  # noqa: E402
from data_prep.synthetic_heart.records import write_corpus  # noqa: E402
from lvcg_jax.config.files import PAPER_CONFIG, read_config_file  # noqa: E402
from lvcg_jax.embed.table import Table, load_table, save_table  # noqa: E402
from lvcg_jax.reconstruct.learned.trained import read_network  # noqa: E402
from lvcg_jax.reconstruct.methods import PACKAGED as FIELD  # noqa: E402
from lvcg_jax.runs import weights  # noqa: E402
from lvcg_jax.runs.checkpoint import Checkpoints  # noqa: E402
from lvcg_jax.runs.trained import fresh_state  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402

COLUMNS = ("what", "bytes", "flips", "refused", "harmless", "silent", "stack trace")


def main(argv: list[str] | None = None) -> int:
    parser = Parser("flip_bits", __doc__, prog="python launch/flip_bits.py")
    parser.add_argument("--flips", type=positive_int, default=500, help="of each kind of file")
    parser.add_argument("--seed", type=natural_int, default=0, help="of the random places")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what, files, read in artefacts(Path(folder)):
            counts = flip(what, files, read, args.flips, random.Random(args.seed))
            size = sum(file.stat().st_size for file in files)
            kinds = (counts[kind] for kind in ("refused", "harmless", "silent", "trace"))
            rows.append([what, f"{size:,}", args.flips, *kinds])
            print(rows[-1], file=sys.stderr, flush=True)
    print("\n".join(markdown_table(COLUMNS, rows)))
    return 1 if any(row[-1] or row[-2] for row in rows) else 0


def artefacts(folder: Path) -> list[tuple[str, list[Path], Callable[[], object]]]:
    """What is flipped: its name, its files, and a function that reads it."""
    # weights of the package, in a copy
    place = folder / "packaged"
    shutil.copytree(weights.PACKAGED, place)
    weights.PACKAGED = place
    field = folder / FIELD.name
    for file in (FIELD, FIELD.with_suffix(".sha256")):
        shutil.copy(file, folder / file.name)

    # shards of a synthetic corpus
    write_corpus(folder / "raw", patients=10, records_per_patient=1, rate=100)
    data = folder / "data"
    build(open_corpus("synthetic", folder / "raw"), data, Preprocess(), progress=False)
    train = ShardSet(data, "train")

    # a checkpoint of a small model
    config = read_config_file(f"{PAPER_CONFIG}:smoke")
    state = fresh_state(config, 0)
    checkpoints = Checkpoints(folder / "run", config)
    checkpoints.save(1, state)
    checkpoints.close()
    checkpoints = Checkpoints(folder / "run")
    step = [file for file in (folder / "run" / "checkpoints").rglob("*") if file.is_file()]

    # tables of embeddings
    names = np.array([f"record {i}" for i in range(100)])
    table = Table(
        record_id=names,
        patient_id=names,
        split=np.full(100, "train"),
        labels=[{"rhythm": ["AF"] * (i % 2)} for i in range(100)],
        embedding=np.random.default_rng(0).normal(size=(100, 640)).astype(np.float32),
        parts={"structure": 640},
        metadata={"checkpoint": "run@1#abcd", "tasks": '{"rhythm": ["AF"]}'},
        window=np.arange(100),
        extra={"num_beats": np.arange(100)},
    )
    for ending in ("npz", "parquet"):
        save_table(folder / f"table.{ending}", table)

    def read_set() -> object:
        return list(ShardSet(data, "train"))

    return [
        (
            "packaged weights",
            [place / "small.safetensors"],
            lambda: weights.load("small").variables,
        ),
        ("their description", [place / "small.json"], partial(read_weights, "small")),
        ("network for leads", [field], lambda: read_network(field)),
        ("shards, opened and read", train.paths, read_set),
        ("shards, `lvcg verify`", train.paths, train.verify),
        ("beat counts", [data / "beat_counts-train.npy"], lambda: ShardSet(data, "train").counts),
        ("checkpoint", step, lambda: read_checkpoint(checkpoints, config, state)),
        ("embeddings, .npz", [folder / "table.npz"], lambda: load_table(folder / "table.npz")),
        (
            "embeddings, .parquet",
            [folder / "table.parquet"],
            lambda: load_table(folder / "table.parquet"),
        ),
    ]


def read_weights(name: str) -> object:
    """What LVCG.load takes from packaged weights."""
    found = weights.load(name)
    return found.variables, found.config.to_json()


def read_checkpoint(checkpoints: Checkpoints, config, state) -> object:
    """The state that LVCG.load takes from a run, after its checks."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), state)
    checkpoints.check_config(config)
    return checkpoints.restore_for_use(abstract)


def flip(
    what: str, files: list[Path], read: Callable[[], object], flips: int, chance: random.Random
) -> Counter:
    """What became of so many flips, each in a random bit of these files."""
    before, counts = digest(read()), Counter()
    sizes = [file.stat().st_size for file in files]
    for _ in progress_bar(range(flips), desc=what, unit="flip"):
        (file,) = chance.choices(files, sizes)
        data = file.read_bytes()
        place = chance.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            counts["harmless" if digest(read()) == before else "silent"] += 1
        except InputError:
            counts["refused"] += 1
        except Exception as error:
            counts["trace"] += 1
            print(f"{file.name}, bit {place}: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            file.write_bytes(data)
    return counts


def digest(value: object) -> str:
    """A hash of everything that was read: numbers, texts and their order."""
    found = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, Table):
            part = vars(part)
        if isinstance(part, dict):
            part = [item for name in sorted(part) for item in (name, part[name])]
        if isinstance(part, list | tuple):
            for one in part:
                add(one)
        elif hasattr(part, "dtype") and hasattr(part, "shape"):
            found.update(f"{part.dtype} {part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
        elif jax.tree.leaves(part) not in ([part], []):
            add(jax.tree.leaves(part))
        else:
            found.update(repr(part).encode())

    add(value)
    return found.hexdigest()


if __name__ == "__main__":
    run_command(main)
