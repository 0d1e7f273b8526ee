"""Passes of MLX twins that are no training steps."""

from types import SimpleNamespace

import numpy as np

from pomology.paths import root


def classified(features: np.ndarray, bank: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the classes by kNN in SimCLR's twin, whose backbone here returns its inputs."""
    import mlx.core as mx

    from pomology.experiment import twin

    classify = twin.load(f"{root()}/notebooks/m1_and_m2_ssl/simclr_mlx.py:classify")
    model = SimpleNamespace(backbone=lambda images: images)
    return np.array(classify(model, *map(mx.array, (features, bank, labels))))
