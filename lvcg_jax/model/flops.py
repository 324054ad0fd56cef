"""Floating-point operations of the model, counted by hand: what the arithmetic needs, not what an
implementation does.

Convolutions count the taps that meet a sample, not those that meet zero padding. Norms,
activations, the lift, the projection and the rhythm encoder are left out (together under one
percent). A multiplication and an addition are two.
"""

from collections.abc import Mapping

import numpy as np

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.model.decoder import SEED_LENGTH

TRAIN_FACTOR = 3  # forward, and in the backward pass one product for each of the two factors


def conv_flops(length: int, width: int, inputs: int, outputs: int, stride: int = 1) -> int:
    """A zero-padded convolution over `length` samples (see conv1d.py)."""
    first = stride * np.arange(-(-length // stride)) - width // 2
    taps = np.minimum(first + width, length) - np.maximum(first, 0)
    return 2 * int(taps.sum()) * inputs * outputs


def num_axes(config) -> int:
    """Channels of a beat as it is encoded and decoded."""
    if config.model.space == "ecg":
        return len(LEADS)
    return lead_matrix(config.geometry.matrix).shape[1]


def encoder_flops(config) -> int:
    """One beat through the encoder."""
    model, width = config.model, config.model.encoder_width
    length, channels = config.preprocess.beat_samples, model.stem_features
    inputs, times = (num_axes(config), 1) if model.token_scope == "beat" else (1, num_axes(config))
    total = conv_flops(length, width, inputs, channels, stride=2)
    length = -(-length // 2)
    for features, blocks in zip(model.stage_features, model.stage_blocks, strict=True):
        for block in range(blocks):
            stride = 2 if block == 0 else 1
            total += conv_flops(length, width, channels, features, stride)
            if stride != 1 or channels != features:
                total += conv_flops(length, 1, channels, features, stride)
            length, channels = -(-length // stride), features
            total += conv_flops(length, width, features, features)
    return times * (total + 2 * channels * -(-model.token_dim // times))


def decoder_flops(config) -> int:
    """One token through the decoder."""
    model, width = config.model, config.model.decoder_width
    length, channels = SEED_LENGTH, model.decoder_seed_features
    total = 2 * model.token_dim * length * channels
    for features in model.decoder_features:
        total += conv_flops(length, 1, channels, features)  # the shortcut, before it is up-sampled
        length *= 2
        total += conv_flops(length, width, channels, features) + conv_flops(
            length, width, features, features
        )
        channels = features
    return (
        total
        + conv_flops(length, width, channels, channels)
        + conv_flops(length, 1, channels, num_axes(config))
    )


def flops_per_beat(config) -> dict[str, int]:
    """Forward pass of one beat through each module; a beat is decoded twice in training (own and
    predicted token), unless only own tokens are."""
    readout, moves = temporal_flops(config)
    return {
        "encoder": encoder_flops(config),
        "temporal": readout + moves,
        "decoder": decoder_flops(config),
    }


def temporal_flops(config) -> tuple[int, int]:
    """One linear map from state to token or back, and one move of the state: the three gates of
    every layer."""
    model = config.model
    d, h = model.token_dim, model.state_dim
    gates = 6 * h * (d + h) + (model.dynamics_layers - 1) * 12 * h * h
    return (2 * d * h if model.dynamics == "learned" else 0), (
        0 if model.dynamics == "none" else gates
    )


def model_flops(config, num_beats: np.ndarray) -> Mapping[str, int]:
    """A batch of records with these beat counts: the embedding's forward pass ('embed') and a
    training step ('train').

    Only valid beats count, stitching and refinement do not. The GRU starts from one linear map,
    reads out n tokens and moves n - 1 times, or n if it reads the encoder's; a piece of a beat
    before its start counts like a beat.
    """
    counts = np.asarray(num_beats).reshape(-1)
    beats, records = int(counts.sum()), int((counts > 0).sum())
    per_beat = flops_per_beat(config)
    readout, moves = temporal_flops(config)
    unmoved = moves if config.model.dynamics_input == "predicted" else 0
    forward = beats * (per_beat["encoder"] + per_beat["temporal"]) + records * (readout - unmoved)
    decoded = 1 if config.loss.ecg_source == config.loss.vcg_source == "encoded" else 2
    train = TRAIN_FACTOR * (forward + decoded * beats * per_beat["decoder"])
    if config.loss.lambda_view > 0:  # tokens of all leads, without a backward pass
        train += beats * per_beat["encoder"]
    return {"embed": forward, "train": train}
