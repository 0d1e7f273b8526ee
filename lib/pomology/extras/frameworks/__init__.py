"""The same cases in PyTorch and MLX, and on a processor and a GPU, side by side: their times as ratios."""
