"""Run directories: state, checkpoints, metrics, and the weights that the package carries."""
