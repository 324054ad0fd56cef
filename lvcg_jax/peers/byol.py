"""BYOL (Grill et al., 2020): a student predicts what its own moving average makes of another view;
there are no negatives."""

import jax

from lvcg_jax.peers.contrast import cosine
from lvcg_jax.peers.heads import Head, Teacher, apply_frozen
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer


def regression(predicted: jax.Array, target: jax.Array) -> jax.Array:
    """Squared distance of the unit vectors [v*b,d] of two views, each predicting the other's target
    [v*b,d], which has no gradient: the mean over both, [b]."""
    p1, p2 = predicted.reshape(2, -1, predicted.shape[-1])
    t1, t2 = jax.lax.stop_gradient(target).reshape(2, -1, target.shape[-1])
    return 2.0 - cosine(p1, t2) - cosine(p2, t1)


class TaughtPeer(ResNetPeer):
    """Student with projection and predictor, and a teacher that follows encoder and projection."""

    def add_heads(self):
        c = self.choices
        self.projector = Head(c.projection, self.layers)
        self.predictor = Head((c.predictor, c.projection[-1]), self.layers)
        self.teacher = Teacher(c.momentum)

    def student_and_teacher(
        self, records: Records, keys: jax.Array, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of two views: the student's pooled features [2b,d], its predictions and the teacher's
        projections [2b,.]."""
        inputs = self.two_views(records, keys)
        pooled = self.steps(inputs, train).mean(1)
        predicted = self.predictor(self.projector(pooled, inputs[1], train), inputs[1], train)
        student = {name: getattr(self, name).variables for name in ("encoder", "projector")}
        kept = self.teacher(student, train)
        features = apply_frozen(self.encoder, kept["encoder"], *inputs, train, False)
        target = apply_frozen(self.projector, kept["projector"], features.mean(1), inputs[1], train)
        return pooled, predicted, target


class BYOL(TaughtPeer):
    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        pooled, predicted, target = self.student_and_teacher(records, keys, train)
        loss = regression(predicted, target)
        return {"loss": loss, "embedding": pooled[: len(loss)]}
