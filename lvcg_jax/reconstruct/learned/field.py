"""LVCG on a field of the whole beat: a closed form lifts the visible leads, a network adds what the
closed form leaves over.

The dipole has three modes, each a direction in lead space that is constant in time. The field has
some hundred modes over all leads and samples of a beat, the leading ones of the training records'
covariance (gaussian_beat.py). The same four parts as in the paper, in this larger space:

    lift       coordinates of the beat in the modes, from its visible samples, as most likely under
               the Gaussian; what the record's beats share and how this one differs, each apart
    encode     a token of the beat, from both, the visible leads' sizes and the R-R interval
    decode     what these coordinates lack
    project    coordinates -> all leads; III = II - I holds as well as it does in the modes

The skip around the token makes the closed form the starting point, which training can only improve.
A second read-out of the token says how large the error will be, by lead and sixteenth of the beat;
it does not shape the token. Axis letters: b beat, l lead, p sample, k mode, d width of the token.
"""

from collections.abc import Iterable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import eigh

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.model.masking import masked_mean
from lvcg_jax.reconstruct.gaussian_beat import Gaussian, GaussianBeat
from lvcg_jax.reconstruct.learned.network import LeadNetwork, hidden_error
from lvcg_jax.reconstruct.stretching import lead_products

BINS = 16  # parts of a beat whose errors are told apart
SPREAD = 0.1  # weight of the second read-out's loss, which shares no weights with the first


class Field(LeadNetwork):
    modes: int = 384
    width: int = 1024
    layers: int = 3
    basis: str = "field"  # or 'dipole': three directions at each sample
    skip: bool = True  # around the token
    context: bool = True  # the record's other beats, through their mean

    rows = 1024

    def setup(self):
        self.first = nn.Dense(self.width)
        self.hidden = [nn.Dense(self.width) for _ in range(self.layers)]
        small = nn.initializers.variance_scaling(1e-4, "fan_in", "normal")
        self.last = nn.Dense(self.modes, kernel_init=small)
        self.bins = nn.Dense(len(LEADS) * BINS, kernel_init=nn.initializers.zeros)

    @nn.nowrap
    def learn(self, windows: Iterable[dict]) -> dict[str, np.ndarray]:
        method = GaussianBeat()
        method.fit(windows)
        return self.in_modes({name: method.gaussians.parts[name] for name in ("common", "change")})

    @nn.nowrap
    def in_modes(self, parts: dict[str, Gaussian]) -> dict[str, np.ndarray]:
        """The modes [l*p,k], and what the Gaussians of the common beat and of the changes say in
        their coordinates."""
        if not self.context:
            covariances, noises = zip(*parts.values(), strict=True)
            parts = {"change": Gaussian(sum(covariances), sum(noises))}
        total = sum(part.covariance for part in parts.values())
        modes = self._modes(total)
        learned = {
            "modes": modes.astype(np.float32),
            "products": lead_products(total, len(LEADS)).astype(np.float32),
        }
        for name, (covariance, noise) in parts.items():
            within = modes.T @ covariance @ modes
            lost = (np.trace(covariance) - np.trace(within)) / len(covariance)
            # the noise in units of the prior, so that the lift needs one matrix
            learned[name] = ((noise + lost) * np.linalg.inv(within)).astype(np.float32)
            learned["sizes"] = learned.get("sizes", 0.0) + np.diag(within)
        learned["sizes"] = np.sqrt(learned["sizes"]).astype(np.float32)
        return learned

    @nn.nowrap
    def _modes(self, covariance: np.ndarray) -> np.ndarray:
        """Orthonormal columns [l*p,k], the largest first."""
        last = len(covariance) - 1
        if self.basis == "field":
            _, modes = eigh(covariance, subset_by_index=(last + 1 - self.modes, last))
            return modes[:, ::-1]
        directions = np.linalg.qr(lead_matrix("paper"))[0]  # [l,3]
        return np.kron(directions, np.eye(len(covariance) // len(LEADS)))[:, : self.modes]

    @nn.nowrap
    def prepare(self, learned: dict[str, np.ndarray], visible: np.ndarray) -> dict:
        """What lifts projections of the visible samples to coordinates, [k,k] for each part."""
        modes = learned["modes"]
        seen = modes.reshape(len(LEADS), -1, modes.shape[-1])[visible].reshape(-1, modes.shape[-1])
        gram = (seen.T @ seen).astype(np.float64)
        lifts = {
            f"lift_{name}": np.linalg.inv(gram + learned[name]).astype(np.float32)
            for name in ("common", "change")
            if name in learned
        }
        return {"modes": modes, "sizes": learned["sizes"]} | lifts

    def __call__(self, shown: dict) -> jax.Array:
        return self.decode(*self.encode(shown), shown)

    def loss(self, shown: dict, truth: dict) -> jax.Array:
        """The error of the hidden leads, and how unlikely its size is under the second
        read-out."""
        token, lifted = self.encode(shown)
        derived = self.decode(token, lifted, shown)
        power = jax.lax.stop_gradient(_in_bins((derived - truth["x"]) ** 2)) + 1e-6
        spread = self.log_power(jax.lax.stop_gradient(token))
        unlikely = (spread + power * jnp.exp(-spread)).mean(-1)
        return hidden_error(derived, truth) + SPREAD * masked_mean(unlikely, truth["counted"])

    def encode(self, shown: dict) -> tuple[jax.Array, jax.Array]:
        """The token [b,d] and the lifted coordinates [b,k]."""
        b = len(shown["x"])
        project = lambda x: x.reshape(b, -1) @ shown["modes"]  # noqa: E731
        if self.context:
            parts = [
                project(shown["mean"]) @ shown["lift_common"],
                project(shown["x"] - shown["mean"]) @ shown["lift_change"],
            ]
        else:
            parts = [project(shown["x"]) @ shown["lift_change"]]
        inputs = [part / shown["sizes"] for part in parts]
        known = [shown["visible"], shown["size"], shown["length"][:, None]]
        token = nn.gelu(self.first(jnp.concatenate([*inputs, *known], -1)))
        for layer in self.hidden:
            token = token + nn.gelu(layer(token))
        return token, sum(parts)

    def decode(self, token: jax.Array, lifted: jax.Array, shown: dict) -> jax.Array:
        """All leads [b,l,p] of a token."""
        coordinates = self.last(token) * shown["sizes"]
        if self.skip:
            coordinates = coordinates + lifted
        return (coordinates @ shown["modes"].T).reshape(shown["x"].shape)

    def log_power(self, token: jax.Array) -> jax.Array:
        """The logarithm of the expected squared error, [b,l,BINS]."""
        return self.bins(token).reshape(len(token), len(LEADS), BINS)

    def spread(self, shown: dict) -> tuple[jax.Array, jax.Array]:
        """The expected size of the error of each sample, [b,l,p], between the middles of the parts
        of the beat on straight lines of its logarithm; and the token [b,d]."""
        token, _ = self.encode(shown)
        size = jax.image.resize(0.5 * self.log_power(token), shown["x"].shape, "linear")
        return jnp.exp(size), token


def _in_bins(x: jax.Array) -> jax.Array:
    """Means [b,l,BINS] of samples [b,l,p]."""
    return x.reshape(*x.shape[:-1], BINS, -1).mean(-1)
