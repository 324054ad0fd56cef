"""Turns a checkpoint of the authors' PyTorch code into a run directory that embed, probe and
reconstruct use.

    lvcg import_torch --checkpoint=final.pt --out=runs/authors

The file is read without PyTorch, and nothing in it is executed (see lvcg_jax/torch_file.py). Widths
follow from the tensors' shapes; everything else is the config variant `release` of
configs/pretrain.py. Optimiser state is not taken over, nor are the two projection heads, which no
loss trained and nothing reads.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.ecg.geometry import dipole_matrix, lead_matrix
from lvcg_jax.config.files import read_config_file
from lvcg_jax.export.torch_file import read_torch_file
from lvcg_jax.model.decoder import SEED_LENGTH
from lvcg_jax.runs.state import TrainState
from lvcg_jax.runs.trained import fresh_state, save_trained

RELEASE_CONFIG = "configs/pretrain.py:release"
# heads never trained, and the geometry once more
LEFT_OUT = ("struct_proj.", "dynamic_proj.", "lead_projection.")
NOT_NEEDED = ("num_batches_tracked",)
MOST_BLOCKS = 10  # of the decoder; each doubles the samples of a beat
MATRIX_TOLERANCE = 1e-4  # lead directions this close to the paper's are the paper's


class Tensors:
    """The tensors of a checkpoint by name; each is taken once, so what is left was not
    understood."""

    def __init__(self, tensors: Mapping[str, np.ndarray], path: Path):
        self.path, self._left = path, dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor that must be there."""
        if name not in self._left:
            raise InputError(
                f"{self.path} has no tensor '{name}': it is not a checkpoint of the published LVCG"
            )
        shape = self._left[name].shape
        if len(shape) != dimensions:
            raise InputError(
                f"{self.path}: tensor '{name}' has shape {shape}, expected {dimensions} dimensions"
            )
        return shape

    def take(self, name: str, dimensions: int) -> np.ndarray:
        self.shape(name, dimensions)
        value = self._left.pop(name).astype(np.float32)
        if not np.isfinite(value).all():
            raise InputError(
                f"{self.path}: tensor '{name}' holds numbers that are not finite: the run"
                " has diverged"
            )
        return value

    def take_rows(self, name: str, dimensions: int, parts: int) -> np.ndarray:
        """A tensor whose first axis has so many equal parts."""
        rows = self.shape(name, dimensions)[0]
        if rows % parts:
            raise InputError(
                f"{self.path}: tensor '{name}' has {rows} rows, which is no multiple of {parts}"
            )
        return self.take(name, dimensions)

    def count(self, pattern: str) -> int:
        """How many of pattern.format(0), pattern.format(1), ... are there."""
        number = 0
        while pattern.format(number) in self._left:
            number += 1
        return number

    def rest(self) -> list[str]:
        ignored = [
            name for name in self._left if name.startswith(LEFT_OUT) or name.endswith(NOT_NEEDED)
        ]
        return sorted(self._left.keys() - set(ignored))


class Weights:
    """Parameters and norm statistics in the layout of model.LVCG, collected module by module."""

    def __init__(self, tensors: Tensors):
        self.tensors, self.params, self.batch_stats = tensors, {}, {}

    def put(self, tree: dict, path: str, **values: np.ndarray) -> None:
        for name in path.split("/") if path else ():
            tree = tree.setdefault(name, {})
        tree.update(values)

    def linear(self, ours: str, theirs: str) -> None:
        kernel, bias = (
            self.tensors.take(f"{theirs}.weight", 2).T,
            self.tensors.take(f"{theirs}.bias", 1),
        )
        self.put(self.params, ours, kernel=kernel, bias=bias)

    def conv(self, ours: str, theirs: str) -> None:
        """[out,in,k] -> [k,in,out]."""
        kernel = self.tensors.take(f"{theirs}.weight", 3).transpose(2, 1, 0)
        self.put(self.params, ours, kernel=kernel, bias=self.tensors.take(f"{theirs}.bias", 1))

    def norm(self, ours: str, theirs: str, statistics: bool = True) -> None:
        take = self.tensors.take
        self.put(
            self.params, ours, scale=take(f"{theirs}.weight", 1), bias=take(f"{theirs}.bias", 1)
        )
        if statistics:
            mean, var = (take(f"{theirs}.running_{name}", 1) for name in ("mean", "var"))
            self.put(self.batch_stats, ours, mean=mean, var=var)

    def pair(self, ours: str, theirs: str) -> None:
        for k in (1, 2):
            self.conv(f"{ours}/pair/conv{k}", f"{theirs}.conv{k}")
            self.norm(f"{ours}/pair/norm{k}", f"{theirs}.bn{k}")


def infer_sizes(tensors: Tensors, config: ConfigDict) -> ConfigDict:
    """The release's config with the widths of these tensors."""
    shape, model = tensors.shape, config.model
    model.token_dim = shape("beat_encoder.proj.weight", 2)[0]
    model.stem_features, _, model.encoder_width = shape("beat_encoder.stem.0.weight", 3)
    stages = tensors.count("beat_encoder.stages.{}.blocks.0.conv1.weight")
    first = "beat_encoder.stages.{}.blocks.0.conv1.weight"
    model.stage_features = tuple(shape(first.format(s), 3)[0] for s in range(stages))
    model.stage_blocks = tuple(
        tensors.count(f"beat_encoder.stages.{s}.blocks.{{}}.conv1.weight") for s in range(stages)
    )
    model.dynamics_layers = tensors.count("state_generator.gru.weight_hh_l{}")
    model.state_dim = shape("state_generator.gru.weight_hh_l0", 2)[1]
    model.decoder_seed_features = shape("beat_decoder.proj_bn.weight", 1)[0]
    blocks = tensors.count("beat_decoder.blocks.{}.conv1.weight")
    model.decoder_features = tuple(
        shape(f"beat_decoder.blocks.{k}.conv1.weight", 3)[0] for k in range(blocks)
    )
    model.decoder_width = shape("beat_decoder.out_conv.0.weight", 3)[2]
    model.refine = shape("ecg_decoder.net.0.weight", 3)[0]
    model.rhythm_hidden, inputs = shape("global_rr_embedding.seq_proj.weight", 2)
    model.rhythm_basis = inputs // 2
    model.rhythm_dim = shape("global_rr_embedding.final_proj.2.weight", 2)[0]
    model.rhythm_positions = shape("global_rr_embedding.pos_enc", 2)[0]
    config.preprocess.max_beats = model.rhythm_positions
    if not 1 <= blocks <= MOST_BLOCKS:
        raise InputError(
            f"{tensors.path} has {blocks} decoder blocks: a beat would have"
            f" {SEED_LENGTH} x 2^{blocks} samples"
        )
    config.preprocess.beat_samples = SEED_LENGTH * 2**blocks
    matrix = tensors.take("all_lead_directions", 2)
    if matrix.shape != (12, 3) or np.abs(matrix - lead_matrix("paper")).max() > MATRIX_TOLERANCE:
        with config.ignore_type():
            config.geometry.matrix = tuple(
                tuple(row) for row in dipole_matrix(matrix.tolist()).tolist()
            )
    return config


def convert(tensors: Tensors, model: ConfigDict) -> Weights:
    """All parameters and norm statistics, by the names and layouts of model.LVCG."""
    weights, take = Weights(tensors), tensors.take
    weights.conv("encoder/stem_conv", "beat_encoder.stem.0")
    weights.norm("encoder/stem_norm", "beat_encoder.stem.1")
    for stage, blocks in enumerate(model.stage_blocks):
        for block in range(blocks):
            ours, theirs = (
                f"encoder/stage{stage}_block{block}",
                f"beat_encoder.stages.{stage}.blocks.{block}",
            )
            weights.pair(ours, theirs)
            if f"{theirs}.shortcut.0.weight" in tensors:
                weights.conv(f"{ours}/shortcut_conv", f"{theirs}.shortcut.0")
                weights.norm(f"{ours}/shortcut_norm", f"{theirs}.shortcut.1")
    weights.linear("encoder/token", "beat_encoder.proj")

    for k in range(model.dynamics_layers):  # gates in the order reset, keep, new in both
        for ours, theirs in (("input", "ih"), ("state", "hh")):
            kernel = take(f"state_generator.gru.weight_{theirs}_l{k}", 2).T
            bias = take(f"state_generator.gru.bias_{theirs}_l{k}", 1)
            weights.put(weights.params, f"temporal/step/gru{k}/{ours}", kernel=kernel, bias=bias)

    channels = model.decoder_seed_features  # theirs: channels x samples; ours: samples x channels
    rows, size = tensors.shape("beat_decoder.proj.weight", 2)[0], channels * SEED_LENGTH
    if rows != size or tensors.shape("beat_decoder.proj.bias", 1)[0] != size:
        raise InputError(
            f"{tensors.path}: tensor 'beat_decoder.proj' has {rows} rows, its norm wants {size}"
        )
    kernel, bias = take("beat_decoder.proj.weight", 2), take("beat_decoder.proj.bias", 1)
    kernel = (
        kernel.reshape(channels, SEED_LENGTH, -1).transpose(2, 1, 0).reshape(kernel.shape[1], -1)
    )
    bias = bias.reshape(channels, SEED_LENGTH).T.reshape(-1)
    weights.put(weights.params, "decoder/seed", kernel=kernel, bias=bias)
    weights.norm("decoder/seed_norm", "beat_decoder.proj_bn")
    for k in range(len(model.decoder_features)):
        weights.pair(f"decoder/up{k}", f"beat_decoder.blocks.{k}")
        weights.conv(f"decoder/up{k}/shortcut", f"beat_decoder.blocks.{k}.shortcut")
    weights.conv("decoder/out_conv", "beat_decoder.out_conv.0")
    weights.norm("decoder/out_norm", "beat_decoder.out_conv.1")
    weights.conv("decoder/out", "beat_decoder.out_conv.3")
    for k, layer in enumerate((0, 2), start=1):
        weights.conv(f"refiner/conv{k}", f"ecg_decoder.net.{layer}")

    rhythm = "global_rr_embedding"
    weights.put(weights.params, "rhythm", positions=take(f"{rhythm}.pos_enc", 2))
    for ours, theirs in (
        ("stats1", "stat_proj.0"),
        ("stats2", "stat_proj.2"),
        ("basis", "seq_proj"),
        ("differences", "diff_proj"),
        ("fuse1", "final_proj.0"),
        ("fuse2", "final_proj.2"),
        ("pool/out", "attn_pool.out_proj"),
    ):
        weights.linear(f"rhythm/{ours}", f"{rhythm}.{theirs}")
    weights.put(weights.params, "rhythm/pool", query=take(f"{rhythm}.query", 3).reshape(-1))
    packed = (
        tensors.take_rows(f"{rhythm}.attn_pool.in_proj_weight", 2, 3),
        tensors.take_rows(f"{rhythm}.attn_pool.in_proj_bias", 1, 3),
    )
    for name, kernel, bias in zip("qkv", *(np.split(x, 3) for x in packed), strict=True):
        weights.put(weights.params, f"rhythm/pool/{name}", kernel=kernel.T, bias=bias)

    for ours, theirs in (("structure", "struct"), ("dynamics", "dynamic"), ("rhythm", "rhythm")):
        weights.norm(f"norm_{ours}", f"norm_{theirs}", statistics=False)
    return weights


def state_tensors(content, path: Path) -> tuple[dict[str, np.ndarray], int]:
    """The tensors of a checkpoint and its step, from a training checkpoint or a bare state dict."""
    found = content.get("model_state_dict", content) if isinstance(content, dict) else None
    names = found if isinstance(found, dict) else {}
    tensors = {
        name: x for name, x in names.items() if isinstance(name, str) and isinstance(x, np.ndarray)
    }
    if not tensors:
        raise InputError(
            f"{path} holds no model_state_dict with tensors: give final.pt or"
            " checkpoint_*.pt of a run"
        )
    step = content.get("global_step", 0)
    return tensors, step if isinstance(step, int) and 0 <= step < 2**31 else 0


def import_checkpoint(
    path: str | Path, out: str | Path
) -> tuple[ConfigDict, TrainState, list[str]]:
    """Writes the run directory; returns its config, its state and the names of tensors that were
    not understood."""
    path, out = Path(path), Path(out)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out={out} is not empty: give a new run directory")
    tensors, step = state_tensors(read_torch_file(path), path)
    taken = Tensors(tensors, path)
    config = infer_sizes(taken, read_config_file(RELEASE_CONFIG))
    weights = convert(taken, config.model)
    expected = jax.eval_shape(lambda: fresh_state(config, 0))
    for ours, wanted in (
        (weights.params, expected.params),
        (weights.batch_stats, expected.batch_stats),
    ):
        check_same_shapes(ours, wanted, path)
    variables = {"params": weights.params, "batch_stats": weights.batch_stats}
    return config, save_trained(out, config, variables, step), taken.rest()


def check_same_shapes(found, wanted, path: Path) -> None:
    """Every parameter of the model is there in the model's shape, and no other."""
    have, want = (dict(_leaves(tree)) for tree in (found, wanted))
    for name in sorted(have.keys() | want.keys()):
        if have.get(name) != want.get(name):
            text = (
                f"'{name}' has shape {have.get(name, 'absent')}, the model wants"
                f" {want.get(name, 'absent')}"
            )
            raise InputError(f"{path} does not fit the published architecture: {text}")


def _leaves(tree) -> Iterable[tuple[str, tuple[int, ...]]]:
    for keys, x in jax.tree_util.tree_leaves_with_path(tree):
        yield "/".join(key.key for key in keys), tuple(x.shape)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("import_torch", __doc__)
    parser.add_argument(
        "--checkpoint", required=True, metavar="FILE", help="final.pt or another file of torch.save"
    )
    parser.add_argument("--out", required=True, metavar="RUN", help="run directory to make")
    args = parser.parse_args(argv)
    config, state, others = import_checkpoint(args.checkpoint, args.out)
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(state.params))
    model = config.model
    print(
        f"{size:,} parameters (token {model.token_dim}, state {model.state_dim}), step"
        f" {int(state.step)}: {args.out}"
    )
    if others:
        print(
            "not understood and left out:"
            f" {', '.join(others[:10])}{' ...' if len(others) > 10 else ''}"
        )
    return 0


if __name__ == "__main__":
    run_command(main)
