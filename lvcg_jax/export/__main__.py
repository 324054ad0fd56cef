"""A trained embedder for use elsewhere: as one file with weights and computation, or as a folder.

    lvcg export --checkpoint=RUN --out=model.stablehlo
    lvcg export --checkpoint=RUN --format=onnx --out=model.onnx
    lvcg export --checkpoint=RUN --format=huggingface --out=FOLDER

stablehlo needs nothing but JAX, onnx nothing but ONNX Runtime: lvcg_jax/export/onnx_model.py runs
it (to write it takes the extra `onnx`). huggingface is a folder of model.safetensors, config.json
and README.md, which LVCG.load reads back. Without --checkpoint the weights that the package carries
are exported.

Beside a file are model.json (inputs, outputs, preprocessing, lead order, checkpoint) and model.md,
a model card that shows how to call it. The function takes beats as data_prep.ecg.preprocess makes
them, for any number of records b at once (onnx: for one):

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
from lvcg_jax.export.huggingface import export_folder
from lvcg_jax.model.network import PARTS
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP

FORMATS = ("stablehlo", "onnx", "huggingface")
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


def export_onnx(embedder: LVCG) -> bytes:
    """The embedding function of one record as an ONNX model."""
    from lvcg_jax.export.onnx_graph import make_onnx

    made = make_onnx(embed_function(embedder), input_shapes(embedder, 1))
    return made.SerializeToString(deterministic=True)


def describe(embedder: LVCG, platforms: Sequence[str], data: bytes, name: str, b="b") -> dict:
    """The facts of an exported file, as written to its JSON file."""
    inputs = input_shapes(embedder, b)
    sizes = {name: embedder.part_sizes[name] for name in PARTS}
    return {
        "format": FORMAT,
        "file": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "checkpoint": embedder.checkpoint,
        "platforms": list(platforms),
        "jax": jax.__version__,
        "parameters": sum(
            math.prod(x.shape) for x in jax.tree.leaves(embedder.variables["params"])
        ),
        "inputs": {
            key: {"shape": list(x.shape), "dtype": x.dtype.name} for key, x in inputs.items()
        },
        "outputs": {key: {"shape": [b, size], "dtype": "float32"} for key, size in sizes.items()},
        # their order in the embedding, and their sizes
        "parts": sizes,
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
    parser.add_argument("--out", required=True, help="file .stablehlo or .onnx, or a folder")
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="what to write (default %(default)s)"
    )
    parser.add_argument(
        "--platforms", help="of stablehlo: where it will run (default cpu,cuda,tpu)"
    )
    parser.add_argument("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    args = parser.parse_args(argv)

    # mistakes are told before anything is loaded
    out, wanted = Path(args.out), args.format
    if args.platforms is not None and wanted != "stablehlo":
        raise InputError(f"--platforms is for --format=stablehlo, not for {wanted}")
    platforms = parse_platforms(args.platforms or "cpu,cuda,tpu")
    if wanted != "huggingface" and out.suffix != f".{wanted}":
        raise InputError(f"--out={out} must end in .{wanted}")
    if wanted == "stablehlo" and importlib.util.find_spec("flatbuffers") is None:
        raise InputError("the package flatbuffers is missing: pip install flatbuffers")
    if wanted == "onnx" and importlib.util.find_spec("onnx") is None:
        raise InputError("--format=onnx needs `pip install lvcg-jax[onnx]`")
    checkpoint = weights.choose(args.checkpoint)
    embedder = LVCG.load(checkpoint, args.which)
    if wanted == "huggingface":
        print(export_folder(embedder, checkpoint, out))
        return 0
    embedder.require_heart_vector("lvcg export")

    # the file itself, its facts, and the model card
    if wanted == "onnx":
        data = export_onnx(embedder)
        facts = describe(embedder, ["onnxruntime"], data, out.name, 1)
    else:
        data = bytes(export_embedder(embedder, platforms).serialize())
        facts = describe(embedder, platforms, data, out.name)
    write_whole(out, data)
    write_whole(out.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    words = embedder.facts.get("card") or run_words(facts, embedder.config, Path(checkpoint))
    write_whole(out.with_suffix(".md"), model_card(facts, words))
    sizes = f"{len(data) / 2**20:.1f} MiB for {', '.join(facts['platforms'])}"
    print(
        f"{embedder.checkpoint}: {out} ({sizes}), {out.stem}.json and the model card {out.stem}.md"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
