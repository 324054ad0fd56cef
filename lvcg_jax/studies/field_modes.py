"""A geometry of more modes than the three directions of a dipole, from the training records of a
data set.

    lvcg field_modes --data=SHARDS --modes=8 --out=modes.json
    lvcg train --config=CONFIG --config.geometry.matrix=modes.json --config.geometry.eps=0.05 ...

The modes are the leading eigenvectors of the covariance of the twelve normalised leads, each scaled
by the root of its variance: A [12,k], so that A A' is the covariance as far as k modes hold it.
Every record counts the same, those that lack a lead are left out. The lift that follows (see
docs/method.md) gives the most likely coordinates of a Gaussian with that covariance, and eps is the
variance of what it takes for noise. The coordinates are no directions in space.
"""

from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import SPACE, save_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.reconstruct.linear import mean_products


def field_modes(covariance: np.ndarray, count: int) -> np.ndarray:
    """The leading modes [12,count] of a covariance of the leads [12,12], each scaled by the root of
    its variance. A mode's sign means nothing: its largest entry is positive."""
    variance, modes = np.linalg.eigh(covariance)
    variance, modes = variance[::-1][:count], modes[:, ::-1][:, :count]
    largest = np.abs(modes).argmax(0)
    signs = np.sign(modes[largest, np.arange(count)])
    return modes * signs * np.sqrt(np.maximum(variance, 0.0))


def main(argv: list[str] | None = None) -> int:
    parser = Parser("field_modes", __doc__)
    add = parser.add_argument
    add("--data", required=True, metavar="SHARDS", help="shards with a train split")
    add("--modes", type=positive_int, default=8, help="modes, 3 to 12 (default 8)")
    add("--out", required=True, metavar="FILE.json", help="file for --config.geometry.matrix")
    args = parser.parse_args(argv)
    if not SPACE <= args.modes <= len(LEADS):
        raise InputError(f"--modes={args.modes}: give {SPACE} to {len(LEADS)}")
    if Path(args.out).suffix.lower() != ".json":
        raise InputError(f"--out={args.out}: give a name that ends in .json")

    shards = ShardSet(args.data, "train")
    with progress_bar(total=len(shards), unit="record", desc="field modes") as bar:
        products, records = mean_products(shard_windows(shards, bar.update), "field modes")
    covariance = products["z"]
    modes = field_modes(covariance, args.modes)
    try:
        save_matrix(args.out, modes)
    except OSError as error:
        raise InputError(f"--out={args.out}: cannot write there ({error.strerror})") from None

    variance = np.trace(covariance)
    kept = (modes**2).sum(0).cumsum() / variance
    print(f"{args.modes} modes of twelve normalised leads, {records} training records: {args.out}")
    print("share of the variance, added up: " + ", ".join(f"{100 * x:.1f}%" for x in kept))
    print(f"variance that they leave over, mean of a lead: {(1 - kept[-1]) * variance / 12:.4f}")
    print(f"use them with --config.geometry.matrix={args.out}")
    return 0


if __name__ == "__main__":
    run_command(main)
