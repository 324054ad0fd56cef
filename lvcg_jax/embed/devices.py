"""Batches of windows through a model, one on each device of this process.

A device computes its batch as it would alone, so that the result does not depend on how many there
are. Several processes each embed windows of their own (see parts.py).

Axis letters: g group, one for each device, r record, n beat, d feature.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lvcg_jax.data.packing import Batch, read_ahead
from lvcg_jax.model.network import Network
from lvcg_jax.peers.peer import Peer


def embed_batches(
    model: Network | Peer,
    max_beats: int,
    variables,
    batches: Iterable[tuple[list[dict], Batch]],
    wanted: Sequence[str],
) -> Iterator[tuple[list[dict], dict[str, np.ndarray]]]:
    """The windows of each EMBED_BATCH of one group (see packing.py), and what is wanted of the
    model's answer: parts [r,.], 'tokens' [r,n,d], their 'mask' [r,n]. The next batches are read
    meanwhile."""
    devices = jax.local_devices()
    mesh, spread = Mesh(np.array(devices), ("data",)), None
    for several in read_ahead(_in_groups(iter(batches), len(devices))):
        if len(several) == 1:
            batch = dict(several[0][1])
            found = embed_packed(model, max_beats, variables, batch, batch.pop("visible"))
        else:
            if spread is None:
                spread = jax.device_put(variables, NamedSharding(mesh, P()))
            batch = _joined([batch for _, batch in several], len(devices))
            found = embed_spread(model, max_beats, mesh, spread, batch, batch.pop("visible"))
        found = jax.device_get({name: found[name] for name in wanted})
        for group, (windows, _) in enumerate(several):
            yield windows, {name: x[group] for name, x in found.items()}


def _in_groups(items: Iterator, count: int) -> Iterator[list]:
    while several := list(itertools.islice(items, count)):
        yield several


def _joined(batches: list[Batch], count: int) -> Batch:
    """Batches of one group each as one of `count` groups; the last ones may be empty."""
    absent = [jax.tree.map(np.zeros_like, batches[0])] * (count - len(batches))
    return jax.tree.map(lambda *several: np.concatenate(several), *batches, *absent)


@partial(jax.jit, static_argnums=(0, 1))
def embed_packed(model: Network | Peer, max_beats: int, variables, batch, visible):
    """The parts, the tokens and their mask; compiled once per process, model and shape of batch."""
    return model.apply(variables, batch, visible, max_beats, method="embed")


@partial(jax.jit, static_argnums=(0, 1, 2))
def embed_spread(model: Network | Peer, max_beats: int, mesh: Mesh, variables, batch, visible):
    """The same for a batch with a group for each device; nothing is sent between them."""
    return jax.shard_map(
        lambda *arrays: model.apply(*arrays, max_beats, method="embed"),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data")),
        out_specs=P("data"),
        check_vma=False,
    )(variables, batch, visible)
