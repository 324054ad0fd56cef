"""Adds fitted parts to the embeddings of trained weights.

    lvcg add_parts --checkpoint=RUN --data=SHARDS --patterns=336 --out=RUN2
    lvcg add_parts --checkpoint=RUN --data=SHARDS --beat_modes=160,64 --out=RUN2

Fits them to the training records, as a training with `model.patterns` or `model.beat_modes` does
when it starts, and writes a run directory with the same weights and these parts, which every
command takes as --checkpoint. Parts that the weights had before are left out unless they are asked
for again. See lvcg_jax/model/patterns.py and lvcg_jax/model/beat_shape.py.
"""

from pathlib import Path

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import require_local
from data_prep.dataset.shards import ShardSet
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP, save_trained


def parse_modes(text: str) -> tuple[int, int]:
    """'160,64' -> (160, 64)."""
    words = text.split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() for word in words):
        raise InputError(
            f"--beat_modes={text}: give two numbers, for the mean beat and for differences"
        )
    return int(words[0]), int(words[1])


def main(argv: list[str] | None = None) -> int:
    parser = Parser("add_parts", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--data", required=True, metavar="SHARDS", help="fitted to its training split")
    add(
        "--beat_modes",
        default="0,0",
        metavar="MEAN,CHANGE",
        help="numbers for the mean beat in mV, and for what differs between beats (default none)",
    )
    add(
        "--patterns",
        type=int,
        default=0,
        metavar="N",
        help="numbers for how often short patterns occur (default none)",
    )
    add("--out", required=True, metavar="RUN2", type=Path, help="run directory to make")
    add("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)
    require_local(args.out)
    modes = parse_modes(args.beat_modes)
    if args.patterns < 0 or not (any(modes) or args.patterns):
        raise InputError("nothing to add: give --patterns=336, --beat_modes=160,64 or both")
    model = LVCG.load(weights.choose(args.checkpoint), args.which)
    found = model.with_parts(ShardSet(args.data, "train"), modes, args.patterns)
    save_trained(args.out, found.config, found.variables, model.step)
    print(
        f"{model.checkpoint} with {modes[0]} + {modes[1]} modes of beats and {args.patterns} of"
        f" patterns: {sum(model.part_sizes.values())} -> {sum(found.part_sizes.values())} numbers:"
        f" {args.out}"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
