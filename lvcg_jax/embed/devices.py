"""Batches of windows through a model, one on each device of this process.

A device computes its batch as it would alone, so that the result does not depend on how many there
are. Several processes each embed windows of their own (see parts.py).

Axis letters: g group, one for each device, m row, r record, n beat, d feature.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lvcg_jax.data.packing import Batch, pack, read_ahead
from lvcg_jax.model.network import Network
from lvcg_jax.peers.peer import Peer


def embed_pieces(
    model: Network | Peer,
    max_beats: int,
    variables,
    pieces: Iterable[Iterable[dict]],
    shape: tuple[int, int, int],
    sizes: Mapping[str, int],
) -> Iterator[tuple[list[dict], dict[str, np.ndarray]]]:
    """What the model makes of each of many lists of windows: the windows without their samples, and
    its parts [m,.] by name, also 'tokens' [sum of n,d] if `sizes`, of what is wanted, has them.

    Batches of this `shape` (slots, rows, samples of a signal) are filled with windows of one list
    each. All go through one pipeline, in which the next ones are read while some are computed.
    """
    begun = 0  # lists that have been looked at

    def batches() -> Iterator[tuple[int, list[dict], Batch]]:
        nonlocal begun
        for number, windows in enumerate(pieces):
            begun = number + 1
            for some, batch in pack(windows, *shape):
                yield number, some, batch

    wanted = [*sizes, *(["mask"] if "tokens" in sizes else [])]
    number, kept, outputs = 0, [], []
    for piece, some, result in _embed_batches(model, max_beats, variables, batches(), wanted):
        while number < piece:
            yield kept, _concatenated(outputs, sizes)
            number, kept, outputs = number + 1, [], []
        kept += some
        if "tokens" in sizes:
            result["tokens"] = result["tokens"][result["mask"]]
        rows = {name: slice(None) if name == "tokens" else slice(len(some)) for name in sizes}
        # copies: what the model answered is then free
        outputs.append({name: result[name][rows[name]].copy() for name in sizes})
    while number < begun:
        yield kept, _concatenated(outputs, sizes)
        number, kept, outputs = number + 1, [], []


def _concatenated(outputs: list[dict], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([np.zeros((0, size), np.float32), *(some[name] for some in outputs)])
        for name, size in sizes.items()
    }


def _embed_batches(
    model: Network | Peer,
    max_beats: int,
    variables,
    batches: Iterator[tuple[int, list[dict], Batch]],
    wanted: Sequence[str],
) -> Iterator[tuple[int, list[dict], dict[str, np.ndarray]]]:
    """Numbered windows of each EMBED_BATCH of one group (see packing.py), and what is wanted of the
    model's answer: parts [r,.], 'tokens' [r,n,d], their 'mask' [r,n]."""
    devices = jax.local_devices()
    mesh, spread = Mesh(np.array(devices), ("data",)), None
    for several in read_ahead(_in_groups(batches, len(devices))):
        if len(several) == 1:
            batch = dict(several[0][-1])
            found = embed_packed(model, max_beats, variables, batch, batch.pop("visible"))
        else:
            if spread is None:
                spread = jax.device_put(variables, NamedSharding(mesh, P()))
            batch = _joined([batch for *_, batch in several], len(devices))
            found = embed_spread(model, max_beats, mesh, spread, batch, batch.pop("visible"))
        found = jax.device_get({name: found[name] for name in wanted})
        for group, (number, windows, _) in enumerate(several):
            yield number, windows, {name: x[group] for name, x in found.items()}


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
