"""Answers of one line: how Lightning's step on a GPU compares with that on the CPU."""

import pytest
from records import metric, record

from pomology.views import answers


def fitted(seconds, accelerator, backend, repeat=0):
    config = {"model": "perceptron", "accelerator": accelerator, "batch_size": 256}
    times = {"step_s": metric(seconds, 0.99 * seconds, 1.01 * seconds)}
    return record("device_check", times, config, backend=backend, repeat=repeat)


def repeated(cpu_s, gpu_s):
    return [
        fitted(factor * seconds, accelerator, backend, repeat)
        for repeat, factor in enumerate((1.0, 1.02, 0.98))
        for seconds, accelerator, backend in (
            (cpu_s, "cpu", "cpu"),
            (gpu_s, "gpu", "mps"),
            (gpu_s, "auto", "mps"),
        )
    ]


@pytest.mark.parametrize(
    ("cpu_s", "gpu_s", "words"),
    [
        (0.004, 0.002, "With the same Trainer, the GPU is 2.0× faster than the CPU ("),
        (0.001, 0.003, "With the same Trainer, the CPU is 3.0× faster than the GPU ("),
        (0.002, 0.002, "With the same Trainer, no difference between GPU and CPU is established"),
    ],
)
def test_the_accelerators_are_compared_by_the_rule(cpu_s, gpu_s, words):
    assert answers.accelerators(repeated(cpu_s, gpu_s)).startswith(words)


def test_without_a_gpu_nothing_is_compared():
    assert answers.accelerators([fitted(0.001, "cpu", "cpu"), fitted(0.001, "auto", "cpu")]) == ""
    failed = record("device_check", {}, {"accelerator": "gpu"}, status="unsupported")
    assert answers.accelerators([fitted(0.001, "cpu", "cpu"), failed]) == ""


def test_frameworks_that_trained_are_named_by_device_from_the_run_alone():
    records = [record("vae"), record("vae", backend="mps"), record("vae", status="too-big")]
    records.append(record("vae", backend="mlx-gpu", framework="mlx"))
    said = "PyTorch and MLX trained on the GPU of this machine. "
    assert answers.devices(records) == f"{said}PyTorch trained on the CPU of this machine."
    said = "No training ran on a GPU of this machine. PyTorch trained on the CPU of this machine."
    assert answers.devices(records[:1]) == said


def test_features_that_work_are_listed_and_others_with_their_status():
    def case(feature, backend="mps", **more):
        return record("capabilities", config={"feature": feature}, backend=backend, **more)

    records = [case("fp32"), case("fp16"), case("autocast"), case("GradScaler")]
    records += [case("torch.compile", status="unsupported"), case("fp16", "cpu", status="mismatch")]
    assert answers.features(records) == (
        "On the GPU these features work: fp16, autocast and GradScaler; without success "
        "torch.compile (unsupported). On the CPU these features work: none; without success fp16 "
        "(mismatch)."
    )
    ratios = {"fp16": 1.2, "autocast": 1.52, "GradScaler": 0.98}
    timed = [
        record("capabilities", {"speedup": metric(ratio)}, {"feature": feature}, backend="mps")
        for feature, ratio in ratios.items()
    ]
    assert answers.features(timed) == (
        "On the GPU these features work (speed relative to plain fp32): autocast (1.52×), fp16 "
        "(1.20×) and GradScaler (0.980×)."
    )


def test_checks_that_did_not_pass_are_named():
    def check(name, backend="cpu", **more):
        return record("instrument_check", config={"check": name}, backend=backend, **more)

    records = [check("clock"), check("fence", "mps", status="mismatch")]
    records.append(check("against another clock", flags=["too-noisy"]))
    said = answers.checks(records)
    assert said.startswith(
        "1 of 3 checks passed; not: fence on the GPU (mismatch), against another clock on the CPU "
        "(inconclusive). Not measured"
    )
    assert answers.checks(records[:1]).startswith("1 of 1 checks passed. Not measured")
