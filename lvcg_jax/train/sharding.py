"""Where arrays live: a mesh of (data, model) devices, batches split over data, parameters
replicated or spread."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from data_prep.base.errors import InputError


def make_mesh(config) -> Mesh:
    """All devices as (data, model)."""
    devices = jax.device_count()
    if devices % config.mesh.model:
        raise InputError(
            f"{devices} devices cannot be split into groups of mesh.model={config.mesh.model}:"
            " choose a divisor"
        )
    shape = (devices // config.mesh.model, config.mesh.model)
    return jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For batch arrays [a,g,...]: each group is on one device of the data axis."""
    return NamedSharding(mesh, PartitionSpec(None, "data"))


def state_sharding(mesh: Mesh, abstract_state, config):
    """Shardings of a train state: large arrays are spread over the axis that the config names, the
    others are replicated."""
    axis, smallest = config.mesh.shard_parameters, config.mesh.shard_min_size
    if axis not in ("none", "data", "model"):
        raise InputError(f"mesh.shard_parameters is '{axis}': choose none, data or model")

    def place(x) -> NamedSharding:
        if axis != "none" and np.prod(x.shape) >= smallest:
            for dim in sorted(range(len(x.shape)), key=lambda d: -x.shape[d]):
                if x.shape[dim] % mesh.shape[axis] == 0:
                    return NamedSharding(
                        mesh,
                        PartitionSpec(*[axis if d == dim else None for d in range(len(x.shape))]),
                    )
        return replicated(mesh)

    return jax.tree.map(place, abstract_state)


def local_groups(mesh: Mesh) -> list[int]:
    """The groups of a batch that this process feeds, in order."""
    groups = mesh.shape["data"]
    index_map = batch_sharding(mesh).addressable_devices_indices_map((1, groups))
    return sorted({range(groups)[index[1]][0] for index in index_map.values()})


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's part of a batch [a,g_local,...] -> global arrays [a,g,...]."""
    sharding, groups = batch_sharding(mesh), mesh.shape["data"]
    return {
        name: jax.make_array_from_process_local_data(
            sharding, x, (x.shape[0], groups, *x.shape[2:])
        )
        for name, x in batch.items()
    }
