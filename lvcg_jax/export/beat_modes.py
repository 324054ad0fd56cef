"""Adds the shape of the beats in mV and ms to the embeddings of trained weights.

    lvcg beat_modes --checkpoint=RUN --data=SHARDS --modes=160,64 --out=RUN2

Fits modes to the training records, as a training with `model.beat_modes` does when it starts, and
writes a run directory with the same weights and these modes, which every command takes as
--checkpoint. See lvcg_jax/model/beat_shape.py.
"""

from pathlib import Path

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import require_local
from data_prep.dataset.shards import ShardSet
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP, save_trained


def parse_modes(text: str) -> tuple[int, int]:
    """'160,64' -> (160, 64)."""
    numbers = tuple(positive_int(word) for word in text.split(","))
    if len(numbers) != 2:
        raise InputError(f"--modes={text}: give two numbers, for the mean beat and for differences")
    return numbers


def main(argv: list[str] | None = None) -> int:
    parser = Parser("beat_modes", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--data", required=True, metavar="SHARDS", help="modes are fitted to its training split")
    add(
        "--modes",
        default="160,64",
        metavar="MEAN,CHANGE",
        help="numbers for the mean beat, and for what differs between beats (default 160,64)",
    )
    add("--out", required=True, metavar="RUN2", type=Path, help="run directory to make")
    add("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)
    require_local(args.out)
    modes = parse_modes(args.modes)
    model = LVCG.load(weights.choose(args.checkpoint), args.which)
    found = model.with_beat_modes(ShardSet(args.data, "train"), modes)
    save_trained(args.out, found.config, found.variables, model.step)
    print(
        f"{model.checkpoint} with {modes[0]} + {modes[1]} modes of beats:"
        f" {sum(model.part_sizes.values())} -> {sum(found.part_sizes.values())} numbers: {args.out}"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
