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

upsample2 is linear x2 up-sampling with half-pixel centres and clamped edges. A convolution of
up-sampled samples is a convolution of the samples themselves: output 2n and output 2n + 1 are two
channels of one output n, each with its own taps. So upsampled_conv1d never makes the up-sampled
array, twice as long and read by two passes more. Arrays are [m,p,c]: beats, samples, channels.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

BANDED_STRIDED_LENGTH = 8  # strided convolutions of at most this many samples take the banded form
SPLIT_CHANNELS = 192  # on both sides; with 128 the additions cost what the products save
# Of fewer beats it saves nothing, and it takes the compiler twice as long: a single record, say.
SPLIT_BEATS = 256
SPLIT_LENGTHS = (4, 8)  # in blocks of 8 samples, 16 gained nothing
NEAR, FAR = 0.75, 0.25  # an up-sampled value lies a quarter of the way to the next sample


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


def _matrix_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    out_length = -(-x.shape[1] // stride)
    # [p_in,p_out]
    tap = np.arange(x.shape[1])[:, None] - stride * np.arange(out_length) + kernel.shape[0] // 2
    return _multiply(x, kernel, tap)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _banded_conv1d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """On accelerators the kernel's gradient is that of its taps, not of the matrix that they make:
    devices then sum as many numbers as the kernel has."""
    return _matrix_conv1d(x, kernel, stride)


def _banded_forward(x: jax.Array, kernel: jax.Array, stride: int):
    return _matrix_conv1d(x, kernel, stride), (x, kernel)


def _banded_backward(stride: int, kept, gradient: jax.Array):
    def of_matrix(x, kernel, gradient):
        return jax.vjp(partial(_matrix_conv1d, stride=stride), x, kernel)[1](gradient)

    def of_taps(x, kernel, gradient):
        of_x, _ = of_matrix(x, kernel, gradient)
        return of_x, _gradient_of_taps(x, gradient, kernel.shape[0], stride)

    return jax.lax.platform_dependent(*kept, gradient, cpu=of_matrix, default=of_taps)


_banded_conv1d.defvjp(_banded_forward, _banded_backward)


def _gradient_of_taps(x: jax.Array, gradient: jax.Array, width: int, stride: int) -> jax.Array:
    """[k,ci,co] from x [m,p,ci] and the gradient [m,q,co] of its convolution."""
    taps, reach = [], width // 2
    for first in range(-reach, reach + 1):  # the sample that a tap meets at output 0
        met = first + stride * np.arange(gradient.shape[1])
        outputs = np.flatnonzero((met >= 0) & (met < x.shape[1]))
        start, count = (outputs[0], len(outputs)) if len(outputs) else (0, 0)
        samples = x[:, met[start] :: stride][:, :count] if count else x[:, :0]
        taps.append(jnp.einsum("mpi,mpo->io", samples, gradient[:, start : start + count]))
    return jnp.stack(taps)


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
    many = not isinstance(x.shape[0], int) or x.shape[0] >= SPLIT_BEATS  # or a symbol, in exports
    return wide and many and x.shape[1] in SPLIT_LENGTHS and stride in (1, 2)


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
