"""SimCLR in MLX, on views that are already augmented."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import resnet_mlx


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnet_mlx.cifar_resnet18()
        head = [nn.Linear(512, 512, bias=False), nn.BatchNorm(512), nn.ReLU()]
        self.head = nn.Sequential(*head, nn.Linear(512, 128, bias=False), nn.BatchNorm(128))

    def __call__(self, images):
        return self.head(self.backbone(images))


def build(**_):
    return SimCLR()


def forward(model, first, second):
    return model(first), model(second)


def loss(outputs, first, second, temperature=0.5):
    """Return NT-Xent: each view must find the other view of its image in the batch."""
    n = len(first)
    views = mx.concatenate([view / mx.linalg.norm(view, axis=1, keepdims=True) for view in outputs])
    logits = views @ views.T / temperature + mx.diag(mx.full(2 * n, -mx.inf))
    return nn.losses.cross_entropy(logits, (mx.arange(2 * n) + n) % (2 * n), reduction="mean")


def optimizer(lr, weight_decay):
    return optim.SGD(lr, momentum=0.9, weight_decay=weight_decay)
