"""Qwen2.5 with LoRA of `lora.ipynb` in MLX, with its training step and transformers' names.

MLX has no layer for LoRA. The loss is of logits in the precision of the model, as in mlx-lm.
"""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.devices.base import DTYPES
from pomology.models import workload_mlx
from pomology.models.workload_mlx import initialized, one_update


class LoRA(nn.Module):
    """A frozen linear layer with adapters in fp32.

    A training begins with B = 0. Here B is random, since the gradient of A would be 0 otherwise.
    """

    def __init__(self, base_layer, rank):
        super().__init__()
        outputs, inputs = base_layer.weight.shape
        self.base_layer = base_layer
        self.lora_A = mx.random.uniform(-1, 1, (rank, inputs)) * inputs**-0.5
        self.lora_B = 0.02 * mx.random.normal((outputs, rank))

    def __call__(self, x):
        change = x @ self.lora_A.T @ self.lora_B.T
        return self.base_layer(x) + (2 * change).astype(x.dtype)


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads = size.heads
        self.kv_heads = size.kv_heads
        self.head_width = size.width // size.heads
        self.q_proj = nn.Linear(size.width, size.width)
        self.k_proj = nn.Linear(size.width, size.kv_heads * self.head_width)
        self.v_proj = nn.Linear(size.width, size.kv_heads * self.head_width)
        self.o_proj = nn.Linear(size.width, size.width, bias=False)
        self.rope = nn.RoPE(self.head_width, traditional=False, base=1e6)

    def split(self, x, heads):
        return x.reshape(*x.shape[:2], heads, self.head_width).transpose(0, 2, 1, 3)

    def __call__(self, x):
        query = self.rope(self.split(self.q_proj(x), self.heads))
        key = self.rope(self.split(self.k_proj(x), self.kv_heads))
        value = self.split(self.v_proj(x), self.kv_heads)
        options = {"scale": self.head_width**-0.5, "mask": "causal"}
        y = mx.fast.scaled_dot_product_attention(query, key, value, **options)
        return self.o_proj(y.transpose(0, 2, 1, 3).flatten(2))


class MLP(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gate_proj = nn.Linear(size.width, size.inner, bias=False)
        self.up_proj = nn.Linear(size.width, size.inner, bias=False)
        self.down_proj = nn.Linear(size.inner, size.width, bias=False)

    def __call__(self, x):
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.self_attn = Attention(size)
        self.mlp = MLP(size)
        self.input_layernorm = nn.RMSNorm(size.width, eps=1e-6)
        self.post_attention_layernorm = nn.RMSNorm(size.width, eps=1e-6)

    def __call__(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen2(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocabulary, size.width)
        self.layers = [Block(size) for _ in range(size.layers)]
        self.norm = nn.RMSNorm(size.width, eps=1e-6)

    def __call__(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.embed_tokens.as_linear(self.norm(x))


def build(size, blocks, precision, rank):
    """Return the model with adapters in the blocks of these numbers."""
    network = Qwen2(size)
    network.set_dtype(getattr(mx, DTYPES[precision]))
    network.freeze()
    for number in blocks:
        attention = network.layers[number].self_attn
        attention.q_proj = LoRA(attention.q_proj, rank)
        attention.v_proj = LoRA(attention.v_proj, rank)
    return network


def loss_function(network, tokens):
    losses = nn.losses.cross_entropy(network(tokens[:, :-1]), tokens[:, 1:])
    return losses.astype(mx.float32).mean()


step = one_update(loss_function)


def workload(size, blocks, precision, *, rank, sequence, lr, trained, cost):
    """Return the training on sequences of so many tokens.

    trained: number of trained parameters. cost: returns the cost of a step of so many sequences.
    """
    one = cost(1)

    def batch(batch_size):
        return (mx.random.randint(0, size.vocabulary, (batch_size, sequence + 1)),)

    return Workload(
        build=lambda: build(size, blocks, precision, rank),
        batch=batch,
        optimizer=lambda network: initialized(optim.AdamW(lr, weight_decay=0.0), network),
        step=step,
        parameters=one.parameters,
        trained=trained,
        flops_per_sample=one.flops,
        optimizer_class="AdamW",
        slots=2,
        adjust=lambda _declared, batch_size, _backend: cost(batch_size),
    )


def prepare(case, training, seed):
    """Return a function that makes a step of a verified model, and returns its loss."""
    mx.random.seed(seed)
    network, optimizer = case.prepare(training)
    case.note("random weights")
    return compiled(case, training, network, optimizer)


def compiled(case, training, network, optimizer):
    """Return a function that makes a step, compiled into one graph as in mlx-lm."""
    step = workload_mlx.compiled(case, training, network, optimizer, always=True)
    (tokens,) = training.batch(case["batch_size"])
    mx.eval(tokens)
    return lambda: step(tokens)
