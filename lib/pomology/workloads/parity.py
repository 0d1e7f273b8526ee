"""The same computation twice: by two devices or two frameworks, from the same weights and inputs, and compared.

One process holds one framework, so a reference in PyTorch comes from a process of its own, which reads and writes
arrays: `python -m pomology.workloads.parity NAME IN.npz OUT.npz`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pomology.devices import tensorflow as devices_tensorflow
from pomology.errors import PomologyError
from pomology.workloads.cost import Workload, workload
from pomology.workloads.vision import VISION


def difference(
    values: Any, reference: Any, tolerance: float, relative: bool = False
) -> tuple[float | None, str | None]:
    """The largest absolute difference of two arrays, or dicts of arrays by name, and what is wrong, if anything.

    tolerance: the largest absolute difference allowed; with `relative`, as a share of each reference array's largest
    absolute element. The difference is None where there is none to be told (other names, shapes or types of elements,
    values that are not finite).
    """
    if not isinstance(reference, dict):
        values, reference = {"": values}, {"": reference}
    if list(values) != list(reference):
        return None, f"gives {', '.join(values)}; the reference gives {', '.join(reference)}"
    worst, complaint, excess = 0.0, None, 1.0
    for name in reference:
        one, other = _array(values[name]), _array(reference[name])
        label = f"{name} " if name else ""
        if one.shape != other.shape:
            return None, f"{label}has shape {one.shape}; the reference has {other.shape}"
        if one.dtype != other.dtype:
            return None, f"{label}has elements of {one.dtype}; the reference has {other.dtype}"
        if not one.size:
            continue
        if not (np.isfinite(one).all() and np.isfinite(other).all()):
            return None, f"{label}has values that are not finite"
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        allowed = tolerance * (float(np.abs(other.astype(np.float64)).max()) if relative else 1.0)
        place = np.unravel_index(int(apart.argmax()), apart.shape)
        worst = max(worst, float(apart[place]))
        if apart[place] > allowed and (share := apart[place] / max(allowed, 1e-300)) > excess:
            excess = share
            complaint = (
                f"{label}[{', '.join(map(str, place))}] is {one[place]:.6g}, the reference has {other[place]:.6g}: "
                f"{apart[place]:.2g} apart, where {allowed:.2g} is allowed"
            )
    return worst, complaint


def _array(item: Any) -> np.ndarray:
    return item.detach().cpu().numpy() if hasattr(item, "detach") else np.asarray(item)


# Keras ----------------------------------------------------------------------------------------------------------------


def keras_pass(
    model: Any, images: np.ndarray, labels: np.ndarray, saw: Callable[[Any], None] = lambda outputs: None
) -> dict[str, np.ndarray]:
    """One forward and backward pass of a Keras classifier on TensorFlow, compiled into a graph as training is.

    Dropout is off. Returns `outputs` (probabilities) and the gradient of the mean cross-entropy for every weight,
    `gradient 0` and on. It runs on the device of the `tf.device` around it; saw: gets the outputs as the tensor that
    they are, which knows where it was computed.
    """
    import keras

    tensorflow = devices_tensorflow.load()
    weights = [weight.value for weight in model.trainable_variables]

    @tensorflow.function(jit_compile=False)
    def both(images, labels):
        with tensorflow.GradientTape() as tape:
            outputs = model(images, training=False)
            loss = tensorflow.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, outputs))
        return outputs, tape.gradient(loss, weights)

    outputs, gradients = both(tensorflow.constant(images), tensorflow.constant(labels))
    saw(outputs)
    found = {"outputs": outputs.numpy()}
    return found | {f"gradient {number}": gradient.numpy() for number, gradient in enumerate(gradients)}


def check_keras(
    case: Any, model: Any, build: Callable[[str], Any], twin: str, classes: int = 10, tolerance: float = 1e-3
) -> None:
    """Compare a Keras model on the case's device, before anything is timed, with two references for the same weights.

    The model of PyTorch that has the name `twin`, in a process of its own on the CPU, always; and on a GPU the model of
    `build("cpu")` on TensorFlow's CPU, which tells whether framework or device is to blame. tolerance: of the outputs
    (probabilities) the largest absolute difference, of each gradient the same as a share of its largest element. Raises
    what `case.check` raises.

    The pictures are 16 of uniform noise: in real ones whole areas are of one grey, and where two values tie in a
    pooling, rounding decides which way the gradient goes. Noise may tie too, so gradients that disagree (after outputs
    that agree) get a second chance with other pictures; what is wrong is so with any.
    """
    for seed, last in ((0, False), (1, True)):
        generator = np.random.default_rng(seed)
        images = generator.random((16, *model.input_shape[1:]), dtype=np.float32)
        labels = generator.integers(0, classes, 16)
        values = keras_pass(model, images, labels, case.ran_on)
        references = {}
        if case.backend.kind == "gpu":
            with case.backend.on_cpu():
                same = build("cpu")
                same.set_weights(model.get_weights())
                references["GPU against CPU"] = keras_pass(same, images, labels)
        references["TensorFlow against PyTorch"] = in_torch(twin, model.get_weights(), images, labels)
        for what, reference in references.items():
            case.check({"outputs": values["outputs"]}, {"outputs": reference["outputs"]}, tolerance, what)
        pairs = {what: (_gradients(values), _gradients(reference)) for what, reference in references.items()}
        if last or all(difference(*pair, tolerance, relative=True)[1] is None for pair in pairs.values()):
            for what, pair in pairs.items():
                case.check(*pair, tolerance, what, relative=True)
            return


def _gradients(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in found.items() if name != "outputs"}


# MLX ------------------------------------------------------------------------------------------------------------------


def mlx_pass(model: Any, images: np.ndarray, labels: np.ndarray, compiled: bool = False) -> dict[str, np.ndarray]:
    """One forward and backward pass of a convolutional classifier in MLX, as training does it: in training mode.

    images: N x H x W x 3. compiled: by `mx.compile`. Returns the logits as `outputs`; the gradient of the mean
    cross-entropy for every weight, `gradient NAME`; and what each batch normalisation keeps of the pass, `after NAME`.
    Names and layouts are PyTorch's. The model is left as it was.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    kept = model.parameters()

    def loss(images, labels):
        logits = model(images)
        return nn.losses.cross_entropy(logits, labels, reduction="mean"), logits

    both = nn.value_and_grad(model.train(), loss)
    if compiled:
        both = mx.compile(both, inputs=model.state, outputs=model.state)
    (_, outputs), gradients = both(mx.array(images), mx.array(labels))
    after = model.parameters()
    mx.eval(outputs, gradients, after)
    model.update(kept)
    found = {"outputs": np.array(outputs)}
    for word, tree in (("gradient", gradients), ("after", after)):
        for name, array in tree_flatten(tree):
            if word == "gradient" or "running" in name:
                found[f"{word} {torch_name(name)}"] = _torch_layout(np.array(array))
    return dict(sorted(found.items()))


def torch_name(name: str) -> str:
    """`4.layers.0.weight` of MLX's `layers.4.layers.layers.0.weight`: there `nn.Sequential` is seen in the name."""
    return re.sub(r"\blayers\.(?=\d)", "", name)


def _torch_layout(array: np.ndarray) -> np.ndarray:
    # Convolutions are outputs x height x width x inputs in MLX, outputs x inputs x height x width in PyTorch.
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 else array


def _mlx_layout(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def seeded_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Weights for a network of convolutions, batch normalisations and linear layers, made by no framework.

    shapes: by PyTorch's names, in its layouts. Every number is another, so that none can be taken for another; and each
    bias of a normalisation is 2.5 of its weights away from zero, up in one channel and down in the next, so that few
    values lie where ReLU bends: there rounding alone decides whether a gradient is let through.
    """
    generator, found = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if len(shape) == 4:
            outputs, _, height, width = shape
            array = generator.normal(0, math.sqrt(2 / (outputs * height * width)), shape)
        elif len(shape) == 2:
            array = generator.uniform(-1, 1, shape) / math.sqrt(shape[1])
        elif name.endswith("running_mean"):
            array = generator.normal(0, 0.1, shape)
        elif name.endswith("bias") and found[name[:-4] + "weight"].ndim == 1:
            array = 2.5 * found[name[:-4] + "weight"] * np.where(np.arange(shape[0]) % 2, -1, 1)
        elif name.endswith("bias"):
            array = generator.uniform(-0.1, 0.1, shape)
        else:  # weights and running variances of normalisations
            array = generator.uniform(0.2, 0.4, shape)
        found[name] = array.astype(np.float32)
    return found


CHANCES = 5


def check_mlx(
    case: Any,
    model: Any,
    twin: str,
    seed: int,
    image_size: int = 64,
    batch_size: int = 2,
    tolerance: float = 3e-4,
    gradient_tolerance: float = 1e-2,
    compiled: bool = False,
) -> None:
    """Compare a network in MLX, before anything is timed, with `models.VISION[twin]` of PyTorch on the CPU.

    Both get the weights of `seeded_weights`, which the model keeps, and the same pictures of noise, `image_size` high
    and wide. tolerance: of outputs and running statistics the largest difference, as a share of the largest element of
    each; gradient_tolerance: the same of every gradient. Where the results of all convolutions err by one part in
    100,000, a hundred times fp32's rounding, outputs shift by as little, and gradients by up to one part in a thousand:
    a tenth of what is allowed at the most.
    Raises what `case.check` raises.

    It shifts gradients by more where it takes a value across the bend of a ReLU. So gradients that disagree, after
    outputs that agree, get more chances with other pictures; what is wrong is so with any.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    arrays = {name: _torch_layout(np.array(array)) for name, array in tree_flatten(model.parameters())}
    weights = seeded_weights({torch_name(name): array.shape for name, array in arrays.items()}, seed)
    model.load_weights([(name, mx.array(_mlx_layout(weights[torch_name(name)]))) for name in arrays])
    for chance in range(CHANCES):
        generator = np.random.default_rng([seed, chance])
        images = generator.normal(size=(batch_size, image_size, image_size, 3)).astype(np.float32)
        labels = generator.integers(0, 1000, batch_size)
        both = mlx_pass(model, images, labels, compiled), in_torch(twin, weights, images, labels)
        forward, backward = (
            [{name: found[name] for name in found if name.startswith("gradient") == wanted} for found in both]
            for wanted in (False, True)
        )
        what = "MLX against PyTorch"
        case.check(*forward, tolerance, what, relative=True)
        if chance == CHANCES - 1 or difference(*backward, gradient_tolerance, relative=True)[1] is None:
            case.check(*backward, gradient_tolerance, what, relative=True)
            return


def check_residual_mlp(case: Any, model: Any, seed: int, batch_size: int = 64, tolerance: float = 1e-4) -> None:
    """Compare the memory notebooks' network in MLX, before anything is timed, with PyTorch's on the CPU.

    Probabilities and all gradients, from the weights of `seeded_weights` and the same random numbers; the model's own
    weights come back afterwards. tolerance: the largest difference allowed, as a share of the largest element of each.
    Raises what `case.check` raises.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    kept = model.parameters()
    shapes = {torch_name(name): array.shape for name, array in tree_flatten(kept)}
    if set(shapes) != set(RESIDUAL_MLP):
        raise PomologyError(f"check_residual_mlp: the model has {', '.join(sorted(shapes))}")
    weights = seeded_weights({name: shapes[name] for name in RESIDUAL_MLP}, seed)
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(batch_size, shapes["0.linear.weight"][1])).astype(np.float32)
    labels = generator.integers(0, shapes[RESIDUAL_MLP[-1]][0], batch_size)

    def loss(inputs, labels):
        logits = model(inputs)
        return nn.losses.cross_entropy(logits, labels, reduction="mean"), mx.softmax(logits, axis=1)

    model.load_weights([(name, mx.array(weights[torch_name(name)])) for name, _ in tree_flatten(kept)])
    (_, outputs), gradients = nn.value_and_grad(model, loss)(mx.array(inputs), mx.array(labels))
    mx.eval(outputs, gradients)
    model.update(kept)
    named = {torch_name(name): np.array(array) for name, array in tree_flatten(gradients)}
    values = {"outputs": np.array(outputs)}
    values |= {f"gradient {number}": named[name] for number, name in enumerate(RESIDUAL_MLP)}
    reference = in_torch("residual_mlp", [weights[name] for name in RESIDUAL_MLP], inputs, labels)
    case.check(values, {name: reference[name] for name in values}, tolerance, "MLX against PyTorch", relative=True)


# PyTorch --------------------------------------------------------------------------------------------------------------


def in_torch(
    twin: str, weights: list[np.ndarray] | dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """What `torch_pass` gives, or `vision_pass` where weights have names, from a process of its own.

    Raises PomologyError if that process fails.
    """
    named = weights if isinstance(weights, dict) else dict(enumerate(weights))
    arrays = {f"weight {name}": weight for name, weight in named.items()}
    arrays |= {"images": images, "labels": labels}
    key = hashlib.sha256(twin.encode())
    for array in arrays.values():
        key.update(np.ascontiguousarray(array).tobytes())
    if key.hexdigest() not in _known:
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder, "given.npz"), Path(folder, "found.npz")
            np.savez(given, **arrays)
            _other_process(twin, str(given), str(found))
            with np.load(found) as arrays:
                _known[key.hexdigest()] = dict(arrays)
    return dict(_known[key.hexdigest()])


_known: dict[str, dict[str, np.ndarray]] = {}  # every batch size of a notebook asks for the same


def _other_process(twin: str, *given: str) -> str:
    command = [sys.executable, "-m", "pomology.workloads.parity", twin, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().split("\n") or [""])[-1]
        raise PomologyError(f"the PyTorch twin {twin!r} ended with status {done.returncode}: {last}")
    return done.stdout


def torch_workloads(twin: str, shapes: list[tuple[int, int]]) -> list[tuple[Workload, int]]:
    """What `models.VISION[twin]` costs, counted by PyTorch in a process of its own, for each (pictures, pixels a side).

    Of a training step with SGD and momentum; and the multiply-adds of one picture's forward pass. Raises PomologyError
    if that process fails.
    """
    found = json.loads(_other_process(twin, json.dumps(shapes)))
    return [(Workload(**step), macs) for step, macs in found]


def torch_pass(twin: str, weights: list[np.ndarray], images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The same as `keras_pass`, by a model written in PyTorch's way, from weights in the layout of Keras.

    twin: `mlp`, `cnn` or `lstm`, the models of article 004, whose gradients come in the layout of Keras too; or
    `residual_mlp`, that of the memory notebooks, in the order of `RESIDUAL_MLP`.
    """
    import torch
    from torch.nn import functional as F

    known = {"mlp": (_mlp, _mlp_names), "cnn": (_cnn, _cnn_names), "lstm": (_lstm, _lstm_names)}
    build, named = (known | {"residual_mlp": (_residual_mlp, _residual_mlp_names)})[twin]
    leaves = [torch.from_numpy(weight).requires_grad_() for weight in weights]
    model = build().eval()
    logits = torch.func.functional_call(model, named(leaves), torch.from_numpy(images), strict=True)
    F.cross_entropy(logits, torch.from_numpy(labels).long()).backward()
    found = {"outputs": logits.softmax(1).detach().numpy()}
    return found | {f"gradient {number}": leaf.grad.numpy() for number, leaf in enumerate(leaves)}


def vision_pass(
    twin: str, weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """The same as `mlx_pass`, by `models.VISION[twin]` on the CPU, from weights and running statistics by name."""
    import torch
    from torch.nn import functional as F

    model = VISION[twin]().train()
    counters = {name: count for name, count in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()} | counters)
    logits = model(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous())
    F.cross_entropy(logits, torch.from_numpy(labels).long()).backward()
    found = {"outputs": logits.detach().numpy()}
    found |= {f"gradient {name}": weight.grad.numpy() for name, weight in model.named_parameters()}
    found |= {f"after {name}": kept.numpy() for name, kept in model.named_buffers() if name not in counters}
    return dict(sorted(found.items()))


def _vision_workload(twin: str, batch_size: int, image_size: int) -> tuple[Workload, int]:
    import torch
    from torch.nn import functional as F

    def forward(model):
        with torch.no_grad():
            model(torch.empty(1, 3, image_size, image_size))

    def step(model):
        images = torch.empty(batch_size, 3, image_size, image_size)
        F.cross_entropy(model(images), torch.zeros(batch_size, dtype=torch.long)).backward()

    return workload(VISION[twin], step, optimizer_slots=1), workload(lambda: VISION[twin]().eval(), forward).flops // 2


def _mlp() -> Any:
    from torch import nn

    layers = [nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _mlp_names(leaves: list) -> dict[str, Any]:
    # Keras keeps a matrix as inputs x outputs, PyTorch as outputs x inputs.
    first, first_bias, second, second_bias, third, third_bias = leaves
    return {
        "1.weight": first.T,
        "1.bias": first_bias,
        "4.weight": second.T,
        "4.bias": second_bias,
        "6.weight": third.T,
        "6.bias": third_bias,
    }


def _cnn() -> Any:
    from torch import nn

    class CNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
            self.third = nn.Conv2d(64, 64, 3)
            self.hidden, self.last = nn.Linear(576, 64), nn.Linear(64, 10)
            self.pool = nn.MaxPool2d(2)

        def forward(self, images):
            x = images.permute(0, 3, 1, 2)  # channels come last in TensorFlow
            x = self.pool(self.first(x).relu())
            x = self.pool(self.second(x).relu())
            x = self.third(x).relu().permute(0, 2, 3, 1).flatten(1)  # the dense layer counts channels last too
            return self.last(self.hidden(x).relu())

    return CNN()


def _cnn_names(leaves: list) -> dict[str, Any]:
    names = {}
    for layer, kernel, bias in zip(
        ("first", "second", "third", "hidden", "last"), leaves[::2], leaves[1::2], strict=True
    ):
        # height x width x inputs x outputs there, outputs x inputs x height x width here
        names[f"{layer}.weight"] = kernel.permute(3, 2, 0, 1) if kernel.dim() == 4 else kernel.T
        names[f"{layer}.bias"] = bias
    return names


def _lstm() -> Any:
    from torch import nn

    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.last = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

        def forward(self, images):
            _, (hidden, _) = self.lstm(images)
            return self.last(hidden[-1])

    return LSTM()


def _lstm_names(leaves: list) -> dict[str, Any]:
    # Both order the gates as input, forget, cell, output. PyTorch has two biases where Keras has one.
    kernel, recurrent, bias, last, last_bias = leaves
    return {
        "lstm.weight_ih_l0": kernel.T,
        "lstm.weight_hh_l0": recurrent.T,
        "lstm.bias_ih_l0": bias,
        "lstm.bias_hh_l0": bias.new_zeros(bias.shape),
        "last.weight": last.T,
        "last.bias": last_bias,
    }


RESIDUAL_BLOCKS, RESIDUAL_WIDTH, RESIDUAL_CLASSES = 16, 32, 10
RESIDUAL_MLP = (
    *(
        f"{number}.{part}"
        for number in range(RESIDUAL_BLOCKS)
        for part in ("norm.weight", "norm.bias", "linear.weight", "linear.bias")
    ),
    *(f"{RESIDUAL_BLOCKS}.weight", f"{RESIDUAL_BLOCKS}.bias"),
)


def _residual_mlp() -> Any:
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(RESIDUAL_WIDTH), nn.Linear(RESIDUAL_WIDTH, RESIDUAL_WIDTH)

        def forward(self, numbers):
            return numbers + F.gelu(self.linear(self.norm(numbers)))

    blocks = [Block() for _ in range(RESIDUAL_BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(RESIDUAL_WIDTH, RESIDUAL_CLASSES))


def _residual_mlp_names(leaves: list) -> dict[str, Any]:
    return dict(zip(RESIDUAL_MLP, leaves, strict=True))


def _main(twin: str, given: str, found: str = "") -> None:
    if not found:
        counted = [_vision_workload(twin, *shape) for shape in json.loads(given)]
        print(json.dumps([(dataclasses.asdict(step), macs) for step, macs in counted]))
        return
    with np.load(given) as arrays:
        weights = {name.removeprefix("weight "): arrays[name] for name in arrays if name.startswith("weight ")}
        both = arrays["images"], arrays["labels"]
        if twin in VISION:
            np.savez(found, **vision_pass(twin, weights, *both))
        else:
            np.savez(found, **torch_pass(twin, list(weights.values()), *both))


if __name__ == "__main__":
    _main(*sys.argv[1:])
