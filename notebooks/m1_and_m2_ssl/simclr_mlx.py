"""SimCLR of `simclr.ipynb` in MLX, on views that are already augmented: the same model and loss."""

import functools
import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models import resnet_mlx
from pomology.models.workload_mlx import Pass, also_moves, initialized, one_update

PREFIX = "model."  # of the weights' names in the notebook's Lightning module
PARAMETERS = 11_497_792
FIRST = 1_769_472  # MACs of a view in the first convolution
VIEW = FIRST + 150_994_944 + 3 * 134_217_728 + 327_680  # in all layers
TEMPERATURE = 0.5  # of the loss
CLASSES, NEIGHBORS, VOTE = 10, 200, 0.1  # of kNN; a neighbor votes with exp(cosine / VOTE)


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnet_mlx.cifar_resnet18()
        self.head = nn.Sequential(
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm(512),
            nn.ReLU(),
            nn.Linear(512, 128, bias=False),
            nn.BatchNorm(128),
        )

    def __call__(self, images):
        return self.head(self.backbone(images))


def normalized(features):
    return features / mx.linalg.norm(features, axis=1, keepdims=True)


def loss_function(model, first, second):
    """Return NT-Xent: each view must find the other view of its image in the batch."""
    count = len(first)
    views = mx.concatenate([normalized(model(first)), normalized(model(second))])
    logits = views @ views.T / TEMPERATURE + mx.diag(mx.full(2 * count, -mx.inf))
    others = (mx.arange(2 * count) + count) % (2 * count)
    return nn.losses.cross_entropy(logits, others, reduction="mean")


def views(batch_size):
    first, second = mx.random.normal((2, batch_size, 32, 32, 3))
    return first, second


def embed(model, images):
    """Return features of images, as for the feature bank."""
    return normalized(model.backbone(images))


def classify(model, images, bank, labels):
    """Return the classes of images by the nearest features in the bank, (features, images)."""
    cosines = embed(model, images) @ bank
    count = min(NEIGHBORS, len(labels))
    nearest = mx.argpartition(-cosines, count - 1, axis=1)[:, :count]
    votes = mx.exp(mx.take_along_axis(cosines, nearest, axis=1) / VOTE)
    chosen = labels[nearest][:, :, None] == mx.arange(CLASSES)
    return mx.argmax((chosen * votes[:, :, None]).sum(1), axis=1)


@functools.cache
def feature_bank(count):
    """Return features of random images, (512, count), and their classes."""
    return normalized(mx.random.normal((count, 512))).T, mx.random.randint(0, CLASSES, (count,))


def evaluation(batch_size, images, test_images):
    """Return the passes of an epoch: the feature bank, and kNN of the test images.

    The article's time has half a sanity check, which adds half a bank and a batch of kNN.
    """
    steps = math.ceil(1.5 * math.ceil(images / batch_size))
    tests = math.ceil(test_images / batch_size)

    def test(count):
        return views(count)[0], *feature_bank(images)

    return [
        Pass("feature bank", embed, lambda count: views(count)[:1], batch_size, steps),
        Pass("kNN", classify, test, batch_size, tests + 1),
    ]


def workload(config, images, test_images, lr):
    """Return the workload of a case's settings. images, test_images: numbers of an epoch."""
    batch_size = config["batch_size"]
    options = {"momentum": 0.9, "weight_decay": 5e-4}
    return Workload(
        build=SimCLR,
        batch=views,
        optimizer=lambda model: initialized(optim.SGD(lr, **options), model),
        step=one_update(loss_function),
        parameters=PARAMETERS,
        flops_per_sample=2 * (6 * VIEW - 2 * FIRST) + 6 * 4 * 128 * batch_size,
        optimizer_class="SGD",
        slots=1,
        saved_bytes_per_sample=9.42e6,
        moved_bytes_per_sample=83.8e6,
        # Two views: weights are read once more in both passes, and a second gradient is written,
        # read, and added to the first one.
        adjust=also_moves(6 * 4 * PARAMETERS),
        passes=evaluation(batch_size, images, test_images),
    )
