"""Devices of PyTorch, TensorFlow and MLX: one class per framework."""
