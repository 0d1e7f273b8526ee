"""What stands on `meta` for what PyTorch does on a device: autocast, and an LSTM whose time steps are fused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pomology.errors import PomologyError

# By name, what PyTorch's autocast runs in half, and what in fp32 ("Autocast Op Reference" of torch.amp, for CUDA).
_HALF = re.compile(
    r"linear|__r?matmul__|matmul|bmm|mm|mv|add(mm|bmm|mv)|baddbmm|einsum|tensordot|prelu|conv(_transpose)?[123]d"
    r"|scaled_dot_product_attention|multi_head_attention_forward|(lstm|gru|rnn_tanh|rnn_relu)_cell|gru|rnn_(tanh|relu)"
)
_FULL = re.compile(
    r"(log_)?softmax|softmin|(layer|group)_norm|norm|cosine_similarity|cdist|sum|prod|cum(sum|prod)|exp|log(1p|2|10)?"
    r"|pow|__r?pow__|reciprocal|rsqrt|softplus|erfinv|(nll|mse|(smooth_)?l1|huber|soft_margin|cosine_embedding)_loss"
    r"|cross_entropy|kl_div|binary_cross_entropy_with_logits|triplet_margin_loss"
)


def autocast(name: str) -> Any:
    """As torch.autocast, which knows no `meta`: converts what each function is given; a weight once a step."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _pytree

    half, weights = getattr(torch, name), {}
    if half == torch.float32:
        return contextlib.nullcontext()

    def converted(item: Any, dtype: Any) -> Any:
        if not isinstance(item, torch.Tensor) or not item.is_floating_point() or item.dtype == dtype:
            return item
        if not isinstance(item, torch.nn.Parameter):
            return item.to(dtype)
        if id(item) not in weights:
            weights[id(item)] = item.to(dtype)
        return weights[id(item)]

    class Autocast(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = function.__name__
            dtype = half if _HALF.fullmatch(name) else torch.float32 if _FULL.fullmatch(name) else None
            given = (args, kwargs or {})
            if dtype is not None:
                given = _pytree.tree_map(lambda item: converted(item, dtype), given)
            return function(*given[0], **given[1])

    return Autocast()


@contextlib.contextmanager
def fused_lstm(name: str, note: Callable[[int, int, int], None]) -> Iterator[None]:
    """On the meta device, let an LSTM be one operator forward and one backward: a product and a kernel a time step.

    Its matrices are used once for each place in each sequence. Backward that is twice, but the input may need no
    gradient, nor the first state. For the backward pass it keeps its input, and seven vectors a place: four gates, both
    states, and tanh of one. name: of the dtype that its numbers are converted to, where that is half. note: gets, of
    each pass, operations, bytes moved, and launches.
    """
    from unittest import mock

    import torch
    from torch.utils import _pytree

    def size(*tensors: Any) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    def numbers(tensors: Sequence[Any]) -> int:
        return sum(tensor.numel() for tensor in tensors if tensor.ndim == 2)

    class LSTM(torch.autograd.Function):
        @staticmethod
        def forward(context, directions, batch_first, data, state, cell, *weights):
            batch, times = data.shape[:2] if batch_first else data.shape[1::-1]
            stack, _, hidden = cell.shape  # a layer for each direction
            output = data.new_empty(*data.shape[:2], state.shape[-1] * directions)
            kept = data.new_empty(7 * stack, times, batch, hidden)
            context.save_for_backward(data, kept, state, cell, *weights)
            context.known = directions, stack, times, batch
            into = weights[:: len(weights) // stack]  # what multiplies the input of a layer, at all times at once
            context.weights_moved = times * size(*weights) - (times - 1) * size(*into)
            moved = context.weights_moved + size(data, state, cell, output, kept)
            flops = 2 * times * batch * numbers(weights)
            note(flops, moved, stack * (2 * times + 1))
            return output, torch.empty_like(state), torch.empty_like(cell)

        @staticmethod
        def backward(context, *given):
            directions, stack, times, batch = context.known
            data, kept, state, cell, *weights = context.saved_tensors
            wanted, each = context.needs_input_grad[2:], len(weights) // stack
            gradients = [torch.empty_like(t) for t in (data, state, cell, *weights)]
            flops = 2 * times * batch * numbers(weights) * (1 + any(wanted[3:]))
            flops -= 0 if wanted[0] else 2 * times * batch * numbers(weights[: directions * each : each])
            flops -= 0 if wanted[1] else 2 * batch * numbers(weights[1::each])
            moved = context.weights_moved + size(data, kept, *given, *gradients)
            note(flops, moved, stack * (2 * times + 3))
            return None, None, *(g if wants else None for g, wants in zip(gradients, wanted, strict=True))

    def lstm(data, states, weights, *more):
        if isinstance(states, torch.Tensor):
            raise PomologyError("an LSTM of packed sequences is not counted: its work depends on their lengths")
        _, _, _, _, both, batch_first = more
        if name != "float32":
            data, states, weights = _pytree.tree_map(lambda t: t.to(getattr(torch, name)), (data, states, weights))
        return LSTM.apply(1 + both, batch_first, data, *states, *weights)

    with mock.patch.object(torch._VF, "lstm", lstm):
        yield
