"""LVCG in JAX/Flax: ECG representations learned in the latent vectorcardiogram space."""

__version__ = "0.1.0"
