"""Operators on PyTorch's `meta` device: what they return, and their work."""

from __future__ import annotations

from typing import Any, NamedTuple

from pomology.models import cost

MOST_CALLS = 20_000  # that are remembered


class Call(NamedTuple):
    """What an operator does with arguments of some sizes.

    flops: operations. moved: bytes that it reads and writes, 0 if it launches no kernel. in_place:
    whether it changes the contents of its first argument, and nothing else. made: size, stride and
    type of each result if all are new tensors on `meta`, else (). container: of several results, or
    None.
    """

    flops: float
    moved: float
    in_place: bool
    made: tuple[tuple[Any, Any, Any] | None, ...]
    container: type | None


_calls: dict[Any, Call] = {}  # by operator and sizes of arguments


def run(function: Any, args: Any, kwargs: Any) -> tuple[Any, Call]:
    """Run an operator; return its result, and what it did.

    The blocks of a model repeat the same calls. Tensors of the sizes that a call made before are
    made in a fraction of the time of the call.
    """
    key = function, _sizes(args), _sizes(kwargs)
    call = _calls.get(key)
    if call is None:
        result = function(*args, **kwargs)
        if len(_calls) >= MOST_CALLS:
            _calls.clear()
        call = _calls[key] = _called(function, args, kwargs, result)
        return result, call
    if call.in_place:
        return _changed(args), call
    return _again(call) if call.made else function(*args, **kwargs), call


def _sizes(value: Any) -> Any:
    """Return what a call depends on of its arguments, which is not what tensors contain."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_sizes, value))
    if isinstance(value, dict):
        return tuple((name, _sizes(each)) for name, each in value.items())
    return type(value), value  # 1 and 1.0 are equal, and make different tensors


def _called(function: Any, args: Any, kwargs: Any, result: Any) -> Call:
    """Return what a call did that had a result."""
    flops = flops_of(function, args, kwargs, result)
    moved = cost.moved_bytes(function, args, kwargs, result)
    container = type(result) if isinstance(result, (list, tuple)) else None
    results = result if container else [result]
    is_new = _are_new(function, [*args, *kwargs.values()], results)
    made = tuple(map(_like, results)) if is_new else ()
    return Call(flops, moved, _is_in_place(function, args, result), made, container)


def _is_in_place(function: Any, args: Any, result: Any) -> bool:
    """Return whether a call changed the contents of tensors on `meta`, and no size or stride."""
    import torch

    changes = function._schema.name.endswith("_") and torch.Tag.inplace_view not in function.tags
    on_meta = all(each.is_meta for each in cost.tensors(args))
    return changes and on_meta and bool(args) and result is _changed(args)


def _changed(args: Any) -> Any:
    """Return the result of an operator that works in place: what it changed, None for lists."""
    return None if isinstance(args[0], (list, tuple)) else args[0]


def _are_new(function: Any, arguments: Any, results: Any) -> bool:
    """Return whether all results of a call are tensors with a memory of their own, or None.

    Views and tensors that are changed in place are not.
    """
    schema = function._schema
    if any(each.alias_info for each in (*schema.arguments, *schema.returns)):
        return False
    made = cost.tensors(results)
    storages = {*map(cost.storage, made)}
    return (
        bool(made)
        and len(made) == sum(each is not None for each in results)
        and len(storages) == len(made)
        and storages.isdisjoint(map(cost.storage, cost.tensors(arguments)))
        and all(each.is_meta for each in made)
        and all(_nbytes(each) == _nbytes(_new(_like(each))) for each in made)
    )


def _nbytes(tensor: Any) -> int:
    return tensor.untyped_storage().nbytes()


def _like(tensor: Any) -> tuple[Any, Any, Any] | None:
    """Return the size, stride and type of a tensor, None for None."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _new(like: tuple[Any, Any, Any] | None) -> Any:
    """Return a new tensor of a size, a stride and a type, None for None."""
    import torch

    if like is None:
        return None
    size, stride, dtype = like
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _again(call: Call) -> Any:
    """Return new results of a call."""
    made = map(_new, call.made)
    return call.container(made) if call.container else next(made)


def flops_of(function: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return the operations of an operator by PyTorch's formulas; 1 MAC is 2 operations."""
    import torch
    from torch.utils.flop_counter import flop_registry

    packet = function._overloadpacket
    if packet is torch.ops.aten._grouped_mm:
        # Each group of rows has a matrix; or each pair of groups of rows becomes a matrix.
        return 2 * args[0].shape[-2] * args[0].shape[-1] * args[1].shape[-1]
    formula = flop_registry.get(packet)
    return formula(*args, **kwargs, out_val=result) if formula else 0
