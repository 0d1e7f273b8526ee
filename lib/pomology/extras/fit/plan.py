"""What is trained, and how: the options that change a step's memory or work."""

from __future__ import annotations

from typing import NamedTuple

METHODS = ("full", "lora", "qlora")
PRECISIONS = ("fp32", "bf16", "fp16")
IN_8_BITS = ("adamw8bit", "paged-adamw8bit")
OPTIMIZERS = ("adamw", "sgd", *IN_8_BITS)
LOSSES = ("default", "in-place", "chunked", "fused")


class Plan(NamedTuple):
    """A fine-tuning.

    amp: weights, gradients and states are in fp32, and the passes in `precision`, by autocast.
    targets: names of LoRA's matrices, separated by commas, or "all-linear"; "": the framework's.
    layers: with LoRA, from the last one on; 0: the framework's. upcast: peft's
    `prepare_model_for_kbit_training`, which keeps in fp32 what QLoRA does not quantize. loss:
    "in-place" overwrites the logits with their gradient;
    "chunked" computes the logits of some tokens at a time; "fused" their gradients, too.
    accumulation: passes before an update, each of `batch` sequences. small_experts: with QLoRA in
    PyTorch, experts are in 4 bits, as in transformers 4, where each was a Linear layer; MLX's are.
    """

    method: str = "lora"
    rank: int = 8
    sequence: int = 2048
    batch: int = 1
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: bool = False
    framework: str = "torch"
    targets: str = ""
    layers: int = 0
    amp: bool = False
    upcast: bool = False
    dropout: float = 0.0
    loss: str = "default"
    accumulation: int = 1
    small_experts: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step, of all its passes."""
        return self.batch * self.sequence * self.accumulation

    def of(self, model: str) -> str:
        """Return what is done with a model, in words: `LoRA of gpt2`, `training gpt2`."""
        words = {"full": "training", "lora": "LoRA of", "qlora": "QLoRA of"}[self.method]
        return f"{words} {model}"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a trained weight and its gradient: adapters and weights of autocast are fp32."""
        return 4 if self.amp or self.method != "full" or self.precision == "fp32" else 2
