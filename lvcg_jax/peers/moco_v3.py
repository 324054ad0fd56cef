"""MoCo v3 (Chen, Xie, He, 2021): queries of a student find the key of their own record, made from
another view by a moving average of the student, among the keys of the batch."""

import jax

from lvcg_jax.peers.byol import TaughtPeer
from lvcg_jax.peers.contrast import own_partner
from lvcg_jax.peers.peer import Records, Terms


def momentum_contrast(
    queries: jax.Array, keys: jax.Array, valid: jax.Array, temperature: float
) -> jax.Array:
    """InfoNCE of the queries of each view among the keys of the other [2b,d], the sum of both times
    twice the temperature, [b]. Keys have no gradient."""
    q1, q2 = queries.reshape(2, len(valid), -1)
    k1, k2 = jax.lax.stop_gradient(keys).reshape(2, len(valid), -1)
    both = own_partner(q1, k2, valid, temperature) + own_partner(q2, k1, valid, temperature)
    return 2.0 * temperature * both


class MoCoV3(TaughtPeer):
    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        pooled, queries, targets = self.student_and_teacher(records, keys, train)
        loss = momentum_contrast(queries, targets, records.valid, self.choices.temperature)
        return {"loss": loss, "embedding": pooled[: len(loss)]}
