"""Where arrays live: a mesh of (data, model) devices, batches split over data, parameters
replicated or spread.

With few records on a device, neighbouring devices compute a group of records together. The mesh
then is (data, share, model): groups are split over data, the beats and the records of a group over
share. Beats of a record may be on two devices; only their tokens are exchanged.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from data_prep.base.errors import InputError


def make_mesh(config, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """All devices, or those that are given, as (data, model), or (data, share, model) where groups
    are shared."""
    count = jax.device_count() if devices is None else len(devices)
    if count % config.mesh.model:
        raise InputError(
            f"{count} devices cannot be split into groups of mesh.model={config.mesh.model}:"
            " choose a divisor"
        )
    data = count // config.mesh.model
    records, share = config.data.batch_size // (config.optim.accumulate * data), 1
    if config.data.pack and records:
        share = sharing_devices(records, data, config.mesh.group_records)
    axes = {"data": data // share, "share": share, "model": config.mesh.model}
    if share == 1:
        del axes["share"]
    auto = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto, devices=devices)


def sharing_devices(records: int, devices: int, group_records: int) -> int:
    """How many of the devices compute a group together, if each has so many records.

    Of few records there is no choice that gives all groups nearly the same number of beats, and
    what a group has less is padded. Devices with fewer than `group_records` share groups of twice
    as many, if the batch has them.
    """
    if records >= group_records:
        return 1
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    return next((n for n in divisors if n * records >= 2 * group_records), devices)


def group_devices(mesh: Mesh) -> int:
    """How many devices compute a group together."""
    return mesh.shape.get("share", 1)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, leading: int = 1) -> NamedSharding:
    """For batch arrays [a,g,...], or [g,...] without `leading` axes: each group is on one device of
    the data axis, or on those that share it."""
    axes = ("data", "share") if group_devices(mesh) > 1 else ("data",)
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, *axes))


def state_sharding(mesh: Mesh, abstract_state, config):
    """Shardings of a train state: large arrays are spread over the axis that the config names, the
    others are replicated."""
    axis, smallest = config.mesh.shard_parameters, config.mesh.shard_min_size
    if axis not in ("none", "data", "model"):
        raise InputError(f"mesh.shard_parameters is '{axis}': choose none, data or model")
    size = mesh.shape.get(axis, 1)
    if axis == "data" and group_devices(mesh) > 1:
        axis, size = ("data", "share"), size * group_devices(mesh)

    def place(x) -> NamedSharding:
        if axis != "none" and np.prod(x.shape) >= smallest:
            for dim in sorted(range(len(x.shape)), key=lambda d: -x.shape[d]):
                if x.shape[dim] % size == 0:
                    return NamedSharding(
                        mesh,
                        PartitionSpec(*[axis if d == dim else None for d in range(len(x.shape))]),
                    )
        return replicated(mesh)

    return jax.tree.map(place, abstract_state)


def local_groups(mesh: Mesh) -> list[int]:
    """The groups of a batch that this process feeds, in order; one that processes share, each of
    them feeds."""
    groups = mesh.shape["data"]
    placed = NamedSharding(mesh, PartitionSpec("data"))
    index_map = placed.addressable_devices_indices_map((groups,))
    return sorted({range(groups)[index[0]][0] for index in index_map.values()})


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's groups of a batch [a,g_local,...] -> global arrays [a,g,...]."""
    sharding, groups = batch_sharding(mesh), mesh.shape["data"]
    shapes = {name: (x.shape[0], groups, *x.shape[2:]) for name, x in batch.items()}
    if group_devices(mesh) == 1:
        return {
            name: jax.make_array_from_process_local_data(sharding, x, shapes[name])
            for name, x in batch.items()
        }
    # a device is given its part of its group
    place = {group: k for k, group in enumerate(local_groups(mesh))}

    def part(x: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
        k = place[range(groups)[index[1]][0]]
        return x[:, k : k + 1, *index[2:]]

    return {
        name: jax.make_array_from_callback(shapes[name], sharding, partial(part, x))
        for name, x in batch.items()
    }
