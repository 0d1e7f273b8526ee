"""The share of a model's weights in which a wrong gradient would not be seen, of all trainings.

`python -P tests/models/unseen.py torch` (or mlx, tensorflow) prints a line for each training, of
which the table in docs/how-it-measures.md is made. A weight counts if its gradient may differ by
more than `verify.SEEN`, by three draws of rounding, which a correct device needs at worst. What a
whole step would hide is compared in blocks, as in a case.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PRECISIONS = ("fp32", "bf16")
ROOT = Path(__file__).parents[2]


def unseen(case: Any, step: Any, size: int) -> tuple[float, float]:
    """Return the share of weights that stay unseen in the whole step, and after blocks."""
    from pomology.models import verify

    verification = verify.Verification(case, step)
    shares = []
    with step:
        reference = step.reference(size, 0)
        for way in ("step", "blocks"):
            compare = step.deviations if way == "step" else step.in_blocks
            if way == "blocks" and (compare is None or shares[0] <= verify.UNSEEN_WEIGHTS):
                break
            noise = verify.ROUNDING[case.precision]
            draws = [compare(reference, noise, draw) for draw in range(verify.DRAWS)]
            allowed = verification._tolerances(draws[0])
            for deviations in draws:
                for name, each in deviations.items():
                    allowed[name] = max(allowed[name], verify.FACTOR[way] * each.difference)
            shares.append(verification._unseen_weights(draws[0], allowed))
    return shares[0], shares[-1]


def in_torch(names: list[str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield a training, a precision, and both shares."""
    import test_verify_deep as deep
    import torch

    from pomology.models import verify_torch

    for name in names or deep.WORKLOADS:
        for precision in PRECISIONS:
            if precision == "bf16" and name in deep.BINARY:
                continue
            declared, size, _ = deep.of(name, precision)
            case = deep.Case(precision)
            with deep.rehearsal.entered():
                torch.manual_seed(1)
                model = declared.build().to(case.device)
                optimizer = declared.optimizer(model)
                step = verify_torch.StepOnBothDevices(case, model, declared, optimizer)
                yield name, precision, *unseen(case, step, min(2, size))


def in_mlx(names: list[str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield a training, a precision, and both shares."""
    import mlx_devices

    from pomology.models import verify_mlx

    for name in names or mlx_devices.TWINS:
        for precision in PRECISIONS:
            training, model, size = mlx_devices.prepared(name, precision)
            case = mlx_devices.Case(precision, mlx_devices.Device(precision=precision))
            step = verify_mlx.StepOnBothDevices(case, model, training, ())
            yield name, precision, *unseen(case, step, min(2, size))


def in_tensorflow(names: list[str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield a training, a precision, and both shares."""
    from notebook_code import definitions

    from pomology.models import verify_keras

    network = definitions("mlp_cnn_lstm")["network"]
    backend = SimpleNamespace(
        kind="gpu", backend="metal", framework="tensorflow", tf32=False, tf32_products=False
    )
    for name in names or ("mlp", "cnn", "lstm"):
        declared = network(name, "cpu")
        case = SimpleNamespace(backend=backend, config={}, precision="fp32")
        step = verify_keras.StepOnBothDevices(case, declared.build(), declared, declared)
        yield name, "fp32", *unseen(case, step, 2)


if __name__ == "__main__":
    framework, *chosen = sys.argv[1:]
    sys.path[:0] = [str(ROOT / folder) for folder in ("lib", "tests", "tests/models", "setup")]
    os.environ["POMOLOGY_TESTS_INSIDE"] = "1"
    from pomology.devices import find

    find.prepare(framework)
    frameworks = {"torch": in_torch, "mlx": in_mlx, "tensorflow": in_tensorflow}
    for row in frameworks[framework](chosen):
        print(json.dumps(row), flush=True)
