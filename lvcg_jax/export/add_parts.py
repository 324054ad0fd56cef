"""Adds parts that are not trained with the tokens to the embeddings of trained weights.

    lvcg add_parts --checkpoint=RUN --data=SHARDS --patterns=336 --out=RUN2
    lvcg add_parts --checkpoint=RUN --data=SHARDS --beat_modes=160,64 --out=RUN2
    lvcg add_parts --checkpoint=RUN --data=SHARDS --beat_levels=200 --out=RUN2
    lvcg add_parts --checkpoint=RUN --data=SHARDS --record_token=TOKEN_RUN --out=RUN2

Patterns, beat levels and beat modes are fitted to the training records, as a training with
`model.patterns`, `model.beat_levels` or `model.beat_modes` does when it starts. The record token
comes from a run of configs/record_token.py, or from weights that have one. What is written is a run
directory with the same weights and these parts, which every command takes as --checkpoint. Parts
that the weights had before are left out unless they are asked for again. See patterns.py,
beat_levels.py, beat_shape.py and record_token.py in lvcg_jax/model.
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
    add(
        "--beat_levels",
        type=int,
        default=0,
        metavar="N",
        help="numbers for what the median beat measures (default none)",
    )
    add(
        "--record_token",
        metavar="TOKEN_RUN",
        help="run of configs/record_token.py, or weights with a record token (default none)",
    )
    add(
        "--structure",
        metavar="WORDS",
        help="statistics of the beats' tokens that stay beside them, as model.structure (default"
        " as they are); none leaves the tokens out",
    )
    add("--out", required=True, metavar="RUN2", type=Path, help="run directory to make")
    add("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)
    require_local(args.out)
    modes = parse_modes(args.beat_modes)
    counts = args.patterns, args.beat_levels
    if min(counts) < 0 or not (any(modes) or any(counts) or args.record_token):
        raise InputError(
            "nothing to add: give --patterns=336, --beat_levels=200, --beat_modes=160,64 or"
            " --record_token=TOKEN_RUN"
        )
    model = LVCG.load(weights.choose(args.checkpoint), args.which)
    token = LVCG.load(args.record_token) if args.record_token else None
    found = model.with_parts(ShardSet(args.data, "train"), modes, *counts, token, args.structure)
    save_trained(args.out, found.config, found.variables, model.step)
    added = f"{modes[0]} + {modes[1]} modes of beats, {counts[0]} of patterns, {counts[1]} of beat"
    added += f" levels and {found.config.model.record_token} numbers of the record token"
    sizes = [sum(one.part_sizes.values()) for one in (model, found)]
    print(f"{model.checkpoint} with {added}: {sizes[0]} -> {sizes[1]} numbers: {args.out}")
    return 0


if __name__ == "__main__":
    run_command(main)
