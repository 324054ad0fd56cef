"""Embeddings by ONNX Runtime against those by JAX, on the records of a folder: the largest
difference for all leads and for a few sets of them.

    python launch/compare_onnx.py --checkpoint=best --folder=FOLDER [--records=100]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.formats.any_file import read_any  # noqa: E402
from lvcg_jax import LVCG  # noqa: E402
from lvcg_jax.export import __main__ as export  # noqa: E402
from lvcg_jax.export.onnx_model import OnnxModel  # noqa: E402

VIEWS = (None, "I", "I,II,V2", "I,II")


def main(argv: list[str] | None = None) -> int:
    parser = Parser("compare_onnx", __doc__, prog="python launch/compare_onnx.py")
    add = parser.add_argument
    add("--checkpoint", default="best", help="weights to compare (default best)")
    add("--folder", required=True, help="folder of WFDB records, evenly drawn from")
    add("--records", type=positive_int, default=100, help="to compare (default 100)")
    args = parser.parse_args(argv)
    paths = sorted(Path(args.folder).rglob("*.hea"))
    paths = paths[:: max(1, len(paths) // args.records)][: args.records]
    if not paths:
        raise InputError(f"--folder={args.folder}: there is no .hea in it")
    model = LVCG.load(args.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.onnx"
        export.main([f"--checkpoint={args.checkpoint}", "--format=onnx", f"--out={out}"])
        exported = OnnxModel(out)
    shape = sum(model.model.embedding.beat_modes) + model.model.embedding.patterns
    for view in VIEWS:
        leads = view.split(",") if view else None
        pairs = [both(model, exported, path, leads) for path in paths]
        far = [np.abs(found - expected).max(0) for found, expected in pairs]
        most = np.max(far, axis=0)  # structure, of which the shape comes last, dynamics, rhythm
        end = model.part_sizes["structure"]
        of_shape = most[end - shape : end].max(initial=0)
        rest = np.concatenate([most[: end - shape], most[end:]]).max()
        print(
            f"{model.checkpoint}, {len(paths)} records, {view or 'all leads'}: largest difference"
            f" {of_shape:.1e} in the shape of beats or patterns, {rest:.1e} elsewhere",
            flush=True,
        )
    return 0


def both(model: LVCG, exported: OnnxModel, path: Path, leads: list[str] | None):
    """The embedding of a record by both, [w,d] each."""
    record = read_any(path)
    given = (record.signal, record.rate, record.leads)
    parts = exported.embed(*given, leads)
    return np.concatenate(list(parts.values()), -1), model.embed(*given, visible=leads).embedding


if __name__ == "__main__":
    run_command(main)
