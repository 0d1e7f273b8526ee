"""Prepare a workload for its timing: its step must be the one that it declares.

One function per framework, which `Case.prepare` calls. Each builds the model, compares a step with
what the workload declares, verifies it against the CPU on a GPU, and has the first timed step
watched, so that what is timed is what was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pomology.errors import Mismatch
from pomology.models import verify, workload

if TYPE_CHECKING:
    from pomology.experiment.case import Case


def count(case: Case, declared: workload.Workload, size: int) -> workload.Counted | None:
    """Count the step of a workload and ask for its memory; None in MLX, which counts no step.

    size: samples of the step. Raises what `Case.count` raises.
    """
    if case.backend.framework == "mlx":  # `in_mlx` observes a small step, since none can be counted
        from pomology.models import workload_mlx

        case.require_memory(workload_mlx.declared_cost(declared, size))
        return None
    if declared.autocast:
        from pomology.models import autocast

        autocast.require(case)
    counted = workload.count(declared, size, case.backend.backend)
    refuse(workload.differences(declared, counted))
    case.require_memory(counted.cost)
    return counted


def in_torch(
    case: Case,
    declared: workload.Workload,
    counted: workload.Counted,
    put: Callable[[Any, Any], AbstractContextManager] | None,
    verified: int,
) -> tuple[Any, Any]:
    """Return model and optimizer in PyTorch, and have the first timed step watched.

    counted: by `count`. put, verified: see `Case.prepare`. Raises Mismatch.
    """
    from pomology.models import autocast

    model = declared.build()
    refuse(autocast.missing(case.precision, declared.autocast, model))
    if put is None:
        model = case.watch_model(model.to(case.device))
        optimizer = declared.optimizer(model)
        size = counted.batch_size
        verify.workload(case, model, declared, size, optimizer, verified=verified)
    else:
        case.until_end(put(model, case.device))
        case.watch_model(model, offloaded=True)
        if case.backend.kind == "gpu":
            case.note("the step was not verified against the CPU", "unproved")
        optimizer = declared.optimizer(model)
    seen = case.until_first_block(workload.watched(model))
    # Offloaded weights are others than those that get the gradients.
    trained = None if put else case.until_first_block(workload.watched_training(model))

    def compare(_seconds: float) -> None:
        if not seen.training:  # the model's modules were not called in the timing
            return
        refuse(workload.seen_differences(declared, seen, counted.seen))
        if trained:
            refuse(workload.trained_differences(declared, trained))

    case.at_end(compare)
    return model, optimizer


def in_mlx(case: Case, declared: workload.Workload, size: int, verified: int) -> tuple[Any, Any]:
    """Return model and optimizer in MLX, after a small step did what its workload declares.

    size: samples of a timed step. verified: see `Case.prepare`. Raises Mismatch.
    """
    from pomology.models import workload_mlx

    model = case.watch_model(declared.build().train())
    small = workload_mlx.observe(declared, model, size)
    refuse(workload.differences(declared, small))
    optimizer = declared.optimizer(model)
    verify.workload(case, model, declared, size, optimizer, verified=verified)
    seen = case.until_first_block(workload_mlx.watched(model))

    def compare(_seconds: float) -> None:
        refuse(workload.seen_differences(declared, seen))
        refuse(workload_mlx.samples_difference(seen, small, size))

    case.at_end(compare)
    return model, optimizer


def in_keras(
    case: Case, declared: workload.Workload, size: int, reference: workload.Workload | None
) -> tuple[Any, Any]:
    """Return a compiled model and its optimizer, after a step of `fit` did what is declared.

    size: samples of a step. reference: the workload with the CPU's model, if that is built
    otherwise. Raises Mismatch and TooBig.
    """
    from pomology.models import cost_keras, workload_keras

    model = declared.build()
    case.require_memory(cost_keras.keras_workload(model, size))
    case.watch_model(model)
    small = workload_keras.observe(declared, model)
    refuse(workload_keras.differences(declared, small))
    verify.workload(case, model, declared, size, reference=reference)
    seen = case.until_first_block(workload_keras.watched(model))
    case.at_end(lambda _seconds: refuse(workload.seen_differences(declared, seen)))
    return model, model.optimizer


def refuse(differences: Iterable[str]) -> None:
    """Raise Mismatch with the first difference from what a workload declares, if any."""
    for difference in differences:
        raise Mismatch(f"other than declared: {difference}")
