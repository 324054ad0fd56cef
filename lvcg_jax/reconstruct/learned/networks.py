"""The networks by name; sizes are the fields of their modules."""

import dataclasses

from lvcg_jax.reconstruct.learned.e_lstm import ELstm
from lvcg_jax.reconstruct.learned.field import Field
from lvcg_jax.reconstruct.learned.nef_net import NefNet
from lvcg_jax.reconstruct.learned.network import LeadNetwork
from lvcg_jax.reconstruct.learned.vae_cnn import VaeCnn

NETWORKS: dict[str, type[LeadNetwork]] = {
    "field": Field, "vae_cnn": VaeCnn, "e_lstm": ELstm, "nef_net": NefNet
}  # fmt: skip


def sizes_of(network: LeadNetwork) -> dict:
    """What makes an equal network: NETWORKS[name](**sizes)."""
    names = [field.name for field in dataclasses.fields(network)]
    return {name: getattr(network, name) for name in names if name not in ("parent", "name")}
