"""The Siamese network of `siamese.ipynb` in MLX: the same model, loss and update."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models import resnet_mlx
from pomology.models.losses_mlx import binary_cross_entropy
from pomology.models.workload_mlx import also_moves, initialized, one_update


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        stem = [
            nn.Conv2d(1, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        stages = resnet_mlx.stages((2, 2, 2, 2))
        self.features = nn.Sequential(*stem, *stages, lambda images: images.mean((1, 2)))
        self.compare = nn.Sequential(
            nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        )

    def __call__(self, left, right):
        features = mx.concatenate([self.features(left), self.features(right)], axis=1)
        return self.compare(features).squeeze(1)


def build():
    model = Siamese()
    # torchvision's and the script's initial values.
    convolution, linear = nn.init.he_normal(), nn.init.glorot_uniform()
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.weight = convolution(module.weight, mode="fan_out", gain=2**0.5)
        elif isinstance(module, nn.Linear):
            module.weight = linear(module.weight)
            module.bias = mx.full(module.bias.shape, 0.01)
    return model


def loss_function(model, left, right, same):
    return binary_cross_entropy(model(left, right), same).mean()


def batch(batch_size):
    left, right = mx.random.uniform(high=255.0, shape=(2, batch_size, 28, 28, 1))
    return left, right, mx.random.randint(0, 2, (batch_size,)).astype(mx.float32)


MACS = 614_656 + 7_225_344 + 3 * 8_388_608  # of a digit: first convolution, and the four stages

siamese = Workload(
    build=build,
    batch=batch,
    optimizer=lambda model: initialized(optim.AdaDelta(1.0), model),
    step=one_update(loss_function),
    parameters=11_432_897,
    flops_per_sample=6 * (2 * MACS + 262_400) - 2 * 2 * 614_656,
    optimizer_class="AdaDelta",
    slots=2,
    saved_bytes_per_sample=0.75e6,
    moved_bytes_per_sample=6.06e6,
    # Two digits: weights are read once more in both passes, and a second gradient is written, read,
    # and added to the first, which is read and written.
    adjust=also_moves(6 * 4 * 11_170_240),
)
