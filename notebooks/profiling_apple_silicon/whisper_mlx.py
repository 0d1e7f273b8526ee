"""The training step of the notebooks on Whisper in MLX, for a case in fp32 without offload."""

from pomology.models import whisper_mlx


def workload(config, lr):
    """Return the workload of a case's settings."""
    return whisper_mlx.workload(config["model"], lr)
