"""1-D convolution, each shape in the form that runs fastest. All forms are the same linear map of
the same kernel.

library   the library's convolution, for whatever no other form suits
product   one tap is a matrix product: its kernel gradient takes a third of the library's time
banded    sequences shorter than the kernel are multiplied by one banded matrix, without the taps
          that would only meet padding: on CPU the library is tens of times slower there
split     many channels on CPU: fewer matrix products than the convolution has taps, and additions

The split form is Karatsuba's trick on a Toeplitz matrix. With a sequence in two halves x0, x1,

    y0 = A x0 + B x1 = A (x0 + x1) + (B - A) x1
    y1 = C x0 + A x1 = A (x0 + x1) + (C - A) x0

takes three products of half the size instead of four, and each of them splits again: 27 instead of
44 products of taps and samples for seven taps over eight samples. Its rounding errors are two to
three times those of a plain sum, so it is for float32 only; accelerators, whose float32 products
may round to less, keep the other forms.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

BANDED_STRIDED_LENGTH = 8  # strided convolutions of at most this many samples take the banded form
SPLIT_CHANNELS = 192  # on both sides; with 128 the additions cost what the products save
SPLIT_LENGTHS = (4, 8)  # in blocks of 8 samples, 16 gained nothing


def conv1d(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """Zero-padded 1-D convolution, kernel [k,ci,co] with k odd: [m,p,ci] ->
    [m,ceil(p/stride),co]."""
    if kernel.shape[0] == 1:
        x = x[:, ::stride]
        return (x.reshape(-1, x.shape[-1]) @ kernel[0]).reshape(*x.shape[:2], -1)
    if _can_split(x, kernel, stride):
        return _by_platform(x, kernel, stride)
    return _any_conv1d(x, kernel, stride)


def _any_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """The form for shapes and devices that do not split."""
    length, width = x.shape[1], kernel.shape[0]
    if length < width or (stride > 1 and length <= BANDED_STRIDED_LENGTH):
        return _banded_conv1d(x, kernel, stride)
    return _library_conv1d(x, kernel, stride)


def _library_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    pad = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride,),
        padding=[(pad, pad)],
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


def _banded_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    out_length = -(-x.shape[1] // stride)
    # [p_in,p_out]
    tap = np.arange(x.shape[1])[:, None] - stride * np.arange(out_length) + kernel.shape[0] // 2
    return _multiply(x, kernel, tap)


def _multiply(x: jax.Array, kernel: jax.Array, tap: np.ndarray) -> jax.Array:
    """The product with a matrix made of taps: tap [p_in,p_out] says which tap leads from a sample
    to another."""
    m, length, ci = x.shape
    width, _, co = kernel.shape
    taps = jnp.concatenate([kernel, jnp.zeros((1, ci, co), kernel.dtype)])
    matrix = taps[np.where((tap >= 0) & (tap < width), tap, width)]  # [p_in,p_out,ci,co]
    matrix = matrix.transpose(0, 2, 1, 3).reshape(length * ci, tap.shape[1] * co)
    return (x.reshape(m, length * ci) @ matrix).reshape(m, tap.shape[1], co)


def _can_split(x: jax.Array, kernel: jax.Array, stride: int) -> bool:
    wide = min(kernel.shape[1:]) >= SPLIT_CHANNELS and x.dtype == jnp.float32
    return wide and x.shape[1] in SPLIT_LENGTHS and stride in (1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_platform(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """The split form on CPU. Of its own gradient only x and the kernel are kept, not the sums of
    halves."""
    forms = {
        "cpu": partial(_split_conv1d, stride=stride),
        "default": partial(_any_conv1d, stride=stride),
    }
    return jax.lax.platform_dependent(jax.lax.optimization_barrier(x), kernel, **forms)


def _forward(x: jax.Array, kernel: jax.Array, stride: int):
    return _by_platform(x, kernel, stride), (x, kernel)


def _backward(stride: int, kept, gradient: jax.Array):
    def of(form):
        return lambda x, kernel, gradient: jax.vjp(partial(form, stride=stride), x, kernel)[1](
            gradient
        )

    kept, gradient = jax.lax.optimization_barrier(
        (kept, gradient)
    )  # or sums of halves would be kept from the forward pass after all
    return jax.lax.platform_dependent(
        *kept, gradient, cpu=of(_split_conv1d), default=of(_any_conv1d)
    )


_by_platform.defvjp(_forward, _backward)


def _split_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    m, length, ci = x.shape
    reach = kernel.shape[0] // 2
    if stride == 2:  # even and odd samples, each with every second tap
        pairs, first = x.reshape(m, length // 2, 2, ci), reach % 2
        even = _toeplitz(pairs[:, :, 0], _centred(kernel[first::2], -(reach // 2), length // 2))
        return even + _toeplitz(
            pairs[:, :, 1], _centred(kernel[1 - first :: 2], -((reach + 1) // 2), length // 2)
        )
    return _toeplitz(x, _centred(kernel, -reach, length))


def _centred(taps: jax.Array, first: int, length: int) -> jax.Array:
    """Taps from offset `first` on -> those of all offsets between samples of a sequence, 1 - length
    ... length - 1."""
    before = first + length - 1
    after = 2 * length - 1 - before - len(taps)
    kept = taps[max(-before, 0) : len(taps) + min(after, 0)]
    return jnp.pad(kept, ((max(before, 0), max(after, 0)), (0, 0), (0, 0)))


def _toeplitz(x: jax.Array, taps: jax.Array) -> jax.Array:
    """y[n] = sum_d taps[d] x[n + d], x [m,p,ci] and taps [2p-1,ci,co] from d = 1 - p on: three
    halves for four."""
    length = x.shape[1]
    if length % 2:
        return _multiply(x, taps, np.arange(length)[:, None] - np.arange(length) + length - 1)
    half = length // 2
    x0, x1 = x[:, :half], x[:, half:]
    near, ahead, behind = taps[half:-half], taps[2 * half :], taps[: 2 * half - 1]
    both = _toeplitz(x0 + x1, near)
    return jnp.concatenate(
        [both + _toeplitz(x1, ahead - near), both + _toeplitz(x0, behind - near)], axis=1
    )
