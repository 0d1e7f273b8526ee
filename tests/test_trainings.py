"""Every training in PyTorch and MLX: the files beside the notebooks, and what is shown of both."""

from __future__ import annotations

import fakes
import pytest

from pomology.errors import PomologyError
from pomology.models import trainings
from pomology.report import roofline, side_by_side

# As the articles' models have them; of ResNet-50 torchvision's.
PARAMETERS = {"vae 1": 652_824, "siamese 2": 11_432_897, "dcgan 2": 6_342_272, "simclr 2": 11_497_792}
PARAMETERS |= {"transformer_lm 1 200x2x200": 13_828_478, "resnet50 2 64": 25_557_032, "bert_base 1 8": 108_311_810}
PARAMETERS |= {"mlp 1": 435_402, "cnn 1": 93_322, "lstm 1": 81_674}


def test_a_step_is_counted_with_the_parameters_of_the_articles():
    counted = trainings.work(trainings.rows(list(PARAMETERS)), trained=True)
    assert [work.parameters for work in counted] == list(PARAMETERS.values())
    mlp = counted[list(PARAMETERS).index("mlp 1")]
    # Two operations a weight forward, four backward, but for the gradient of the picture.
    assert mlp.flops == 6 * (784 * 512 + 512 * 64 + 64 * 10) - 2 * 784 * 512


@pytest.mark.parametrize("text", ["vae", "vae 0", "gan 8", "vae x", "vae 8/", "vae 8 a b"])
def test_a_row_that_cannot_be_read_is_one_line(text):
    with pytest.raises(PomologyError, match=f"'{text}' must read `WORKLOAD BATCH`"):
        trainings.rows([text])
    with pytest.raises(PomologyError, match="has no gan_mlx"):
        trainings.load("gan_mlx")


def record(framework, step_s, forward_s=None, backend="cpu", status="ok", **more):
    times = {"step_s": step_s} | ({"forward_s": forward_s} if forward_s else {})
    metrics = {name: fakes.metric(value, 0.99 * value, 1.01 * value) for name, value in times.items()}
    metrics |= {"max_abs_error": fakes.metric(1e-6), "inputs_checksum": fakes.metric(1)}
    config = {"workload": "mlp", "batch_size": 32} | more
    if framework == "tensorflow":
        config.pop("workload")
    about = {"framework": framework, "backend": backend, "config": config, "status": status, "metrics": metrics}
    return fakes.record(experiment="mlp" if framework == "tensorflow" else "trainings", flops_per_step=100, **about)


def test_parts_of_a_step_the_share_of_the_ceiling_and_tensorflow():
    ceiling = fakes.record(experiment="ceilings", backend="cpu", metrics={"flops_per_s": fakes.metric(200, 199, 201)})
    best, keras = roofline.ceilings([ceiling]), [record("tensorflow", 6.0), record("tensorflow", 6.0, batch_size=64)]
    pair = [record("torch", 2.0, 0.5), record("mlx", 1.0, 0.25)]
    table = side_by_side.parts("trainings", pair, best, keras)
    assert [*zip(table.columns[4:], (text.split("×")[0] for text in table.rows[0].cells[4:]), strict=True)] == [
        ("Forward", "2.00"),
        ("Backward, update", "2.00"),
        ("PyTorch's share", "25.0 % (24.6 to 25.4 %)"),
        ("MLX's share", "50.0 % (49.3 to 50.8 %)"),
        ("TensorFlow / PyTorch", "3.00"),
        ("TensorFlow / MLX", "6.00"),
    ]
    (row,) = table.data
    assert (row["ratio_forward"], row["ratio_rest"]) == (2.0, 2.0)  # 0.5 / 0.25, and 1.5 / 0.75
    assert (row["share_torch"], row["share_mlx"]) == (0.25, 0.5)  # of 200: 50 and 100 operations a second
    assert (row["ratio_tensorflow_torch"], row["ratio_tensorflow_mlx"]) == (3.0, 6.0)
    # A rest that is not larger than the intervals has no ratio, nor has what only one computed.
    (row,) = side_by_side.parts("trainings", [record("torch", 2.0, 0.5), record("mlx", 1.0, 0.99)], best, []).data
    assert (row["ratio_rest"], row["ratio_tensorflow_mlx"]) == (None, None) and row["ratio_forward"]
    (row,) = side_by_side.parts("trainings", [pair[0], record("mlx", 1.0, 0.25, status="mismatch")], best, keras).data
    assert row["ratio_forward"] is row["share_mlx"] is None and row["ratio_tensorflow_torch"] == 3.0


def resnet(backend, step_s, status="ok", **config):
    metrics = {"step_s": fakes.metric(step_s, 0.9 * step_s, 1.1 * step_s), "max_abs_error": fakes.metric(1e-6)}
    return fakes.record(config={"model": "resnet18"} | config, backend=backend, status=status, metrics=metrics)


def test_only_the_same_step_is_compared_with_pytorchs():
    torch = [resnet("mps", 3.0, batch_size=8), resnet("cpu", 8.0, batch_size=8), resnet("mps", 5.0, batch_size=16)]
    torch.append(resnet("mps", 1.0, model="vgg16", batch_size=4))
    ours = [resnet("mlx-gpu", 2.0, image_size=size, batch_size=8) for size in (224, 64)]
    ours += [resnet("cpu", 2.0, "too-big", image_size=224, batch_size=8)]
    ours += [resnet("mlx-gpu", 2.0, image_size=224, batch_size=4)]
    table = side_by_side.beside_pytorch(ours, torch)
    assert [row.cells for row in table.rows] == [
        ("GPU", "224", "8", "3.00 s ± 10 %", "2.00 s ± 10 %", "1.50× (1.23 to 1.83×)", "1.0e-06"),
        ("GPU", "64", "8", "not run", "2.00 s ± 10 %", "", "1.0e-06"),
        ("CPU", "224", "8", "8.0 s ± 10 %", "too-big", "", ""),
        ("GPU", "224", "4", "not run", "2.00 s ± 10 %", "", "1.0e-06"),
    ]
    assert [row["ratio"] for row in table.data] == [1.5, None, None, None]
