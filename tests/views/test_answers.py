"""Answers of one line, and sentences that open the answer of a notebook."""

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


def launched(backend="cpu", repeat=0, **more):
    counts = {"launch_cold_s": (9e-5, 5), "launch_s": (7e-6, 1000), "launch_paused_s": (2e-4, 10)}
    times = {name: metric(value).replace(n=n) for name, (value, n) in counts.items()}
    return record("kernel_launch", times, {}, backend=backend, repeat=repeat, **more)


def test_first_following_and_paused_launches_have_units_and_counts():
    said = answers.launches([launched()])
    assert said == (
        "On the Apple M9 CPU in PyTorch the first launch of a process takes 90.0 µs (n = 5), a "
        "follow-up launch 7.00 µs (n = 1,000) and a launch after a pause 0.200 ms (n = 10). Those "
        "of a CPU are function calls."
    )
    on_gpu = answers.launches([launched("mps", repeat) for repeat in (0, 1)])
    assert "On the Apple M9 GPU in PyTorch" in on_gpu and "function calls" not in on_gpu
    assert "takes 90.0 µs (n = 5 in each of 2 repeats)" in on_gpu
    both = answers.launches([launched(), launched("mps")])
    assert both.startswith("On the Apple M9 GPU")
    assert answers.launches([launched(profile="smoke")]) == ""
    assert answers.launches([record("kernel_launch", {}, {}, status="error")]) == ""


def test_a_case_without_joules_has_the_reason():
    why = "on Linux only root may read the energy counters of a CPU"
    config = {"model": "small transformer", "batch_size": 4}
    unread = record("energy", {"step_s": metric(0.1)}, config, absent={"power_w": why})
    large = record("energy", {}, {"model": "whisper-medium", "batch_size": 4}, status="too-big")
    assert answers.without_joules([large, unread]) == (
        f"There are no joules of the Apple M9 CPU: {why}."
    )
    joules = {"energy_j_per_step": metric(3.0, unit="J")}
    assert answers.without_joules([large, record("energy", joules, config)]) == ""
    rare = "its counter updates every 2 s, too rarely for 3 s"
    seldom = record("energy", {}, config, absent={"energy_j_per_step": rare, "power_w": "other"})
    assert answers.without_joules([seldom]) == f"There are no joules of the Apple M9 CPU: {rare}."
    assert answers.without_joules([large]) == ""


def offloaded(kind, step_s=None, **more):
    config = {"model": "whisper-medium", "batch_size": 4, "offload": kind, "recompute": False}
    times = {"step_s": metric(step_s, 0.99 * step_s, 1.01 * step_s)} if step_s else {}
    more = {"chip": "NVIDIA A1", "status": "ok" if step_s else "too-big"} | more
    return record("whisper_finetuning", times, config, **more)


def test_what_offload_costs_is_a_ratio_or_has_a_reason():
    cost = answers.offload_cost
    needs = "What offload costs is not answered here: it needs an NVIDIA GPU."
    assert cost([offloaded("none", 2.0)]) == needs
    failed = [offloaded("none", 2.0, backend="cuda"), offloaded("fsdp", backend="cuda")]
    no_case = "no case with offload has a value (1 too-big)."
    assert cost(failed) == f"What offload costs is not answered here: {no_case}"
    timed = offloaded("fsdp", 6.0, backend="cuda")
    assert cost([offloaded("none", backend="cuda"), timed]) == (
        "With offload a step of whisper-medium at batch size 4 takes 6.00 s on the A1 CUDA; "
        "without offload it has no value (too-big), so there is no ratio."
    )
    assert cost([offloaded("none", 2.0, backend="cuda"), timed]) == (
        "With offload a step of whisper-medium at batch size 4 takes 3.0× (2.9 to 3.1× in this "
        "process) the time without it on the A1 CUDA: 6.00 s and 2.00 s."
    )
    assert cost([offloaded("none", 2.0, profile="smoke")]) == ""
