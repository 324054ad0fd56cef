"""Linear x2 up-sampling with half-pixel centres and clamped edges, alone or together with the
convolution after it.

A convolution of up-sampled samples is a convolution of the samples themselves: output 2n and output
2n + 1 are two channels of one output n, each with its own taps. The up-sampled array, twice as long
and read by two passes more, is never made. Arrays are [m,p,c]: beats, samples, channels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from lvcg_jax.model.ops.conv1d import conv1d

NEAR, FAR = 0.75, 0.25  # an up-sampled value lies a quarter of the way to the next sample


def upsample2(x: jax.Array) -> jax.Array:
    """[m,p,c] -> [m,2p,c], in closed form."""
    before = jnp.concatenate([x[:, :1], x[:, :-1]], axis=1)
    after = jnp.concatenate([x[:, 1:], x[:, -1:]], axis=1)
    even, odd = FAR * before + NEAR * x, NEAR * x + FAR * after
    return jnp.stack([even, odd], axis=2).reshape(x.shape[0], 2 * x.shape[1], x.shape[2])


def upsampled_conv1d(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """conv1d(upsample2(x), kernel), kernel [k,ci,co] with k odd: [m,p,ci] -> [m,2p,co]."""
    m, length, ci = x.shape
    width, _, co = kernel.shape
    reach = width // 2
    inner = reach // 2 + 1  # samples on each side that an output pair depends on
    if length <= 2 * inner:  # no longer than its kernel: one matrix, edges and all
        matrix = _mix_taps(_routes(length, width), kernel).reshape(length * ci, 2 * length * co)
        return (x.reshape(m, -1) @ matrix).reshape(m, 2 * length, co)
    middle = inner + 1
    pairs = _routes(2 * middle + 1, width)[
        middle - inner : middle + inner + 1, 2 * middle : 2 * middle + 2
    ]
    pair_kernel = _mix_taps(pairs, kernel).reshape(2 * inner + 1, ci, 2 * co)
    y = conv1d(x, pair_kernel).reshape(m, 2 * length, co)
    # Beyond an edge that convolution sees zeros, and puts a quarter of the last sample on the wrong
    # side of it.
    none, rest = jnp.zeros_like(kernel[:1]), 2 * length - reach - 1
    start = FAR * jnp.diff(kernel[: reach + 1], axis=0, prepend=none)[::-1]
    end = FAR * jnp.diff(kernel[reach:][::-1], axis=0, prepend=none)
    y = y + jnp.pad(_spread(x[:, 0], start), ((0, 0), (0, rest), (0, 0)))
    return y + jnp.pad(_spread(x[:, -1], end), ((0, 0), (rest, 0), (0, 0)))


def _spread(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """One sample [m,ci] to the samples that the taps of a kernel [k,ci,co] take it to: [m,k,co]."""
    width, ci, co = kernel.shape
    return (x @ kernel.transpose(1, 0, 2).reshape(ci, width * co)).reshape(-1, width, co)


def _mix_taps(routes: np.ndarray, kernel: jax.Array) -> jax.Array:
    """Routes [p,q,k] through the taps of a kernel [k,ci,co] -> what leads from sample p to output
    q: [p,ci,q,co]."""
    mixed = jnp.einsum(
        "pqk,kio->piqo", routes, kernel.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST
    )
    return mixed.astype(kernel.dtype)


def _routes(length: int, width: int) -> np.ndarray:
    """[p,2p,k]: the share of each sample that reaches each output of the convolution through each
    tap."""
    upsampled = np.zeros((length, 2 * length), np.float32)
    for n in range(length):
        for other, at in ((max(n - 1, 0), 2 * n), (min(n + 1, length - 1), 2 * n + 1)):
            upsampled[n, at] += NEAR
            upsampled[other, at] += FAR
    padded = np.pad(upsampled, ((0, 0), (width // 2, width // 2)))
    return np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
