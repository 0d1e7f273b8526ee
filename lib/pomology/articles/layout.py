"""How the articles print each experiment: titles, settings, columns, what a figure draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pomology.format import gigabytes, gigaflops, milliseconds, quantity, quantity_per_s, seconds, signed, significant


@dataclass(frozen=True)
class Derived:
    """Published times of other experiments, which a figure shows as FLOP/s: the work on paper over the time.

    flops: of what was timed. config: the settings of the panel that they stand in. only: those of the published times
    that are meant, where not all are.
    """

    experiment: str
    metric: str
    flops: float
    config: dict[str, Any]
    only: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """How an article prints an experiment: its title, and the headings of the settings that tell rows apart.

    claims_of: other experiments whose claims no notebook of their own would show.
    """

    title: str
    settings: dict[str, str]
    # What is not an epoch has columns of its own: heading -> (metric, how its value is shown).
    columns: dict[str, tuple[str, Callable[[float], str]]] = field(default_factory=dict)
    figure: str = "points"  # its kind: one of report.figures.draw.KINDS
    metric: str = "epoch_s"  # what the figure draws
    axis: str = "seconds per epoch (less is faster; hollow: computing alone)"
    show: Callable[[float], str] = lambda value: seconds(value)  # of the figure's values
    unit: float = 1.0  # of the figure's axis, in the metric's own
    time: str = ""  # what ratios of devices compare, where it is not the metric of the figure
    derived: tuple[Derived, ...] = ()
    claims_of: tuple[str, ...] = ()
    together: tuple[str, ...] = ()  # settings that share a panel of the figure, and stand in its labels
    experiment: str = ""  # the article's, where several notebooks share one, each with a framework of its own
    everything: bool = False  # lays together all that a run has measured
    lays: tuple[str, ...] = ()  # notebooks of other experiments that it makes tables of its own from
    parts: dict[str, str] = field(default_factory=dict)  # label -> metric: several marks of a case in the figure
    own: tuple[str, ...] = ()  # metrics that only the article's own model shows: those of a smaller one would mislead
    apart: dict[str, str] = field(default_factory=dict)  # heading -> framework and backend that it has the times of
    proof: str = ""  # how two frameworks are known to compute the same, where that is not against one result


# What experiments that are compared by their rate have in common.
_ACHIEVED: dict[str, Any] = {
    "metric": "flops_per_s",
    "axis": "achieved GFLOP/s (more is faster)",
    "unit": 1e9,
    "show": gigaflops,
}

_PASSES = {
    "Forward": ("forward_s", lambda value: seconds(value)),
    "Backward": ("backward_s", lambda value: seconds(value)),
    "Update": ("update_s", lambda value: seconds(value)),
}


def _whole_training(title: str, **more: Any) -> Layout:
    """Of an article that times a whole training, several epochs with validation."""
    return Layout(
        title,
        {"batch_size": "Batch size"},
        columns={
            "Training time": ("fit_s", lambda value: seconds(value)),
            "Time per epoch": ("epoch_s", lambda value: seconds(value)),
            "Test accuracy": ("accuracy", lambda value: f"{100 * value:.1f} %"),
            "Memory": ("footprint_peak_bytes", lambda value: gigabytes(value)),
            "Power": ("power_w", lambda value: f"{significant(value, 2)} W"),
        },
        metric="fit_s",
        axis="seconds of the whole training (less is faster)",
        **more,
    )


def _products(how: str) -> Layout:
    return Layout(
        f"Matrix products {how}",
        {"operation": "Operation", "shape": "Shape", "wrt": "Gradient of", "precision": "Precision"},
        columns={
            "One call": ("kernel_s", lambda value: seconds(value)),
            "Throughput": ("throughput", lambda value: f"{significant(value)} products/s"),
            "Achieved": ("flops_per_s", gigaflops),
            "Moved at the least": ("bytes_per_s", lambda value: f"{significant(value / 1e9)} GB/s"),
            "Largest error": ("max_abs_error", lambda value: f"{value:.1e}"),
        },
        figure="products",
        metric="flops_per_s",
        time="kernel_s",
        axis="achieved GFLOP/s (more is faster)",
        unit=1e9,
        experiment="blas",
    )


def _ceilings(how: str) -> Layout:
    return Layout(
        f"What this machine can do at its best, {how}",
        {"operation": "Operation", "shape": "Shape", "precision": "Precision"},
        columns={
            "One call": ("kernel_s", lambda value: seconds(value)),
            "Operations": ("flops_per_s", lambda value: quantity_per_s(value, "FLOP/s")),
            "Memory": ("bytes_per_s", lambda value: quantity_per_s(value, "B/s")),
        },
        metric="flops_per_s",
        time="kernel_s",
        axis="achieved GFLOP/s (more is faster)",
        unit=1e9,
        show=lambda value: quantity_per_s(value, "FLOP/s"),
    )


def _launches(how: str) -> Layout:
    return Layout(
        f"Table 6: launching a kernel {how}",
        {},
        columns={
            "Cold launch (ms)": ("launch_cold_s", lambda value: milliseconds(value)),
            "Follow-up launch (ms)": ("launch_s", lambda value: milliseconds(value)),
            "Without waiting": ("launch_stream_s", lambda value: milliseconds(value)),
            "After a pause": ("launch_paused_s", lambda value: milliseconds(value)),
            "Compiling": ("compile_s", lambda value: milliseconds(value)),
        },
        metric="launch_s",
        axis="milliseconds of a follow-up launch (less is faster)",
        unit=1e-3,
        show=lambda value: milliseconds(value),
        experiment="kernel_launch",
    )


def _memory(how: str) -> Layout:
    return Layout(
        f"Memory and page faults over time {how}",
        {"load": "Load"},
        columns={
            "Footprint": ("footprint_end_bytes", lambda value: quantity(value, "B")),
            "At most": ("footprint_peak_bytes", lambda value: quantity(value, "B")),
            "Footprint a step": ("footprint_slope_bytes", lambda value: signed(value, "B")),
            "Page faults a step": ("page_faults_slope", lambda value: signed(value, "")),
            "Page-ins": ("page_ins", lambda value: f"{value:,.0f}"),
            "Swap grew by": ("swap_bytes", lambda value: signed(value, "B")),
            "Resident a step": ("resident_slope_bytes", lambda value: signed(value, "B")),
            "Allocated": ("allocated_end_bytes", lambda value: quantity(value, "B")),
            "Allocated at most": ("allocated_peak_bytes", lambda value: quantity(value, "B")),
            "Allocated a step": ("allocated_slope_bytes", lambda value: signed(value, "B")),
            "Reserved": ("reserved_end_bytes", lambda value: quantity(value, "B")),
            "Step": ("step_s", lambda value: seconds(value)),
        },
        figure="memory",
        metric="footprint_slope_bytes",
        time="step_s",
        axis="memory, and page faults, after each step",
        experiment="memory_over_time",
    )


LAYOUTS = {
    "dcgan": Layout("Experiment 1: DCGAN on LSUN classrooms, 64 × 64 pixels", {"batch_size": "Batch size"}),
    "siamese": Layout("Experiment 2: Siamese network on MNIST", {"batch_size": "Batch size"}),
    "transformer_lm": Layout(
        "Experiment 3: Transformer language model on WikiText-2",
        {"batch_size": "Batch size", "embedding_size": "Embedding", "layers": "Layers", "hidden_size": "Hidden"},
    ),
    "vae": Layout("Experiment 4: variational autoencoder on MNIST", {"batch_size": "Batch size"}),
    "simclr": Layout(
        "SimCLR on CIFAR-10, ResNet-18: time per epoch, training and validation",
        {
            "epochs": "Epochs run",
            "batch_size": "Batch size",
            "workers": "Workers",
            "persistent": "Persistent",
            "augmentation": "Augmentation by the",
        },
        together=("epochs",),
    ),
    "model_sizes": Layout(
        "Three models at 224 × 224 pixels: their sizes, and a training step of each",
        {"model": "Model", "batch_size": "Batch size"},
        columns={
            "Parameters": ("parameters", lambda value: f"{value:,}"),
            "Multiply-adds of a picture": ("forward_macs", lambda value: f"{significant(value / 1e9, 4)} billion"),
            "Training step": ("step_s", lambda value: seconds(value)),
            "Pictures": ("throughput", lambda value: f"{significant(value)} a second"),
            "Achieved": ("flops_per_s", gigaflops),
        },
        **_ACHIEVED,
        time="step_s",
        # 1,406 steps of VGG-16 with batch normalisation and 10 classes at 2.964 TFLOP, their loading included.
        derived=(Derived("rasbt_vgg16", "epoch_s", 4167.3e12, {"model": "vgg16", "batch_size": 32}),),
    ),
    "capabilities": Layout(
        "What this device can do: precision and compilation",
        {"feature": "Feature"},
        columns={
            "Works": ("status", str),
            "Training step": ("step_s", lambda value: seconds(value)),
            "Times as fast as plain fp32": ("speedup", lambda value: f"{significant(value)}×"),
        },
        metric="speedup",
        time="step_s",
        axis="times as fast as plain fp32 on the same device (more is faster)",
        show=lambda value: f"{significant(value)}×",
    ),
    "device_check": Layout(
        "CPU against GPU: the networks of PyTorch's chart, and one Lightning Trainer with three accelerators",
        {"model": "Model", "mode": "Mode", "accelerator": "Accelerator", "batch_size": "Batch size"}
        | {"versus": "Against"},
        # No seconds: a smaller batch than the chart's has others.
        columns={
            "Steps": ("throughput", lambda value: f"{significant(value)} a second"),
            "Achieved": ("flops_per_s", gigaflops),
            "Times as fast": ("speedup", lambda value: f"{significant(value)}×"),
        },
        **_ACHIEVED,
        together=("accelerator", "batch_size"),
    ),
    "mlp": _whole_training("MLP on Fashion-MNIST", claims_of=("hardware",)),
    "cnn": _whole_training("CNN on Fashion-MNIST"),
    "lstm": _whole_training("LSTM on Fashion-MNIST"),
    "blas_torch": _products("with PyTorch"),
    "blas_mlx": _products("with MLX"),
    "blas": _products("with PyTorch and with MLX"),
    "energy": Layout(
        "Table 5: energy of a training step",
        {"model": "Model", "batch_size": "Batch size"},
        columns={
            "Energy per step (J)": ("energy_j_per_step", lambda value: f"{significant(value)} J"),
            "For a TFLOP": ("energy_j_per_tflop", lambda value: f"{significant(value)} J"),
            "Power": ("power_w", lambda value: f"{significant(value)} W"),
            "Power at rest": ("power_rest_w", lambda value: f"{significant(value)} W"),
            "Step": ("step_s", lambda value: seconds(value)),
        },
        metric="energy_j_per_step",
        time="step_s",
        axis="joules per step (less is better)",
        show=lambda value: f"{significant(value)} J",
    ),
    "kernel_launch_torch": _launches("with PyTorch"),
    "kernel_launch_mlx": _launches("with MLX"),
    "whisper_pretraining": Layout(
        "Figures 3 and 4: pre-training Whisper, scenarios 1 and 3",
        {"model": "Model", "batch_size": "Batch size", "precision": "Precision", "scenario": "Scenario"},
        columns={
            "Achieved": ("flops_per_s", gigaflops),
            **_PASSES,
            "Pass": ("pass_s", lambda value: seconds(value)),
            "Parameters": ("parameters", lambda value: f"{value:,}"),
            "A step": ("step_flops", lambda value: f"{significant(value / 1e12)} TFLOP"),
            "Memory": ("footprint_peak_bytes", lambda value: gigabytes(value)),
            "Reserved on the GPU": ("reserved_peak_bytes", lambda value: gigabytes(value)),
        },
        **_ACHIEVED,
        time="step_s",
        own=("forward_s", "backward_s", "update_s", "pass_s"),
        together=("precision",),
        parts={"forward": "forward_flops_per_s", "backward": "backward_flops_per_s"},
    ),
    "whisper_finetuning": Layout(
        "Figure 3(b)(1): fine-tuning Whisper, scenario 2",
        {"model": "Model", "batch_size": "Batch size", "offload": "Offload", "recompute": "Recompute"},
        columns={
            **_PASSES,
            "Achieved": ("flops_per_s", gigaflops),
            "On the device": ("needed_bytes", lambda value: gigabytes(value)),
            "On the host": ("host_bytes", lambda value: gigabytes(value)),
            "Losses differ by": ("max_abs_error", lambda value: f"{value:.1e}"),
        },
        **_ACHIEVED,
        time="step_s",
        together=("offload",),
        own=("forward_s", "backward_s", "update_s"),
        claims_of=("gpt2_finetuning",),
    ),
    "gpt2_finetuning": Layout(
        "Figure 3: fine-tuning GPT-2 on IMDB, with LoRA and without",
        {"model": "Model", "batch_size": "Batch size", "lora": "LoRA", "offload": "Offload"},
        columns={
            **_PASSES,
            "Forward achieves": ("forward_flops_per_s", gigaflops),
            "Backward achieves": ("backward_flops_per_s", gigaflops),
            "Memory": ("footprint_peak_bytes", lambda value: gigabytes(value)),
        },
        **_ACHIEVED,
        time="step_s",
        together=("offload",),
        parts={"forward": "forward_flops_per_s", "backward": "backward_flops_per_s"},
        own=("forward_s", "backward_s", "update_s"),
    ),
    "model_memory": Layout(
        "Table 2: parameters, and the memory of training with AdamW",
        {"model": "Model", "batch_size": "Batch size"},
        columns={
            "Parameters (M)": ("parameters", lambda value: f"{value / 1e6:,.3f}"),
            "Theoretical memory (GiB)": ("theoretical_bytes", lambda value: f"{value / 2**30:.3f}"),
            "Kept, attention written out": ("saved_written_bytes", lambda value: f"{value / 2**30:.2f} GiB"),
            "Kept, attention fused": ("saved_fused_bytes", lambda value: f"{value / 2**30:.2f} GiB"),
            "Needed here": ("needed_bytes", lambda value: f"{value / 2**30:.1f} GiB"),
            "Free here": ("free_bytes", lambda value: f"{value / 2**30:.1f} GiB"),
        },
        metric="theoretical_bytes",
        axis="GB of weights, gradients and two moments",
        unit=1e9,
        show=lambda value: f"{value / 1e9:.2f} GB",
        together=("batch_size",),
    ),
    "costs": Layout(
        "Table 1: memory, computing power and price",
        {"model": "Model", "batch_size": "Batch size"},
        columns={
            "RAM (GB)": ("memory_bytes", lambda value: f"{value / 2**30:.0f}"),
            "Computing power (TFLOPS)": ("peak_flops_per_s", lambda value: significant(value / 1e12)),
            "Launch price (USD)": ("launch_price_usd", lambda value: f"{value:,.0f}"),
            "Pass": ("pass_s", lambda value: seconds(value)),
            "Achieved": ("flops_per_s", gigaflops),
        },
        figure="costs",
        metric="flops_per_s",
        axis="GFLOP/s for a dollar (more is better)",
        unit=1e9,
        show=gigaflops,
        own=("pass_s",),
        lays=("gpt2_pretraining_torch", "gpt2_pretraining_mlx", "energy"),
    ),
    "memory_torch": _memory("with PyTorch"),
    "memory_mlx": _memory("with MLX"),
    "memory_over_time": _memory("with PyTorch and with MLX"),
    "instrument_check": Layout("What may be trusted on this machine", {"check": "Check"}),
    "ceilings": _ceilings("with PyTorch"),
    "ceilings_mlx": _ceilings("with MLX"),
    "roofline": Layout(
        "Roofline: where each experiment lies under this machine's ceilings",
        {},
        figure="roofline",
        metric="flops_per_s",
        axis="GFLOP/s over operations a byte, under this machine's roofs; %: the share of the roof above a point",
        everything=True,
    ),
    "summary": Layout(
        "Summary: all devices on one axis, and what they reach of their peaks",
        {},
        figure="summary",
        metric="flops_per_s",
        axis="TFLOP/s, more is faster. Upright: the peak, the published one of an article's device, the best product "
        "of the same run of this machine; %: the best share of it",
        everything=True,
    ),
}


def _pretraining(how: str) -> Layout:
    # Operations of a step by batch size, of the model that the article's times imply.
    flops = {8: 40.057e12, 4: 20.028e12, 2: 10.014e12}
    article = {"model": "gpt2-large", "context_size": 1024}
    return Layout(
        f"Table 4: a pass of pre-training GPT-2-large without a trainer, {how}",
        {"model": "Model", "batch_size": "Batch size", "context_size": "Context"},
        columns={"Achieved": ("flops_per_s", gigaflops)},
        **_ACHIEVED,
        time="pass_s",
        own=("pass_s",),
        derived=tuple(
            Derived("gpt2_pretraining", "pass_s", count, article | {"batch_size": batch}, {"batch_size": batch})
            for batch, count in flops.items()
        ),
        apart={"MLX": "mlx", "PyTorch with MPS": "torch mps", "PyTorch with CUDA or on a CPU": "torch"},
        proof="The same: on a small model made by the same code, from equal weights and tokens, both gave the logits, "
        "the gradients and the losses of AdamW's first steps that a reference in float64 gives",
        experiment="gpt2_pretraining",
    )


LAYOUTS |= {
    "gpt2_pretraining_torch": _pretraining("with PyTorch"),
    "gpt2_pretraining_mlx": _pretraining("with MLX"),
    "gpt2_pretraining": _pretraining("with PyTorch and with MLX"),
}

LAYOUTS["model_sizes_mlx"] = replace(
    LAYOUTS["model_sizes"],
    title="Three models at 224 × 224 pixels: their sizes; and a training step of ResNet-18 with MLX",
    settings={"model": "Model", "image_size": "Pixels", "batch_size": "Batch size"},
    columns={heading: one for heading, one in LAYOUTS["model_sizes"].columns.items() if heading != "Pictures"},
    derived=(Derived("rasbt_vgg16", "epoch_s", 4167.3e12, {"model": "vgg16", "image_size": 224, "batch_size": 32}),),
    experiment="model_sizes",
)


def experiment_of(notebook: str) -> str:
    """The article's experiment that a notebook is about; mostly they have one name."""
    return (LAYOUTS[notebook].experiment if notebook in LAYOUTS else "") or notebook


def notebooks_of(experiment: str) -> list[str]:
    """All notebooks that measure an experiment of an article."""
    return [name for name in LAYOUTS if experiment_of(name) == experiment] or [experiment]
