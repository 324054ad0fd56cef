"""Linear classifiers for the probe: all classes at once, the setting chosen by validation macro AUROC.

`fit_ridge` is L2-regularised logistic regression on standardised features over a path of strengths; `fit_paper` is one
linear layer trained by Adam with early stopping. Both take features [m,d] and labels bool [m,c] of the training and
validation rows, and return a score function [m,d] -> [m,c] and the chosen setting.

Axis letters: m row, d feature, k rotated feature, c class.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lvcg_jax import metrics

STRENGTHS = tuple(float(f"{x:.3g}") for x in np.logspace(2, -4, 13))  # L2 penalties, strong to weak
ADAM, EPOCHS = optax.adam(1e-3), 50


@jax.jit
def _ridge_solve(z, y, row_weight, variance, strength, w):
    """L2-logistic weights [k,c] for one strength, started from w; also the steps taken.

    z [m,k] has uncorrelated columns of the given variance and a last column of ones (not penalised), so the Hessian is
    nearly diagonal and L-BFGS preconditioned by it needs few steps. Each class has its own steps and stops on its own.
    """
    penalty = strength * jnp.ones((z.shape[1], 1)).at[-1].set(0.0)

    def mean(a):
        return jnp.einsum("m,mc->c", row_weight, a)

    def multiply(a, b):
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def loss(w, f):
        return mean(jax.nn.softplus(f) - y * f) + 0.5 * (penalty * w * w).sum(0)

    def gradient(w, f):
        return multiply((row_weight[:, None] * (jax.nn.sigmoid(f) - y)).T, z).T + penalty * w

    def step(state):
        i, w, f, value, g, steps, changes, rho, running = state
        q, alphas = g, []
        for j in reversed(range(len(steps))):
            alphas.append(rho[j] * (steps[j] * q).sum(0))
            q = q - alphas[-1] * changes[j]
        curvature = (changes[-1] * inverse * changes[-1]).sum(0) * rho[-1]
        q = q * inverse / jnp.where(curvature > 0, curvature, 1.0)
        for j, alpha in enumerate(reversed(alphas)):
            q = q + (alpha - rho[j] * (changes[j] * q).sum(0)) * steps[j]
        direction = jnp.where(running, -q, 0.0)
        slope, df = (g * direction).sum(0), multiply(z, direction)

        def try_length(t):
            tried = loss(w + t * direction, f + t * df)
            return tried, tried > value + 1e-4 * t * slope + 1e-6 * value

        def halve(s):
            t = jnp.where(s[1], 0.5 * s[0], s[0])
            tried, failed = try_length(t)
            return t, failed, tried, s[3] + 1

        t = jnp.ones_like(value)
        tried, failed = try_length(t)
        t, failed, tried, _ = jax.lax.while_loop(lambda s: s[1].any() & (s[3] < 12), halve, (t, failed, tried, 0))
        t, value = jnp.where(failed, 0.0, t), jnp.where(failed, value, tried)
        new_w, new_f = w + t * direction, f + t * df
        new_g = gradient(new_w, new_f)
        product = ((new_w - w) * (new_g - g)).sum(0)
        steps = jnp.concatenate([steps[1:], (new_w - w)[None]])
        changes = jnp.concatenate([changes[1:], (new_g - g)[None]])
        rho = jnp.concatenate([rho[1:], jnp.where(product > 1e-12, 1.0 / jnp.maximum(product, 1e-12), 0.0)[None]])
        running = running & ~failed & ((new_g * inverse * new_g).sum(0) > 1e-5 * value)
        return i + 1, new_w, new_f, value, new_g, steps, changes, rho, running

    f = multiply(z, w)
    p = jax.nn.sigmoid(f)
    inverse = 1.0 / (variance[:, None] * jnp.maximum(mean(p * (1 - p)), 1e-4) + penalty)  # [k,c]
    history = jnp.zeros((6, *w.shape))
    first = (0, w, f, loss(w, f), gradient(w, f), history, history, history[:, 0], jnp.ones(y.shape[1], bool))
    steps, w, *_ = jax.lax.while_loop(lambda s: s[-1].any() & (s[0] < 100), step, first)
    return w, steps


def fit_ridge(x, y, x_val, y_val, seed, strengths, patience=3):
    """(score function, chosen strength), from strong to weak, each started from the one before.

    Solved in the principal axes of the training rows; stops after `patience` strengths that do not improve validation.
    """
    shift, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 1e-6 * (np.abs(x).max(0) + 1e-30), scale, np.inf)  # a constant feature says nothing
    x, x_val = (((a - shift) / scale).astype(np.float32) for a in (x, x_val))
    m, d = x.shape
    if m >= d:
        variance, basis = np.linalg.eigh((x.T @ x / m).astype(np.float64))
    else:
        variance, left = np.linalg.eigh((x @ x.T / m).astype(np.float64))
        kept = variance > 1e-7 * max(variance[-1], 1e-30)
        variance, basis = variance[kept], x.T @ left[:, kept] / np.sqrt(m * variance[kept])
    k = len(variance)
    z = np.zeros((_bucket(m), _bucket(k) + 1), np.float32)  # padded so that few shapes are compiled
    z[:m, :k], z[:m, -1] = x @ basis.astype(np.float32), 1.0
    target = np.zeros((len(z), y.shape[1]), np.float32)
    target[:m] = y
    variance = np.concatenate([np.maximum(variance, 0), np.zeros(z.shape[1] - 1 - k), [1.0]]).astype(np.float32)
    row_weight = (np.arange(len(z)) < m).astype(np.float32) / m
    data = [jnp.asarray(a) for a in (z, target, row_weight, variance)]
    w = jnp.zeros((z.shape[1], y.shape[1])).at[-1].set(jax.scipy.special.logit(y.mean(0, dtype=np.float32)))
    best, kept, since = -1.0, None, 0
    for strength in sorted(strengths, reverse=True):
        w, _ = _ridge_solve(*data, np.float32(strength), w)
        solved = np.asarray(w)
        weights, bias = basis @ solved[:k], solved[-1]
        value = metrics.macro_auroc(y_val, x_val @ weights + bias)[0]
        if value > best:
            best, kept, since = value, (weights, bias, strength), 0
        elif (since := since + 1) >= patience:
            break
    return lambda a: (a - shift) / scale @ kept[0] + kept[1], kept[2]


@jax.jit
def _adam_epoch(params, state, x, y, order, row_weight):
    """One pass over batches of row numbers `order` [batches,256]; rows of weight 0 fill the last batch."""

    def loss(params, rows, weight):
        losses = optax.sigmoid_binary_cross_entropy(x[rows] @ params[0] + params[1], y[rows]).mean(-1)
        return (weight * losses).sum() / weight.sum()

    def step(carry, batch):
        updates, state = ADAM.update(jax.grad(loss)(carry[0], *batch), carry[1])
        return (optax.apply_updates(carry[0], updates), state), None

    return jax.lax.scan(step, (params, state), (order, row_weight))[0]


def fit_paper(x, y, x_val, y_val, seed, strengths, batch=256, patience=5):
    """(score function, epoch whose weights were kept)."""
    m, rng = len(x), np.random.default_rng(seed)
    pad = _bucket(m) - m
    x, y = (np.pad(a.astype(np.float32), ((0, pad), (0, 0))) for a in (x, y))
    params = (jnp.zeros((x.shape[1], y.shape[1])), jnp.zeros(y.shape[1]))
    state, best, kept, kept_epoch = ADAM.init(params), -1.0, None, 0
    batches = -(-len(x) // batch)
    row_weight = (np.arange(batches * batch) < m).astype(np.float32).reshape(batches, batch)
    row_weight = row_weight[: -(-m // batch)]
    for epoch in range(1, EPOCHS + 1):
        order = np.resize(rng.permutation(m), row_weight.shape)
        params, state = _adam_epoch(params, state, x, y, order, row_weight)
        weights, bias = (np.asarray(p, np.float64) for p in params)
        value = metrics.macro_auroc(y_val, x_val @ weights + bias)[0]
        if value > best:
            best, kept, kept_epoch = value, (weights, bias), epoch
        elif epoch - kept_epoch >= patience:
            break
    return lambda a: a @ kept[0] + kept[1], kept_epoch


def _bucket(n: int) -> int:
    """n rounded up to one of few sizes, at most an eighth larger."""
    unit = max(16, 2 ** (int(n).bit_length() - 4))
    return -(-n // unit) * unit
