"""Linear classifiers for the probe: all classes at once, the setting chosen by validation macro
AUROC.

`fit_ridge` is L2-regularised logistic regression on standardised features over a path of strengths,
and over weights of the parts of an embedding; `fit_adam` is one linear layer trained by Adam with
early stopping. Both take features [m,d] and labels bool [m,c] of the training and validation rows,
and return a `Linear`, which scores rows [m,d] -> [m,c], and the chosen setting.

Why the L-BFGS path is ours and not scikit-learn's: it reaches the same AUROC at the same strength
in 3.2 instead of 18.5 CPU seconds, since all classes share the matrix products, each strength
starts from the one before, and the features are rotated to their principal axes first.

Features may be `Rows` that lie on disk (lvcg_jax/stats/blocks.py). `fit_ridge` then reads them a
block at a time, and keeps only the rotated ones, in a file of their own.

Axis letters: m row, d feature, k rotated feature, c class.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lvcg_jax.stats import auroc
from lvcg_jax.stats.blocks import blocks, room_for
from lvcg_jax.stats.layer import Linear
from lvcg_jax.stats.scaling import mean_and_scale

STRENGTHS = tuple(float(f"{x:.3g}") for x in np.logspace(2, -4, 13))  # L2 penalties, strong to weak
PART_WEIGHTS = (1.0, 0.3)  # of the features of a part: 0.3 is about tenfold the L2 penalty
# strengths to either side of the best one with equal weights that other weights are tried with
NEARBY = 2
ADAM = optax.adam(1e-3)
ADAM_SETTINGS = {
    "paper": {"standardise": True, "random_start": False, "epochs": 200},
    "release": {"standardise": False, "random_start": True, "epochs": 50},
}


def _softplus_sigmoid(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(1 + exp(f)) and 1 / (1 + exp(-f)), safe for large |f|."""
    e = np.exp(-np.abs(f))
    return np.maximum(f, 0) + np.log1p(e), np.where(f >= 0, 1, e) / (1 + e)


@np.errstate(invalid="ignore")  # products of small matrices may flag memory beyond their end
def _ridge_solve(z, y, variance, strength, w, most_steps=100):
    """L2-logistic weights float32 [k,c] for one strength, started from w.

    z [m,k] has uncorrelated columns of the given variance and a last column of ones (not
    penalised), so the Hessian is nearly diagonal and L-BFGS preconditioned by it needs few steps.
    Each class has its own steps and leaves when it is done. Numpy, since compiling this for the
    many shapes of a probe would take longer than running it.
    """
    solved, classes = w.copy(), np.arange(w.shape[1])
    row_weight = np.full(len(z), 1 / len(z), np.float32)
    penalty = np.full((z.shape[1], 1), strength, np.float32)
    penalty[-1] = 0.0

    def loss(w, f):
        softplus, p = _softplus_sigmoid(f)
        return row_weight @ (softplus - y * f) + 0.5 * (penalty * w * w).sum(0), p

    def gradient(w, p):
        return z.T @ (row_weight[:, None] * (p - y)) + penalty * w

    f = z @ w
    value, p = loss(w, f)
    # [k,c]
    inverse = 1.0 / (variance[:, None] * np.maximum(row_weight @ (p * (1 - p)), 1e-4) + penalty)
    g, past = gradient(w, p), []  # past: the last six (step, change of gradient, 1 / their product)
    for _ in range(most_steps):
        # the direction q, by L-BFGS's two loops over the last steps
        q, alphas = g, []
        for step, change, rho in reversed(past):
            alphas.append(rho * (step * q).sum(0))
            q = q - alphas[-1] * change
        q = q * inverse
        if past:
            curvature = (past[-1][1] * inverse * past[-1][1]).sum(0) * past[-1][2]
            q = q / np.where(curvature > 0, curvature, 1)
        for (step, change, rho), alpha in zip(past, reversed(alphas), strict=True):
            q = q + (alpha - rho * (change * q).sum(0)) * step
        # a step of half the length, again and again, until every class has come down enough
        slope, df, t = -(g * q).sum(0), -(z @ q), np.ones_like(value)
        for _ in range(13):
            new_w, new_f = w - t * q, f + t * df
            new_value, p = loss(new_w, new_f)
            failed = new_value > value + 1e-4 * t * slope + 1e-6 * value
            if not failed.any():
                break
            t = np.where(failed, 0.5 * t, t)
        new_g = gradient(new_w, p)
        solved[:, classes[~failed]] = new_w[:, ~failed]
        product = ((new_w - w) * (new_g - g)).sum(0)
        rho = np.where(product > 1e-12, 1 / np.maximum(product, 1e-12), 0)
        past = [*past[-5:], (new_w - w, new_g - g, rho)]
        w, f, value, g = new_w, new_f, new_value, new_g
        # classes whose gradient is small enough leave
        stays = ~failed & ((g * inverse * g).sum(0) > 1e-5 * value)
        if not stays.any():
            break
        if not stays.all():
            past = [tuple(a[..., stays] for a in entry) for entry in past]
            w, f, value, g, y, inverse, classes = (
                a[..., stays] for a in (w, f, value, g, y, inverse, classes)
            )
    return solved


def part_weights(parts: Sequence[int]) -> list[np.ndarray]:
    """Weights [d] to try for features that come in parts of these sizes, equal ones first."""
    tried = [
        weights
        for weights in itertools.product(PART_WEIGHTS, repeat=len(parts))
        if max(weights) == 1.0
    ]
    return [np.repeat(np.float32(weights), list(parts)) for weights in tried]


def fit_ridge(x, y, x_val, y_val, seed, strengths, parts=None):
    """(linear layer, chosen strength).

    Features in `parts` of these sizes may be given weights by validation too: where positives are
    few, a large part that says little about the task drowns the others.
    """
    shift, scale = mean_and_scale(x)
    standard = lambda a: ((a - shift) / scale).astype(np.float32)  # noqa: E731
    x_val = standard(np.asarray(x_val))
    if isinstance(x, np.ndarray):  # in memory already: once for all weights
        x = standard(x)
        standard = lambda a: a  # noqa: E731
    tried, best = sorted(strengths, reverse=True), (-1.0, None, None)
    for number, weight in enumerate(part_weights(parts or [x.shape[1]])):
        weighted = lambda a, weight=weight: standard(a) * weight  # noqa: E731
        value, w, bias, strength = _ridge_path(x, weighted, y, x_val * weight, y_val, tried)
        if value > best[0]:
            best = (value, Linear(weight[:, None] * w, bias, shift, scale), strength)
        if number == 0:
            place = tried.index(strength)
            tried = tried[max(place - NEARBY, 0) : place + NEARBY + 1]
    return best[1:]


def _ridge_path(x, weighted, y, x_val, y_val, strengths, patience=3):
    """(validation macro AUROC, weights [d,c], bias [c], strength) of the best of the strengths,
    strong to weak; `weighted` is applied to each block of x first.

    Each started from the one before, in the principal axes of the training rows; stops after
    `patience` strengths that do not improve validation.
    """
    # principal axes, from whichever of the two products is smaller
    m, d = x.shape
    if m >= d:
        products = ((a.T @ a / m).astype(np.float64) for a in map(weighted, blocks(x)))
        variance, basis = np.linalg.eigh(sum(products))
    else:
        x = weighted(np.asarray(x))
        weighted = lambda a: a  # noqa: E731
        variance, left = np.linalg.eigh((x @ x.T / m).astype(np.float64))
        kept = variance > 1e-7 * max(variance[-1], 1e-30)
        variance, basis = variance[kept], x.T @ left[:, kept] / np.sqrt(m * variance[kept])
    basis = basis.astype(np.float32)
    z, first = np.asarray(room_for(m, basis.shape[1] + 1)), 0
    z[:, -1] = 1
    for some in blocks(x):
        z[first : first + len(some), :-1] = weighted(some) @ basis
        first += len(some)
    z_val = x_val @ basis
    variance = np.append(np.maximum(variance, 0), 1).astype(np.float32)
    # start at the share of positives, then follow the path
    target, share = y.astype(np.float32), y.mean(0, dtype=np.float64)
    w = np.zeros((z.shape[1], y.shape[1]), np.float32)
    w[-1] = np.log(share / (1 - share))
    best, kept, since = -1.0, None, 0
    for strength in strengths:
        w = _ridge_solve(z, target, variance, strength, w)
        value = auroc.macro_auroc(y_val, z_val @ w[:-1] + w[-1])[0]
        if value > best:
            best, kept, since = value, (w, strength), 0
        elif (since := since + 1) >= patience:
            break
    w, strength = kept
    return best, basis @ w[:-1], w[-1], strength


@jax.jit
def _adam_epoch(params, state, x, y, order, row_weight):
    """One pass over batches of row numbers `order` [batches,256]; rows of weight 0 fill the last
    batch."""

    def loss(params, rows, weight):
        losses = optax.sigmoid_binary_cross_entropy(x[rows] @ params[0] + params[1], y[rows]).mean(
            -1
        )
        return (weight * losses).sum() / weight.sum()

    def step(carry, batch):
        updates, state = ADAM.update(jax.grad(loss)(carry[0], *batch), carry[1])
        return (optax.apply_updates(carry[0], updates), state), None

    return jax.lax.scan(step, (params, state), (order, row_weight))[0]


def fit_adam(x, y, x_val, y_val, seed, standardise, random_start, epochs, batch=256, patience=5):
    """(linear layer, epoch whose weights were kept), after at most `epochs`.

    The layer starts at zero, or uniform within 1 / sqrt(d) of it (PyTorch's default).
    """
    x, x_val = np.asarray(x), np.asarray(x_val)
    (m, d), rng = x.shape, np.random.default_rng(seed)
    shift, scale = (
        mean_and_scale(x) if standardise else (np.zeros(d, np.float32), np.ones(d, np.float32))
    )
    x, x_val = ((a - shift) / scale for a in (x, x_val))
    pad = _bucket(m) - m  # so that few shapes are compiled
    x, y = (np.pad(a.astype(np.float32), ((0, pad), (0, 0))) for a in (x, y))
    start = np.zeros((d + 1, y.shape[1]), np.float32)
    if random_start:
        start += rng.uniform(-1, 1, start.shape) / np.sqrt(d)
    params = (jnp.asarray(start[:d]), jnp.asarray(start[d]))
    state, best, kept, kept_epoch = ADAM.init(params), -1.0, None, 0
    row_weight = (np.arange(-(-m // batch) * batch) < m).astype(np.float32).reshape(-1, batch)
    for epoch in range(1, epochs + 1):
        order = np.resize(rng.permutation(m), row_weight.shape)
        params, state = _adam_epoch(params, state, x, y, order, row_weight)
        weights, bias = (np.asarray(p, np.float64) for p in params)
        value = auroc.macro_auroc(y_val, x_val @ weights + bias)[0]
        if value > best:
            best, kept, kept_epoch = value, (weights, bias), epoch
        elif epoch - kept_epoch >= patience:
            break
    return Linear(*kept, shift, scale), kept_epoch


def _bucket(n: int) -> int:
    """n rounded up to one of few sizes, at most an eighth larger."""
    unit = max(16, 2 ** (int(n).bit_length() - 4))
    return -(-n // unit) * unit
