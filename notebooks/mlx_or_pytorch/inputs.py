"""Random inputs and optimizer settings of all workloads of this folder.

Inputs have the shapes of the published data, in PyTorch's layout, and are equal in all frameworks.
Pixels and sounds are floats; classes and words are integers.
"""

import numpy as np

# Cases at the published sizes: workload, batch sizes, and size of the model or of its input.
ROWS = [
    "vae 128/5120",
    "siamese 64/1024",
    "dcgan 64/1024",
    "simclr 128",
    "transformer_lm 20 200x2x200",
    "transformer_lm 20 500x2x500",
    "transformer_lm 200 500x4x500",
    "transformer_lm 200 500x6x1024",
    "transformer_lm 200 500x10x1024",
    "whisper 4 whisper-medium",
    "bert_base 64 128",
    "bert_base 16 512",
    "resnet50 64 224",
    "mlp 32/128/512/1024",
    "cnn 32/128/512/1024",
    "lstm 32/128/512/1024",
]
# Cases that are small enough for every machine and both frameworks.
COMMON = [
    "vae 128",
    "mlp 32/1024",
    "cnn 32",
    "lstm 32",
    "siamese 4",
    "dcgan 1",
    "simclr 8",
    "transformer_lm 1 200x2x200",
    "whisper 1 whisper-smoke",
    "bert_base 1 16x1",
    "resnet50 2 64",
]
# Workload -> learning rate, weight decay, and optimizer states per weight.
OPTIMISERS = {
    "vae": (1e-3, 0.0, 2),
    "siamese": (1.0, 0.0, 2),
    "dcgan": (2e-4, 0.0, 2),
    "transformer_lm": (20.0, 0.0, 0),
    "simclr": (0.06, 5e-4, 1),
    "whisper": (1e-5, 0.0, 2),
    "bert_base": (1e-4, 0.0, 2),
    "resnet50": (0.01, 0.0, 1),
    "mlp": (1e-3, 0.0, 2),
    "cnn": (1e-3, 0.0, 2),
    "lstm": (1e-3, 0.0, 2),
}
# Differences between the two implementations, as notes of a case.
DIFFERS = {
    "dcgan_mlx": "generates images once for each of its two networks; PyTorch does it once",
    "lstm_torch": "its LSTM has a second bias, which stays 0 and is not trained",
}


def batch(
    generator: np.random.Generator, workload: str, batch_size: int, size: str = ""
) -> tuple[np.ndarray, ...]:
    """Return the arrays of one step; size is that of the model or of its input."""
    numbers = [int(number) for number in size.split("x") if number.isdigit()]

    def pixels(*shape, low=0.0):
        return generator.uniform(low, 1.0, (batch_size, *shape)).astype(np.float32)

    def classes(count, *shape):
        return generator.integers(0, count, shape or batch_size)

    match workload:
        case "vae":
            return (pixels(1, 28, 28),)
        case "siamese":
            return 255 * pixels(1, 28, 28), 255 * pixels(1, 28, 28), classes(2).astype(np.float32)
        case "dcgan":
            return (pixels(3, 64, 64, low=-1.0),)
        case "transformer_lm":  # 35 words of each text, and the next word of each
            words = classes(numbers[3] if len(numbers) > 3 else 33_278, 36, batch_size)
            return words[:-1], words[1:].reshape(-1)
        case "simclr":  # two views of each image, normalized to a standard deviation of 1
            return tuple(generator.normal(size=(2, batch_size, 3, 32, 32)).astype(np.float32))
        case "whisper":  # 30 seconds in 80 mel bands, and 32 tokens
            return generator.normal(size=(batch_size, 80, 3000)).astype(np.float32), classes(
                50_000, batch_size, 32
            )
        case "bert_base":  # the second number of the size is the layers
            return classes(28_996, batch_size, numbers[0]), np.ones(batch_size, np.int64)
        case "resnet50":
            return pixels(3, *numbers, *numbers), classes(1000)
        case "mlp" | "cnn" | "lstm":
            return pixels(1, 28, 28), classes(10)
    raise ValueError(f"inputs.py has no inputs for {workload!r}")
