"""A trained embedder as one file that needs nothing but JAX: weights, computation and all.

    lvcg export --checkpoint=RUN --out=model.stablehlo

Beside it are model.json (inputs, outputs, preprocessing, lead order, checkpoint) and model.md, a
model card that shows how to call it. Without --checkpoint the weights that the package carries are
exported. The function takes beats as data_prep.ecg.preprocess makes them, for any number of records
b at once:

    beats      [b,n,12,P] float32   normalised samples
    length     [b,n] int32          samples of each interval
    complete   [b,n] bool           is it a whole interval from R peak to R peak?
    num_beats  [b] int32            how many of the n slots are filled
    lead_mask  [b] int32            bit i: LEADS[i] may be seen
    scale      [b,12] float32       mV of one normalised unit of each lead

and gives a dict of the parts of the embedding: structure, dynamics and rhythm, each [b,.] float32.
"""

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.packing import BATCH, shapes
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.export.card import model_card, run_words
from lvcg_jax.model.network import PARTS
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
INPUTS = tuple(name for name in BATCH if name != "uid")  # uid is for training's randomness
FORMAT = 2  # of the JSON file; 2: the function takes `scale` too


def embed_function(embedder: LVCG) -> Callable[..., dict[str, jax.Array]]:
    """The embedding as a function of the arrays INPUTS, [b,...] each.

    In the batch every record is its own group, so that its beats need no packing; they are rounded
    to float16, as in shards.
    """

    def embed(*arrays: jax.Array) -> dict[str, jax.Array]:
        batch = {
            name: (x if BATCH[name].per == "beat" else x[:, None]).astype(BATCH[name].dtype)
            for name, x in zip(INPUTS, arrays, strict=True)
        }
        outputs = embedder.model.apply(
            embedder.variables, batch, batch["lead_mask"], embedder.max_beats, method="embed"
        )
        return {name: outputs[name][:, 0] for name in PARTS}

    return embed


def input_shapes(embedder: LVCG, b) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and type of each argument, in order, for b records (a number or a symbol)."""
    found = shapes((b,), embedder.max_beats, None, embedder.preprocess.beat_samples)
    beats = {"beats": jax.ShapeDtypeStruct(found["beats"].shape, jnp.float32)}
    return {name: (found | beats)[name] for name in INPUTS}


def export_embedder(embedder: LVCG, platforms: Sequence[str]) -> export.Exported:
    """The embedding function with its weights for any number of records, lowered for these
    platforms."""
    (b,) = export.symbolic_shape("b")
    shapes = input_shapes(embedder, b)
    return export.export(jax.jit(embed_function(embedder)), platforms=tuple(platforms))(
        *shapes.values()
    )


def describe(embedder: LVCG, exported: export.Exported, data: bytes, name: str) -> dict:
    """The facts of an exported file, as written to its JSON file."""
    inputs = input_shapes(embedder, "b")
    parts = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        "format": FORMAT,
        "file": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "checkpoint": embedder.checkpoint,
        "platforms": list(exported.platforms),
        "jax": jax.__version__,
        "parameters": sum(
            math.prod(x.shape) for x in jax.tree.leaves(embedder.variables["params"])
        ),
        "inputs": {
            key: {"shape": list(x.shape), "dtype": x.dtype.name} for key, x in inputs.items()
        },
        "outputs": {
            key: {"shape": ["b", parts[key].shape[1]], "dtype": parts[key].dtype.name}
            for key in PARTS
        },
        # their order in the embedding, and their sizes
        "parts": {key: parts[key].shape[1] for key in PARTS},
        "leads": list(LEADS),
        "preprocess": embedder.preprocess.to_dict(),
        "preprocess_hash": embedder.preprocess.hash(),
    }


def parse_platforms(text: str) -> list[str]:
    """'cpu,cuda' -> ['cpu', 'cuda']."""
    platforms = text.split(",")
    for platform in platforms:
        if platform not in PLATFORMS:
            raise InputError(
                f"--platforms: unknown platform '{platform}', choose from {', '.join(PLATFORMS)}"
            )
    return platforms


def main(argv: list[str] | None = None) -> int:
    parser = Parser("export", __doc__)
    parser.add_argument("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    parser.add_argument("--out", required=True, help="file to write, ending in .stablehlo")
    parser.add_argument(
        "--platforms", default="cpu,cuda,tpu", help="where it will run (default cpu,cuda,tpu)"
    )
    parser.add_argument("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)

    # mistakes are told before anything is loaded
    platforms, out = parse_platforms(args.platforms), Path(args.out)
    if out.suffix != ".stablehlo":
        raise InputError(f"--out={out} must end in .stablehlo")
    if importlib.util.find_spec("flatbuffers") is None:
        raise InputError("the package flatbuffers is missing: pip install flatbuffers")
    checkpoint = weights.choose(args.checkpoint)
    embedder = LVCG.load(checkpoint, args.which)
    embedder.require_heart_vector("lvcg export")

    exported = export_embedder(embedder, platforms)
    data = bytes(exported.serialize())

    # the file itself, its facts, and the model card
    facts = describe(embedder, exported, data, out.name)
    write_whole(out, data)
    write_whole(out.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    words = embedder.facts.get("card") or run_words(facts, embedder.config, Path(checkpoint))
    write_whole(out.with_suffix(".md"), model_card(facts, words))
    sizes = f"{len(data) / 2**20:.1f} MiB for {', '.join(platforms)}"
    print(
        f"{embedder.checkpoint}: {out} ({sizes}), {out.stem}.json and the model card {out.stem}.md"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
