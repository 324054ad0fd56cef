"""Other self-supervised methods, trained and embedded like LVCG itself.

Axis letters as in lvcg_jax/model/__init__.py; of signals and tokens also

    b  record of the whole batch           s  place in time: a step of the encoder, or a patch
    v  view of a record                    q  token of a record, all leads and places in one axis
    w  sample of a patch                   d  feature
"""

from lvcg_jax.peers.astcl import ASTCL
from lvcg_jax.peers.barlow_twins import BarlowTwins
from lvcg_jax.peers.byol import BYOL
from lvcg_jax.peers.clocs import CLOCS
from lvcg_jax.peers.crt import CRT
from lvcg_jax.peers.ecg_jepa import ECGJEPA
from lvcg_jax.peers.heartlang import HeartLang
from lvcg_jax.peers.moco_v3 import MoCoV3
from lvcg_jax.peers.record_views import RecordViews
from lvcg_jax.peers.simclr import SimCLR
from lvcg_jax.peers.simsiam import SimSiam
from lvcg_jax.peers.st_mem import STMEM
from lvcg_jax.peers.ts_tcc import TSTCC

METHODS = {
    "simclr": SimCLR,
    "byol": BYOL,
    "barlow_twins": BarlowTwins,
    "moco_v3": MoCoV3,
    "simsiam": SimSiam,
    "ts_tcc": TSTCC,
    "clocs": CLOCS,
    "astcl": ASTCL,
    "crt": CRT,
    "st_mem": STMEM,
    "heartlang": HeartLang,
    "ecg_jepa": ECGJEPA,
}
# Ours, trained like a peer: the record token of our own network.
OURS = {"record_views": RecordViews}
