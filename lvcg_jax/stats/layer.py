"""One linear layer on scaled features: what a linear probe learns and a head keeps."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Linear:
    """One linear layer on shifted and scaled features; scores are logits."""

    weights: np.ndarray  # [d,c]
    bias: np.ndarray  # [c]
    shift: np.ndarray  # [d]
    scale: np.ndarray  # [d], infinite for a feature that is constant in training

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x - self.shift) / self.scale @ self.weights + self.bias
