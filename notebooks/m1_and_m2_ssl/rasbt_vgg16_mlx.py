"""VGG-16 of `rasbt_vgg16.ipynb` in MLX: torchvision's layers with batch normalization."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.losses_mlx import cross_entropy
from pomology.models.workload_mlx import initialized, one_update

STAGES = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels, and number of convolutions
CLASSES = 10
POOLED = 7  # pixels a side before the fully connected layers
FEATURES = 14_723_136  # parameters of convolutions and normalizations
# MACs of the convolutions per pixel of an image: in the first one, and in all.
FIRST, EVERY = 1_728, 305_856


def features():
    """Return the convolutions; each stage ends with a pooling that halves the image."""
    layers, before = [], 3
    for channels, depth in STAGES:
        for _ in range(depth):
            convolution = nn.Conv2d(before, channels, 3, padding=1)
            convolution.weight = nn.init.he_normal()(
                convolution.weight, mode="fan_out", gain=2**0.5
            )
            convolution.bias = mx.zeros(channels)
            layers += [convolution, nn.BatchNorm(channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


def connected(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    layer.weight = nn.init.normal(0.0, 0.01)(layer.weight)
    layer.bias = mx.zeros(outputs)
    return [layer, nn.ReLU(), nn.Dropout(0.5)]


def adaptive_means(side):
    """Return the matrix (7, side) of PyTorch's adaptive average pooling along one axis."""
    rows = []
    for row in range(POOLED):
        first, last = row * side // POOLED, -(-(row + 1) * side // POOLED)
        mean = 1 / (last - first)
        rows.append([mean if first <= place < last else 0.0 for place in range(side)])
    return mx.array(rows)


class VGG16(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = features()
        self.classifier = nn.Sequential(
            *connected(512 * POOLED**2, width), *connected(width, width), nn.Linear(width, CLASSES)
        )

    def __call__(self, images):
        images = self.features(images)
        if images.shape[1] != POOLED:  # 7 pixels a side remain of the benchmark's 224
            means = adaptive_means(images.shape[1])
            images = mx.einsum("ih,bhwc,jw->bijc", means, images, means)
        return self.classifier(images.transpose(0, 3, 1, 2).flatten(1))  # PyTorch's order


def workload(config, width, lr):
    """Return the workload of a case's settings. width: of the fully connected layers."""
    image_size = config["image_size"]
    pixels = image_size**2
    connections = 512 * POOLED**2 * width + width**2 + width * CLASSES  # a MAC for each weight

    def batch(batch_size):
        images = mx.random.uniform(shape=(batch_size, image_size, image_size, 3))
        return images, mx.random.randint(0, CLASSES, (batch_size,))

    return Workload(
        build=lambda: VGG16(width),
        batch=batch,
        optimizer=lambda model: initialized(optim.Adam(lr, bias_correction=True), model),
        step=one_update(cross_entropy),
        parameters=FEATURES + connections + 2 * width + CLASSES,
        flops_per_sample=6 * (EVERY * pixels + connections) - 2 * FIRST * pixels,
        optimizer_class="Adam",
        slots=2,
        saved_bytes_per_sample=2_538 * pixels + 24 * width + 100_000,
        moved_bytes_per_sample=17_322 * pixels + 168 * width + 502_000,
    )
