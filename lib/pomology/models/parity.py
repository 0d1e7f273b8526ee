"""The same computation twice: by two devices or two frameworks, from the same weights and inputs, and compared.

One process holds one framework, so the reference in PyTorch is computed in a process of its own, from arrays.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pomology.devices import tensorflow as devices_tensorflow
from pomology.models import isolated
from pomology.models.cost import Workload

CHANCES = 5  # sets of pictures for gradients of a network with ReLU
PICTURES, MOST_PIXELS = 16, 2**20  # that a CPU computes: of one check, and at the most where a GPU is held against it


def difference(
    values: Any, reference: Any, tolerance: float, relative: bool = False
) -> tuple[float | None, str | None]:
    """The largest absolute difference of two arrays, or dicts of arrays by name, and what is wrong, if anything.

    tolerance, relative: as in `Case.check`. The difference is None where names, shapes or types of elements are others,
    and where values are not finite.
    """
    if not isinstance(reference, dict):
        values, reference = {"": values}, {"": reference}
    if values.keys() != reference.keys():
        return None, f"gives {', '.join(values)}; the reference gives {', '.join(reference)}"
    worst, complaint, excess = 0.0, None, 1.0
    for name in reference:
        pair = (item.detach().cpu() if hasattr(item, "detach") else item for item in (values[name], reference[name]))
        value, expected = map(np.asarray, pair)
        label = f"{name} " if name else ""
        if value.shape != expected.shape:
            return None, f"{label}has shape {value.shape}; the reference has {expected.shape}"
        if value.dtype != expected.dtype:
            return None, f"{label}has elements of {value.dtype}; the reference has {expected.dtype}"
        if not value.size:
            continue
        if not (np.isfinite(value).all() and np.isfinite(expected).all()):
            return None, f"{label}has values that are not finite"
        exact = expected.astype(np.float64)
        apart = np.abs(value.astype(np.float64) - exact)
        allowed = tolerance * (float(np.abs(exact).max()) if relative else 1.0)
        place = np.unravel_index(int(apart.argmax()), apart.shape)
        worst = max(worst, float(apart[place]))
        if (share := apart[place] / max(allowed, 1e-300)) > excess:
            excess, where = share, f"{label}[{', '.join(map(str, place))}] is {value[place]:.6g}, the reference has "
            complaint = f"{where}{expected[place]:.6g}: {apart[place]:.2g} apart, where {allowed:.2g} is allowed"
    return worst, complaint


def _check(case: Any, passes: Callable[[int], dict], chances: int, tolerances: tuple, relative: bool) -> None:
    """Check pairs of passes by what they compare: all but gradients each time, gradients until they agree, of which
    rounding may turn some at ties and bends; what is wrong is so with any pictures. passes: makes them anew, by number.
    """
    for chance in range(chances):
        gradients = {}
        for what, pair in passes(chance).items():
            gradients[what], rest = (
                [{name: made[name] for name in made if name.startswith("gradient") == wanted} for made in pair]
                for wanted in (True, False)
            )
            case.check(*rest, tolerances[0], what, relative=relative)
        if not any(difference(*pair, tolerances[1], relative=True)[1] for pair in gradients.values()):
            break
    for what, pair in gradients.items():
        case.check(*pair, tolerances[1], what, relative=True)


def _as_in_a_step(case: Any, size: tuple[int, ...]) -> int:
    """How many pictures of that size a step of a case has on a GPU, up to what its CPU computes in time, which is said;
    else `PICTURES`."""
    wanted = case.config.get("batch_size", PICTURES) if case.backend.kind == "gpu" else PICTURES
    if (count := min(wanted, max(2, MOST_PIXELS // math.prod(size)))) < wanted:
        case.note(f"held against the CPU with {count} of the {wanted:,} pictures of a step", "unproved")
    return count


def keras_pass(model: Any, images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """One forward and backward pass of a Keras classifier, compiled into a graph as training is, without dropout.

    Returns, as tensors, `outputs` (probabilities) and the gradient of the mean cross-entropy for every weight,
    `gradient 0` and on. It runs on the device of the `tf.device` around it.
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
    return {"outputs": outputs} | {f"gradient {number}": gradient for number, gradient in enumerate(gradients)}


def check_keras(case: Any, model: Any, build: Callable[[str], Any], reference: str) -> None:
    """Compare a Keras model on the case's device, before anything is timed, with two references for the same weights.

    Always with `torch_reference.MODELS[reference]` on the CPU; on a GPU also, with as many pictures as a step has, with
    the model of `build("cpu")` on TensorFlow's CPU, which shows whether framework or device is to blame. Outputs
    (probabilities of ten classes) may differ by 0.001, each gradient by 0.001 of its largest element. Raises what
    `case.check` raises. Pictures are noise: real ones are full of ties in pooling, where rounding decides which way a
    gradient goes. Noise may have one, too.
    """
    size = model.input_shape[1:]

    def passes(seed: int) -> dict[str, tuple[dict, dict]]:
        generator = np.random.default_rng(seed)
        images = generator.random((_as_in_a_step(case, size), *size), dtype=np.float32)
        labels, pairs = generator.integers(0, 10, len(images)), {}
        if case.backend.kind == "gpu":
            values = keras_pass(model, images, labels)
            with case.backend.on_cpu():
                same = build("cpu")
                same.set_weights(model.get_weights())
                pairs["GPU against CPU"] = values, keras_pass(same, images, labels)
        images, labels = images[:PICTURES], labels[:PICTURES]
        values = keras_pass(model, images, labels)
        case.ran_on(values["outputs"])
        pairs["TensorFlow against PyTorch"] = values, in_torch(reference, model.get_weights(), images, labels)
        return pairs

    _check(case, passes, 2, (1e-3, 1e-3), relative=False)


def mlx_pass(model: Any, images: np.ndarray, labels: np.ndarray, compiled: bool = False) -> dict[str, np.ndarray]:
    """One forward and backward pass of a classifier in MLX, in training mode, which leaves the model as it was.

    compiled: by `mx.compile`. Returns, by PyTorch's names and in its layouts, `outputs` (logits); the gradient of the
    mean cross-entropy for every weight, `gradient NAME`; and what each batch normalisation keeps, `after NAME`.
    """
    import mlx.core as mx
    import mlx.nn as nn

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
    arrays = {f"gradient {name}": array for name, array in _named(gradients).items()}
    arrays |= {f"after {name}": array for name, array in _named(after).items() if "running" in name}
    return {"outputs": np.array(outputs)} | arrays


def _named(tree: Any) -> dict[str, np.ndarray]:
    """Parameters of MLX by PyTorch's names, in its layouts: outputs x inputs x height x width.

    MLX says `layers.4.layers.layers.0.weight` for `4.layers.0.weight`, since there `nn.Sequential` is seen in the name.
    """
    from mlx.utils import tree_flatten

    return {
        re.sub(r"\blayers\.(?=\d)", "", name): np.array(array.transpose(0, 3, 1, 2) if array.ndim == 4 else array)
        for name, array in tree_flatten(tree)
    }


def seeded_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Weights for convolutions, normalisations and linear layers, made by no framework; no number is there twice.

    shapes: by PyTorch's names, in its layouts. Each bias of a normalisation is 2.5 of its weights away from zero, up in
    one channel and down in the next, so that few values lie where ReLU bends and rounding alone turns gradients.
    """
    generator, weights = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if len(shape) == 4:
            array = generator.normal(0, math.sqrt(2 / (shape[0] * math.prod(shape[2:]))), shape)
        elif len(shape) == 2:
            array = generator.uniform(-1, 1, shape) / math.sqrt(shape[1])
        elif name.endswith("running_mean"):
            array = generator.normal(0, 0.1, shape)
        elif not name.endswith("bias"):  # weights and running variances of normalisations
            array = generator.uniform(0.2, 0.4, shape)
        elif (scale := weights[name[:-4] + "weight"]).ndim == 1:
            array = 2.5 * scale * np.where(np.arange(shape[0]) % 2, -1, 1)
        else:
            array = generator.uniform(-0.1, 0.1, shape)
        weights[name] = array.astype(np.float32)
    return weights


def _seed(model: Any, seed: int) -> dict[str, np.ndarray]:
    """Load the weights of `seeded_weights` into a model of MLX; returns them by PyTorch's names, in its layouts."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    weights = seeded_weights({name: array.shape for name, array in _named(model.parameters()).items()}, seed)
    names = [name for name, _ in tree_flatten(model.parameters())]
    arrays = [mx.array(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array) for array in weights.values()]
    model.load_weights(list(zip(names, arrays, strict=True)))
    return weights


def check_mlx(
    case: Any, model: Any, reference: str, seed: int, image_size: int = 64, batch_size: int = 2, compiled: bool = False
) -> None:
    """Compare a network in MLX, before anything is timed, with `vision.VISION[reference]` of PyTorch on the CPU.

    Both get `seeded_weights`, which the model keeps, and the same pictures of noise; so does MLX's own CPU, against
    which a GPU is held with as many and as large pictures as a step has. Outputs and running statistics may differ by
    0.0003 of the largest element of each, gradients by 0.01: ten times what they do where all convolutions err by a
    hundred times fp32's rounding. Where that takes a value across the bend of a ReLU it is more, so gradients get
    several chances. In TF32 30 times as much is allowed: simulated, it errs by 0.0004 and mostly below 0.3. Raises what
    `case.check` raises.
    """
    weights = _seed(model, seed)

    def noise(chance: int, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng([seed, chance])
        images = generator.normal(size=(count, size, size, 3)).astype(np.float32)
        return images, generator.integers(0, 1000, count)

    def against_pytorch(chance: int) -> dict[str, tuple[dict, dict]]:
        given = noise(chance, batch_size, image_size)
        return {"MLX against PyTorch": (mlx_pass(model, *given, compiled), in_torch(reference, weights, *given))}

    def against_cpu(chance: int) -> dict[str, tuple[dict, dict]]:
        size = case.config.get("image_size", image_size)
        given = noise(chance, _as_in_a_step(case, (size, size, 3)), size)
        values = mlx_pass(model, *given, compiled)
        with case.backend.on_cpu():
            return {"GPU against CPU": (values, mlx_pass(model, *given))}

    times = 30 if case.precision == "tf32" else 1
    for passes in (against_pytorch, against_cpu)[: 1 + (case.backend.kind == "gpu")]:
        _check(case, passes, CHANCES, (times * 3e-4, times * 1e-2), relative=True)


def check_residual_mlp(case: Any, model: Any, seed: int) -> None:
    """Compare the memory notebooks' network in MLX, before anything is timed, with PyTorch's on the CPU.

    Outputs and gradients, from `seeded_weights` and 64 random inputs, may differ by 0.0001 of the largest element of
    each. The model's own weights come back. Raises what `case.check` raises.
    """
    kept = model.parameters()
    weights, generator = _seed(model, seed), np.random.default_rng(seed)
    inputs = generator.normal(size=(64, weights["0.linear.weight"].shape[1])).astype(np.float32)
    labels = generator.integers(0, len(list(weights.values())[-1]), 64)
    values, expected = mlx_pass(model, inputs, labels), in_torch("residual_mlp", weights, inputs, labels)
    model.update(kept)
    case.check(values, expected, 1e-4, "MLX against PyTorch", relative=True)


_known: dict[bytes, dict[str, np.ndarray]] = {}  # every batch size of a notebook asks for the same


def in_torch(reference: str, weights: list | dict, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """What `torch_reference.torch_pass` gives for weights by name or in Keras's order, from a process of its own.

    Raises PomologyError in one line if that fails.
    """
    named = weights if isinstance(weights, dict) else {str(number): array for number, array in enumerate(weights)}
    given = (reference, named, images, labels)
    key = hashlib.sha256(pickle.dumps(given)).digest()
    if key not in _known:
        _known[key] = _call("torch_pass", *given)
    return dict(_known[key])


def torch_workloads(reference: str, shapes: list[tuple[int, int]]) -> list[tuple[Workload, int]]:
    """What `vision.VISION[reference]` costs for each (pictures, pixels a side), counted by PyTorch in its own process.

    Of a training step with SGD and momentum; and the multiply-adds of one picture's forward pass.
    """
    return _call("vision_workloads", reference, shapes)


def _call(function: str, reference: str, *given: Any) -> Any:
    what = f"the reference in PyTorch, {reference!r},"
    return isolated.call(what, f"pomology.models.torch_reference:{function}", reference, *given)
