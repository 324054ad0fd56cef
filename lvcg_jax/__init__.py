"""LVCG in JAX/Flax: ECG representations learned in the latent vectorcardiogram space.

    from lvcg_jax import LVCG

    model = LVCG.load("best")  # or another name, or a run directory
    embedding = model.embed(signal, fs=500, leads=["I", "II", "V2"])

Importing the package is quick: what it offers is loaded when it is first used.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.base.errors import InputError

if TYPE_CHECKING:  # so that editors and type checkers see them; loaded by __getattr__ otherwise
    from data_prep.formats.any_file import read_any
    from lvcg_jax.embed.answers import Embedding, Prediction
    from lvcg_jax.embed.lvcg import LVCG
    from lvcg_jax.predict.estimators import LVCGClassifier, LVCGEmbedder

__version__ = "0.1.0"
__all__ = [
    "LVCG",
    "Embedding",
    "InputError",
    "LVCGClassifier",
    "LVCGEmbedder",
    "Prediction",
    "example_record",
    "read_any",
]
_LATER = {
    "LVCG": "lvcg_jax.embed.lvcg",
    "Embedding": "lvcg_jax.embed.answers",
    "LVCGClassifier": "lvcg_jax.predict.estimators",
    "LVCGEmbedder": "lvcg_jax.predict.estimators",
    "Prediction": "lvcg_jax.embed.answers",
    "read_any": "data_prep.formats.any_file",
}


def example_record() -> Path:
    """A record to try things with: ten seconds of twelve leads at 250 Hz, synthetic, as WFDB."""
    import data_prep.synthetic_heart

    return Path(data_prep.synthetic_heart.__file__).with_name("example.hea")


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
