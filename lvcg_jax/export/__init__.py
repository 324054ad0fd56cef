"""Models in other forms: one file for JAX alone, packaged weights, the authors' checkpoints."""
