"""Forty models that are not in the kit, predicted from a run's ceilings by the command's own function, and then timed
by a bare loop: `python tests/unseen.py RUN [cpu|gpu] [SECONDS]`. docs/prediction.md says which of them the intervals of
a user's model on a processor are made of, and which test these."""

import functools
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NODES = 1000  # of the graph; also words


class Of(nn.Module):
    """Parts, and a function of these and of what is put in."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


def conv(into, out, stride=1, size=3, **more):
    layers = nn.Conv2d(into, out, size, stride, size // 2, bias=False, **more), nn.BatchNorm2d(out), nn.ReLU()
    return nn.Sequential(*layers)


def first(parts, of):
    return of[0]


def residual(parts, data):
    for part in parts:
        data = data + part(data)
    return data


def grown(parts, data):
    for part in parts:
        data = torch.cat([data, part(data)], 1)
    return data


def across(parts, data):
    return nn.Sequential(*parts)(data.transpose(1, 2)).transpose(1, 2)


def told(parts, nodes, edges):  # each node what its neighbours are
    for part in parts:
        nodes = nodes + F.relu(part(torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])))
    return nodes


def mlp(size):
    return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))


def below(into, *parts):  # a level of a U-Net
    more = 2 * into
    return Of(grown, nn.Sequential(nn.MaxPool2d(2), conv(into, more), *parts, nn.ConvTranspose2d(more, into, 2, 2)))


def beside(parts, data):  # branches of an Inception module; the first takes 48 channels twice
    data = data if data.shape[1] == 96 else torch.cat([data, data], 1)
    return torch.cat([part(data) for part in parts], 1)


def squeezed(parts, data):
    data = parts[0](data)
    return data * torch.sigmoid(parts[2](F.relu(parts[1](data.mean((2, 3))))))[:, :, None, None]


def raised(into, out):
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(into, out, 3, 1, 1), nn.BatchNorm2d(out), nn.ReLU())


def attended(parts, data):  # attention, written out
    q, k, v = (each.unflatten(2, (4, 32)).transpose(1, 2) for each in parts[0](data).chunk(3, 2))
    scores = (q @ k.transpose(2, 3) / 32**0.5).softmax(-1)
    return parts[1]((scores @ v).transpose(1, 2).flatten(2))


def mixed(parts, data):
    shares = parts[0](data).softmax(-1)
    return sum(shares[:, [place]] * part(data) for place, part in enumerate(parts[1:]))


def crossed(parts, fields):  # every pair of fields
    rows = parts[0](fields)
    return parts[1]((rows @ rows.transpose(1, 2)).flatten(1))


def windowed(parts, data):  # attention in windows of 8 x 8 places
    windows = data.unflatten(2, (4, 8)).unflatten(1, (4, 8)).transpose(2, 3).flatten(3, 4).flatten(0, 2)
    return parts[1](parts[0](windows, windows, windows)[0])


def sines(parts, places):
    return functools.reduce(lambda data, part: torch.sin(30 * part(data)), parts, places)


def narrowed(parts, data):
    return parts[0](data) + F.interpolate(parts[1](data), scale_factor=2, mode="bilinear")


def gated(parts, data):
    one, other = parts[0](data).chunk(2, -1)
    return parts[1](F.silu(one) * other)


def contrasted(parts, data):
    found = F.normalize(parts[0](data))
    return (found @ found.T / 0.1).log_softmax(1)


STYLE = (3, 32), (32, 32), (32, 32), (32, 3)
SEPARABLE = (32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)
MODELS = {
    "mobile": lambda: nn.Sequential(
        conv(3, 32, 2), *(part for i, o, s in SEPARABLE for part in (conv(i, i, s, groups=i), conv(i, o, size=1)))
    ),
    "unet": lambda: nn.Sequential(conv(3, 32), below(32, below(64), conv(128, 64)), nn.Conv2d(64, 2, 1)),
    "mixer": lambda: Of(residual, *(part for _ in range(4) for part in (Of(across, mlp(64)), mlp(256)))),
    "gru": lambda: nn.GRU(64, 128, 2, batch_first=True),
    "vit": lambda: nn.Sequential(
        nn.Conv2d(3, 192, 8, 8),
        nn.Flatten(2),
        Of(across, *(nn.TransformerEncoderLayer(192, 3, 768, 0.0, batch_first=True) for _ in range(6))),
    ),
    "graph": lambda: Of(told, *(nn.Linear(128, 128) for _ in range(4))),
    "autoencoder": lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(*each), nn.SiLU()) for each in ((784, 1024), (1024, 64), (64, 1024), (1024, 784)))
    ),
    "wavenet": lambda: Of(
        residual, *(nn.Sequential(nn.Conv1d(32, 64, 3, 1, 2**n, 2**n), nn.GLU(1), nn.Tanh()) for n in range(8))
    ),
    "dense": lambda: Of(grown, *(conv(3 + 24 * n, 24) for n in range(8))),
    "recommender": lambda: nn.Sequential(
        nn.Embedding(26 * NODES, 32), nn.Flatten(), nn.Linear(832, 512), nn.ReLU(), nn.Linear(512, 1)
    ),
}
SECOND = {
    "fire": lambda: nn.Sequential(
        conv(3, 64, 2), *(nn.Sequential(conv(64, 16, size=1), conv(16, 64)) for _ in range(6)), nn.MaxPool2d(2)
    ),
    "grouped": lambda: nn.Sequential(
        conv(3, 128, 2), *(nn.Sequential(conv(128, 128, groups=16), conv(128, 128, size=1)) for _ in range(4))
    ),
    "sharper": lambda: nn.Sequential(conv(1, 64, size=5), conv(64, 32), nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3)),
    "tagger": lambda: nn.Sequential(
        nn.Embedding(NODES, 64), nn.LSTM(64, 96, bidirectional=True, batch_first=True), Of(first), nn.Linear(192, 20)
    ),
    "wide_kernels": lambda: Of(
        residual,
        *(nn.Sequential(nn.Conv2d(32, 32, 7, 1, 3, groups=32), nn.Conv2d(32, 32, 1), nn.GELU()) for _ in range(3)),
    ),
    "translator": lambda: nn.Transformer(128, 4, 3, 3, 512, 0.0, batch_first=True),
    "points": lambda: nn.Sequential(
        *(nn.Sequential(nn.Conv1d(*sizes, 1), nn.ReLU()) for sizes in ((3, 64), (64, 128), (128, 1024))),
        nn.AdaptiveMaxPool1d(1),
    ),
    "steps": lambda: nn.Sequential(*[nn.Linear(64, 64), nn.Tanh()] * 40),  # the same small layer again and again
    "factors": lambda: Of(
        lambda parts, one, other: (parts[0](one) * parts[1](other)).sum(1), *(nn.Embedding(NODES, 128) for _ in "ab")
    ),
    "latents": lambda: Of(
        lambda parts, data, few: parts[1](parts[0](few, data, data)[0]),
        nn.MultiheadAttention(96, 4, batch_first=True),
        mlp(96),
    ),
}
THIRD = {
    "inception": lambda: nn.Sequential(
        conv(3, 48, 2), *(Of(beside, conv(96, 32, size=1), conv(96, 32), conv(96, 32, size=5)) for _ in range(4))
    ),
    "volumes": lambda: nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(16, 32, 3, padding=1), nn.ReLU()
    ),
    "squeezing": lambda: Of(residual, *(Of(squeezed, conv(64, 64), nn.Linear(64, 8), nn.Linear(8, 64)) for _ in "abc")),
    "sorter": lambda: nn.Sequential(nn.Embedding(NODES, 96), nn.GRU(96, 64, batch_first=True), Of(first)),
    "decoder": lambda: nn.Sequential(
        nn.Linear(64, 128 * 36),
        nn.Unflatten(1, (128, 6, 6)),
        *(raised(i, o) for i, o in ((128, 64), (64, 32), (32, 3))),
    ),
    "words": lambda: nn.Sequential(
        nn.Embedding(20 * NODES, 128), Of(across, nn.Conv1d(128, 128, 5, padding=2), nn.ReLU()), nn.Linear(128, 5)
    ),
    "wide": lambda: nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4096, 512)),
    "heads": lambda: Of(attended, nn.Linear(128, 384), nn.Linear(128, 128)),
    "style": lambda: nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.1))
            for i, o in STYLE
        )
    ),
    "experts": lambda: Of(mixed, nn.Linear(128, 4), *(mlp(128) for _ in range(4))),
}
FOURTH = {
    "bottlenecks": lambda: Of(
        residual, *(nn.Sequential(conv(128, 32, size=1), conv(32, 32), nn.Conv2d(32, 128, 1)) for _ in range(4))
    ),
    "language": lambda: nn.Sequential(
        nn.Embedding(NODES, 128), nn.LSTM(128, 192, 2, batch_first=True), Of(first), nn.Linear(192, NODES)
    ),
    "pairs": lambda: Of(crossed, nn.Embedding(26 * NODES, 32), nn.Linear(26 * 26, 64)),
    "windows": lambda: Of(windowed, nn.MultiheadAttention(96, 3, batch_first=True), mlp(96)),
    "waves": lambda: Of(sines, *(nn.Linear(*sizes) for sizes in ((2, 256), (256, 256), (256, 256), (256, 3)))),
    "hourglass": lambda: nn.Sequential(
        conv(3, 32), Of(narrowed, conv(32, 32), nn.Sequential(nn.AvgPool2d(2), conv(32, 64), conv(64, 32)))
    ),
    "bag": lambda: nn.Sequential(
        nn.Embedding(20 * NODES, 64), Of(lambda parts, words: words.mean(1)), nn.Linear(64, 50)
    ),
    "gates": lambda: Of(residual, *(Of(gated, nn.Linear(192, 1024), nn.Linear(512, 192)) for _ in range(4))),
    "contrast": lambda: Of(contrasted, nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128))),
    "pixels": lambda: nn.Sequential(conv(3, 48, size=7), Of(residual, *(conv(48, 48, size=5) for _ in range(3)))),
}
MODELS |= SECOND | THIRD | FOURTH
globals().update(MODELS)  # the command asks for functions of this file
INPUTS = (
    "16x3x96x96 4x3x96x96 32x64x256 32x48x64 16x3x64x64 1000x128,2x20000:int 512x784 8x32x2000 16x3x64x64 512x26:int "
)
INPUTS += "8x3x96x96 8x3x96x96 8x1x64x64 32x40:int 8x32x48x48 16x32x128,16x32x128 16x3x512 256x64 "
INPUTS += "4096:int,4096:int 8x512x96,8x32x96 "
INPUTS += "8x3x96x96 4x1x32x32x32 8x64x32x32 32x50:int 32x64 16x200:int 128x512 8x256x128 4x3x96x96 256x128 "
INPUTS += "8x128x28x28 16x32:int 256x26:int 4x32x32x96 8192x2 8x3x64x64 512x40:int 16x64x192 1024x256 8x3x32x32"
INPUTS = dict(zip(MODELS, INPUTS.split(), strict=True))


def timed(name: str, device: str, seconds: float) -> float:
    """The median of a step with Adam, in a bare loop."""
    from pomology.extras.prediction import operators, own_model

    torch.manual_seed(1)
    sizes = own_model.parse_inputs(INPUTS[name])
    data = [(torch.randint(NODES, one.sizes) if one.whole else torch.randn(one.sizes)).to(device) for one in sizes]
    model, times, end = MODELS[name]().to(device), [], time.perf_counter() + seconds
    optimizer = torch.optim.Adam(model.parameters())
    while time.perf_counter() < end or len(times) < 13:
        begun = time.perf_counter()
        optimizer.zero_grad()
        operators.default_loss(model(*data)).backward()
        optimizer.step()
        getattr(torch, device).synchronize()
        times.append(time.perf_counter() - begun)
    return float(np.median(times[3:]))


def main(run: str, on: str = "cpu", seconds: str = "5") -> None:
    from pomology.extras.prediction import predict, validate

    device, logs, inside = on.replace("gpu", "mps" if torch.mps.is_available() else "cuda"), [], []
    for name, sizes in INPUTS.items():
        made = predict.predict(f"{__file__}:{name}", sizes, on=on, source=run, place=Path(run)).prediction.step_s
        step_s = timed(name, device, float(seconds))
        logs.append(np.log(step_s / made.value))
        inside.append(made.low <= step_s <= made.high)
        low, value, high, measured = (f"{1e3 * each:.2f}" for each in (made.low, made.value, made.high, step_s))
        where = "inside" if inside[-1] else "OUTSIDE"
        print(f"{name:12} predicted {value:>8} ms ({low} to {high}), measured {measured:>8} ms, {where}", flush=True)
    for first_one in range(0, len(logs), 10):
        some = slice(first_one, first_one + 10)
        name = f"models {first_one + 1} to {first_one + 10}"
        print(validate.Errors(name, np.array(logs[some]), np.array(inside[some])).row())


if __name__ == "__main__":
    main(*sys.argv[1:])
