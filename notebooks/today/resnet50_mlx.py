"""The training step of `resnet50.ipynb` in MLX: the same model, loss and update, in fp32."""

import math

import mlx.core as mx
import mlx.optimizers as optim

from pomology import Workload
from pomology.models import resnet_mlx
from pomology.models.losses_mlx import cross_entropy
from pomology.models.workload_mlx import initialized, one_update

# Weights of the convolutions whose output has 1/2 to 1/32 of the image's side; of the last layer.
WEIGHTS = [9_408, 245_760, 1_310_720, 7_471_104, 14_417_920]
LAST = 2_048_000


def workload(config, lr):
    """Return the workload of a case's settings."""
    image_size = config["image_size"]

    def batch(batch_size):
        images = mx.random.uniform(shape=(batch_size, image_size, image_size, 3))
        return images, mx.random.randint(0, 1000, (batch_size,))

    sides = [math.ceil(image_size / 2**number) for number in range(1, 6)]
    macs = [weights * side**2 for weights, side in zip(WEIGHTS, sides, strict=True)]
    return Workload(
        build=resnet_mlx.resnet50,
        batch=batch,
        optimizer=lambda model: initialized(optim.SGD(lr, momentum=0.9), model),
        step=one_update(cross_entropy),
        parameters=25_557_032,
        flops_per_sample=6 * (sum(macs) + LAST) - 2 * macs[0],
        optimizer_class="SGD",
        slots=1,
        saved_bytes_per_sample=1_713.0 * image_size**2,
        moved_bytes_per_sample=15_541.0 * image_size**2,
    )
