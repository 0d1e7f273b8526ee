"""The tests of two files in one process of their own: MLX must not share one with PyTorch."""

import apart

# What counts memory goes first.
test_in_mlx = apart.tests_of("mlx_memory_side.py", "mlx_side.py")
