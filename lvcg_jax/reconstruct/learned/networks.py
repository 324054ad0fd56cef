"""The networks by name; sizes are the fields of their modules."""

import dataclasses
from ast import literal_eval

from data_prep.base.errors import InputError
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


def parse_sizes(name: str, texts: list[str]) -> dict:
    """'width=256', 'skip=False', ... -> sizes of the network `name`, each of its default's type."""
    usual, sizes = sizes_of(NETWORKS[name]()), {}
    for text in texts:
        size, _, word = text.partition("=")
        if size not in usual:
            raise InputError(f"--size={text}: {name} has {', '.join(usual)}")
        try:
            value = word if isinstance(usual[size], str) else literal_eval(word)
        except (ValueError, SyntaxError):
            value = None
        if type(value) is not type(usual[size]):
            raise InputError(f"--size={text}: give it like its default, {size}={usual[size]}")
        sizes[size] = value
    return sizes
