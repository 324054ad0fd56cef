"""Measures the batch norm statistics of trained weights again, with all leads of training records.

    lvcg norm_statistics --checkpoint=RUN --data=SHARDS --out=RUN2

Training shows a few leads of each record, and the statistics that it leaves are of such views; an
embedding sees all leads. Writes a run directory with the same weights and the new statistics, which
every command takes as --checkpoint. What that does to leads derived from a few visible ones was not
measured.
"""

from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from data_prep.base.command import Parser, run_command
from data_prep.base.files import require_local
from data_prep.dataset.shards import ShardSet
from lvcg_jax.embed.lvcg import CALIBRATION_BATCHES, LVCG
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP, save_trained


def changes(old: dict, new: dict) -> str:
    """In words, how far the statistics of all norms have moved."""
    one, two = (flatten_dict(jax.device_get(tree)) for tree in (old, new))
    norms = sorted({path[:-1] for path in one})
    before, after = (
        {name: np.concatenate([flat[*norm, name] for norm in norms]) for name in ("mean", "var")}
        for flat in (one, two)
    )
    spread = np.sqrt(before["var"] + 1e-12)
    low, middle, high = np.quantile((np.sqrt(after["var"]) / spread), (0.05, 0.5, 0.95))
    moved = np.median(np.abs(after["mean"] - before["mean"]) / spread)
    return (
        f"standard deviations are {middle:.2f} times the old ones (90% of the channels: {low:.2f}"
        f" to {high:.2f}), means moved by {moved:.2f} of them (median)"
    )


def main(argv: list[str] | None = None) -> int:
    parser = Parser("norm_statistics", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--data", required=True, metavar="SHARDS", help="its training split is measured")
    add("--out", required=True, metavar="RUN2", type=Path, help="run directory to make")
    add("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)
    require_local(args.out)
    model = LVCG.load(weights.choose(args.checkpoint), args.which)
    measured = model.with_statistics_of_all_leads(ShardSet(args.data, "train"))
    save_trained(args.out, model.config, measured.variables, model.step)
    moved = changes(model.variables["batch_stats"], measured.variables["batch_stats"])
    records = CALIBRATION_BATCHES * model.config.data.batch_size
    print(f"{model.checkpoint}, measured on {records:,} training records: {moved}: {args.out}")
    return 0


if __name__ == "__main__":
    run_command(main)
