"""LVCG and other self-supervised methods with one budget: the study behind docs/peers.md."""
