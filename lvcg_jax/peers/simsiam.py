"""SimSiam (Chen & He, 2021): two views predict each other through one network; the side that is
predicted has no gradient, and that alone prevents collapse."""

import jax

from lvcg_jax.peers.contrast import cosine
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer


def mutual_prediction(predicted: jax.Array, projected: jax.Array) -> jax.Array:
    """Minus the cosine between the prediction of each view and the projection of the other
    [2b,d], which has no gradient; the mean over both, [b]."""
    p1, p2 = predicted.reshape(2, -1, predicted.shape[-1])
    z1, z2 = jax.lax.stop_gradient(projected).reshape(2, -1, projected.shape[-1])
    return -0.5 * (cosine(p1, z2) + cosine(p2, z1))


class SimSiam(ResNetPeer):
    def add_heads(self):
        c = self.choices
        self.projector = Head(c.projection, self.layers, last_norm=True)
        self.predictor = Head((c.predictor, c.projection[-1]), self.layers)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        inputs = self.two_views(records, keys)
        pooled = self.steps(inputs, train).mean(1)
        z = self.projector(pooled, inputs[1], train)
        loss = mutual_prediction(self.predictor(z, inputs[1], train), z)
        return {"loss": loss, "embedding": pooled[: len(loss)]}
