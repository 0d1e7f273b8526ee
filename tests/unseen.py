"""Ten models that are not in the kit, predicted from a run's ceilings by the command's own function, and then timed by
a bare loop: `python tests/unseen.py RUN [cpu|gpu] [SECONDS]`."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MOST = 1000  # of tokens, and of a graph's nodes
INPUTS = {
    "mobile": "16x3x96x96",
    "unet": "4x3x96x96",
    "mixer": "32x64x256",
    "gru": "32x48x64",
    "vit": "16x3x64x64",
    "graph": f"{MOST}x128,2x20000:int",
    "autoencoder": "512x784",
    "wavenet": "8x32x2000",
    "dense": "16x3x64x64",
    "recommender": "512x26:int",
}


class Of(nn.Module):
    """A module of parts, and a function of these and the inputs."""

    def __init__(self, forward, *parts):
        super().__init__()
        self.parts, self.function = nn.ModuleList(parts), forward

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


def conv(into, out, size=3, stride=1, **more):
    layers = nn.Conv2d(into, out, size, stride, size // 2, bias=False, **more), nn.BatchNorm2d(out), nn.ReLU()
    return nn.Sequential(*layers)


def mobile():
    pairs = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [part for i, o, s in pairs for part in (conv(i, i, 3, s, groups=i), conv(i, o, 1))]
    return nn.Sequential(conv(3, 32, 3, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def unet():
    def forward(parts, images):
        first = parts[0](images)
        second = parts[1](F.max_pool2d(first, 2))
        deep = parts[3](parts[2](F.max_pool2d(second, 2)))
        return parts[6](torch.cat([parts[5](parts[4](torch.cat([deep, second], 1))), first], 1))

    ups = nn.ConvTranspose2d(128, 64, 2, 2), conv(128, 64), nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 2, 1)
    return Of(forward, conv(3, 32), conv(32, 64), conv(64, 128), *ups)


def mixer():
    def forward(parts, tokens):
        for along, across in zip(parts[::2], parts[1::2], strict=True):
            tokens = tokens + along(tokens.transpose(1, 2)).transpose(1, 2)
            tokens = tokens + across(tokens)
        return tokens

    def mlp(width):
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    return Of(forward, *(mlp(width) for _ in range(4) for width in (64, 256)))


def gru():
    return nn.GRU(64, 128, 2, batch_first=True)


def vit():
    layer = nn.TransformerEncoderLayer(192, 3, 768, dropout=0.0, batch_first=True, norm_first=True)
    parts = nn.Conv2d(3, 192, 8, 8), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(192, 100)
    return Of(lambda p, images: p[2](p[1](p[0](images).flatten(2).transpose(1, 2)).mean(1)), *parts)


def graph():
    def forward(parts, nodes, edges):
        for part in parts:
            told = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
            nodes = nodes + F.relu(part(told))
        return nodes

    return Of(forward, *(nn.Linear(128, 128) for _ in range(4)))


def autoencoder():
    sizes = (784, 1024, 256, 32, 256, 1024, 784)
    return nn.Sequential(*(part for i, o in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(i, o), nn.SiLU())))


def wavenet():
    def forward(parts, sound):
        for each in parts:
            gate, value = each(sound).chunk(2, 1)
            sound = sound + torch.sigmoid(gate) * torch.tanh(value)
        return sound

    return Of(forward, *(nn.Conv1d(32, 64, 3, padding=2**n, dilation=2**n) for n in range(8)))


def dense():
    def forward(parts, images):
        for part in parts:
            images = torch.cat([images, part(images)], 1)
        return images.mean((2, 3))

    return Of(forward, *(conv(3 + 24 * n, 24) for n in range(8)))


def recommender():
    layers = nn.Linear(26 * 32, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
    return nn.Sequential(nn.Embedding(26 * MOST, 32), nn.Flatten(), *layers)


def timed(name: str, device: str, seconds: float) -> float:
    """The median of a step with Adam, in a bare loop."""
    from pomology.prediction import operators, own_model

    torch.manual_seed(1)
    model, synchronize = globals()[name]().to(device), getattr(torch, device).synchronize
    optimizer, times = torch.optim.Adam(model.parameters()), []
    asked = own_model.parse_inputs(INPUTS[name])
    data = [torch.randint(MOST, x.sizes) if x.whole else torch.randn(x.sizes) for x in asked]
    data, end = [each.to(device) for each in data], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 13:
        begun = time.perf_counter()
        optimizer.zero_grad()
        operators.default_loss(model(*data)).backward()
        optimizer.step()
        synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times[3:])[len(times[3:]) // 2]


def main(run: str, on: str = "cpu", seconds: str = "5") -> None:
    from pomology.prediction import predict, validate

    logs, inside = [], []
    for name, sizes in INPUTS.items():
        made = predict.predict(f"{__file__}:{name}", sizes, on=on, source=run, place=Path(run)).prediction.step_s
        step_s = timed(name, {"gpu": "mps" if torch.mps.is_available() else "cuda"}.get(on, on), float(seconds))
        inside.append(made.low <= step_s <= made.high)
        logs.append(np.log(step_s / made.value))
        ends = f"({1e3 * made.low:.2f} to {1e3 * made.high:.2f})"
        where = "inside" if inside[-1] else "outside"
        print(f"{name:12} predicted {1e3 * made.value:8.2f} ms {ends:20} measured {1e3 * step_s:8.2f} ms {where}")
    print(validate.Errors("ten unseen models", np.array(logs), np.array(inside)).row())


if __name__ == "__main__":
    main(*sys.argv[1:])
