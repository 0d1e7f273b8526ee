"""Analytic cost of a step, compared with sums by hand."""

import pytest
import torch
from torch import nn

from pomology.models.cost import Cost, workload

FLOAT = 4  # bytes


def test_an_lstm():
    time, batch, size, hidden = 11, 3, 13, 17
    found = workload(
        lambda: nn.LSTM(size, hidden),
        lambda lstm: lstm(torch.empty(time, batch, size))[0].sum().backward(),
    )
    assert found.parameters == 4 * hidden * (size + hidden + 2)
    inputs = 2 * time * batch * 4 * hidden * size
    state = 2 * batch * 4 * hidden * hidden  # of one time step
    # Neither the inputs nor the first state have a gradient.
    assert found.flops == 3 * (inputs + time * state) - inputs - state


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 3))


def backward(module: nn.Module) -> None:
    module(torch.empty(5, 10)).sum().backward()


INPUT, HIDDEN = 5 * 10 * FLOAT, 5 * 7 * FLOAT


def test_two_layers_by_hand():
    found = workload(two_layers, backward)
    parameters = 10 * 7 + 7 + 7 * 3 + 3
    # The hidden layer is kept once: the backward passes of ReLU and of the second layer share it.
    flops = 2 * 5 * (2 * 70 + 3 * 21)
    assert found == Cost(parameters, flops, 2 * FLOAT * parameters, INPUT + HIDDEN)


def test_the_memory_of_a_released_graph_counts_once():
    def one_after_another(module):
        backward(module)
        backward(module)

    def side_by_side(module):
        (module(torch.empty(5, 10)).sum() + module(torch.empty(5, 10)).sum()).backward()

    one = workload(two_layers, one_after_another)
    assert one.saved_bytes == INPUT + HIDDEN
    assert one.flops == 2 * workload(two_layers, backward).flops
    assert workload(two_layers, side_by_side).saved_bytes == 2 * (INPUT + HIDDEN)


SHAPE = BATCH, HEADS, ROWS, WIDTH = 2, 3, 50, 8


class Attention(nn.Module):
    def __init__(self, dropout=0.0, doubled=True):
        super().__init__()
        self.inputs = nn.ParameterList(torch.empty(SHAPE) for _ in range(3))
        self.dropout, self.doubled = dropout, doubled

    def forward(self):
        inputs = self.inputs
        if self.doubled:  # as weights that attention keeps are counted elsewhere
            inputs = [2 * weight for weight in inputs]
        return nn.functional.scaled_dot_product_attention(*inputs, dropout_p=self.dropout).sum()


NUMBERS, LINES = BATCH * HEADS * ROWS * WIDTH, BATCH * HEADS * ROWS


@pytest.mark.parametrize(
    ("backend", "dropout", "fused"),
    [("mps", 0.0, False), ("cpu", 0.0, True), ("cpu", 0.1, False), ("cuda", 0.1, True)],
)
def test_fused_attention_keeps_no_matrices_and_has_as_many_flops(backend, dropout, fused):
    """Fused, it keeps q, k, v, the output and one float per row; unfused, the softmax's matrix."""
    work = workload(lambda: Attention(dropout), lambda m: m().backward(), backend=backend)
    matrix = LINES * ROWS
    if fused:
        assert work.saved_bytes == FLOAT * (4 * NUMBERS + LINES)
    else:
        assert work.saved_bytes >= FLOAT * (3 * NUMBERS + matrix)
    assert work.flops == 6 * 2 * matrix * WIDTH  # two matmuls forward, four backward


# Bytes that a step reads and writes


def moved(build, step, slots=0, backend="mps") -> int:
    return workload(build, step, slots, backend).moved_bytes


def without_gradients(*shape, dtype=torch.float32):
    def step(model):
        with torch.no_grad():
            model(torch.empty(*shape, dtype=dtype))

    return step


def views(model):
    x = torch.empty(6, 4, dtype=model.weight.dtype)
    x.view(4, 6).t().reshape(2, 12)[:1].unsqueeze(0).expand(9, 1, 12)


def convolution():
    return nn.Conv2d(3, 4, 3, padding=1, bias=False)


def linear(inputs=10, outputs=7, bias=False):
    return lambda: nn.Linear(inputs, outputs, bias=bias)


IMAGES = 2 * 3 * 64 + 108 + 2 * 4 * 64 + 3 * 108  # read, kernel, result, update
# Forward: bias, input, weight and output. The sum reads 35 elements and writes one. Its gradient of
# one element is expanded to all outputs' gradients. Backward: weight and bias. Adam reads weight,
# gradient and two moments, and writes three of them.
TRAINED = (7 + 50 + 70 + 35) + (35 + 1) + 1 + (1 + 50 + 70) + (1 + 7) + 7 * 77
COPIED = 3 * 16 + 48  # views are free; a reshape of a transposed matrix copies it
# An embedding reads the rows that it returns and indices of 8 bytes, not the whole table.
GIVEN = 5 * 2 + 2 * 5 * 8 + 3 * 8000


@pytest.mark.parametrize(
    ("build", "step", "slots", "floats"),
    [
        (linear(bias=True), lambda m: m(torch.empty(5, 10)).sum().backward(), 2, TRAINED),
        (linear(), lambda m: None, 0, 3 * 70),
        (linear(), lambda m: None, 2, 7 * 70),
        (convolution, without_gradients(2, 3, 8, 8), 0, IMAGES),
        (linear(4, 4), views, 0, COPIED),
        (lambda: linear(4, 4)().half(), views, 0, COPIED / 2),
        (lambda: nn.Embedding(1000, 8), without_gradients(5, dtype=torch.long), 0, GIVEN),
    ],
)
def test_the_bytes_of_a_step_by_hand(build, step, slots, floats):
    assert moved(build, step, slots) == FLOAT * floats
