"""Answers of one line, and sentences that open the answer of a notebook."""

import pytest
from records import metric, product, record

from pomology.report.table import Row, Table
from pomology.views import answers

NEITHER = "not testable here"


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
        (
            0.004,
            0.002,
            "With the same Trainer, and with loading, the GPU is 2.0× faster than the CPU (",
        ),
        (
            0.001,
            0.003,
            "With the same Trainer, and with loading, the CPU is 3.0× faster than the GPU (",
        ),
        (
            0.002,
            0.002,
            "With the same Trainer, and with loading, no difference between GPU and CPU is ",
        ),
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
    said = "PyTorch and MLX trained on the GPU in this run. "
    assert answers.devices(records) == f"{said}PyTorch trained on the CPU in this run."
    said = "No training ran on a GPU of this machine. PyTorch trained on the CPU in this run."
    assert answers.devices(records[:1]) == said


def test_features_that_work_are_listed_and_others_with_their_status():
    def case(feature, backend="mps", **more):
        return record("capabilities", config={"feature": feature}, backend=backend, **more)

    records = [case("fp32"), case("fp16"), case("autocast"), case("GradScaler")]
    records += [case("torch.compile", status="unsupported"), case("fp16", "cpu", status="mismatch")]
    assert answers.features(records) == (
        "On the GPU fp16, autocast and GradScaler ran without a speed; torch.compile failed "
        "(unsupported). On the CPU fp16 failed (mismatch)."
    )
    ratios = {"fp16": (1.2, 0.9, 1.5), "autocast": (1.52, 1.4, 1.6), "GradScaler": (0.5, 0.4, 0.6)}
    timed = [
        record("capabilities", {"speedup": metric(*ratio)}, {"feature": feature}, backend="mps")
        for feature, ratio in ratios.items()
    ]
    # 1.20 may be chance, since its interval has 1.
    assert answers.features(timed) == (
        "On the GPU autocast (1.52× ± 6.6 % in this process) is faster than plain fp32; "
        "GradScaler (2.0× as long, 1.7 to 2.5× in this process) is slower; "
        "fp16 (1.20×, 0.900 to 1.50× in this process) is not known to differ."
    )
    none = answers.features([timed[0]])
    assert none.startswith(
        "On the GPU no feature is known to be faster than plain fp32; fp16 (1.20×, 0.900"
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


def test_a_gain_over_plain_steps_that_the_feature_slows_is_not_known():
    """Plain fp32 takes 1.3 times as long beside bf16, which explains a gain of 1.2."""

    def case(feature, ratio, plain_s, repeat=0):
        blocks = {"reference": {"steady": [[1, plain_s]] * 3}}
        values = {"speedup": metric(ratio, 0.98 * ratio, 1.02 * ratio)}
        more = {"blocks": blocks, "repeat": repeat, "backend": "mps"}
        return record("capabilities", values, {"feature": feature}, **more)

    records = [case("fp32", 1.0, 0.1), case("bf16", 1.2, 0.13), case("fused", 1.2, 0.1)]
    said = answers.features(records)
    assert "fused (1.20× ± 2.0 % in this process) is faster than plain fp32; bf16" in said
    assert "bf16 (1.20× ± 2.0 % in this process) is not known to differ." in said
    assert "beside a feature it takes 1.00 to 1.30 times as long, so a smaller gain may" in said


def launched(backend="cpu", repeat=0, **more):
    counts = {"launch_cold_s": (9e-5, 5), "launch_s": (7e-6, 1000), "launch_paused_s": (2e-4, 10)}
    times = {name: metric(value).replace(n=n) for name, (value, n) in counts.items()}
    return record("kernel_launch", times, {}, backend=backend, repeat=repeat, **more)


def test_first_following_and_paused_launches_have_units_and_counts():
    said = answers.launches([launched()])
    assert said.text == (
        "How long a GPU takes is not answered here: no case ran on a GPU. On the CPU a launch is a "
        "function call. On the Apple M9 CPU a follow-up launch takes 0.00700 ms in PyTorch "
        "(n = 1,000)."
    )
    where = "On the Apple M9 CPU"
    assert said.evidence == [
        f"{where} the first launch of a process takes 0.0900 ms, 13× a follow-up one, in PyTorch "
        "(n = 5).",
        f"{where} a launch after a pause takes 0.200 ms, 29× a follow-up one, in PyTorch (n = 10).",
    ]
    on_gpu = answers.launches([launched("mps", repeat) for repeat in (0, 1)])
    assert "in PyTorch (n = 5 in each of 2 repeats)." in on_gpu.evidence[0]
    assert "function call" not in str(on_gpu)
    both = answers.launches([launched(), launched("mps")])
    assert both.text.startswith("On the Apple M9 GPU a follow-up launch takes 0.00700 ms in PyT")
    assert both.evidence[-1] == "On the CPU a launch is a function call."
    assert answers.launches([launched(profile="smoke")]) == ("", ())
    assert answers.launches([record("kernel_launch", {}, {}, status="error")]) == ("", ())


def test_a_case_without_joules_has_the_reason():
    why = "on Linux only root may read the energy counters of a CPU"
    config = {"model": "small transformer", "batch_size": 4}
    unread = record("energy", {"step_s": metric(0.1)}, config, absent={"power_w": why})
    large = record("energy", {}, {"model": "whisper-medium", "batch_size": 4}, status="too-big")
    assert answers.without_joules([large, unread]) == (
        f"The energy of the Apple M9 CPU was not measured: {why}."
    )
    joules = {"energy_j_per_step": metric(3.0, unit="J")}
    assert answers.without_joules([large, record("energy", joules, config)]) == ""
    rare = "its counter updates every 2 s, too rarely for 3 s"
    seldom = record("energy", {}, config, absent={"energy_j_per_step": rare, "power_w": "other"})
    unmeasured = f"The energy of the Apple M9 CPU was not measured: {rare}."
    assert answers.without_joules([seldom]) == unmeasured
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
    no_case = "no case with offload has a value (1 too big)."
    assert cost(failed) == f"What offload costs is not answered here: {no_case}"
    timed = offloaded("fsdp", 6.0, backend="cuda")
    assert cost([offloaded("none", backend="cuda"), timed]) == (
        "With offload a step of whisper-medium at batch size 4 takes 6.00 s on the A1 CUDA; "
        "without offload it has no value (too big), so there is no ratio."
    )
    assert cost([offloaded("none", 2.0, backend="cuda"), timed]) == (
        "With offload a step of whisper-medium at batch size 4 takes 3.0× (2.9 to 3.1× in this "
        "process) the time without it on the A1 CUDA: 6.00 s and 2.00 s."
    )
    assert cost([offloaded("none", 2.0, profile="smoke")]) == ""


def test_of_each_operation_and_precision_the_highest_rate_is_told():
    rates = {"1x2x2": 3e9, "1x4x4": 5e9}
    records = [product(rate, shape=shape, experiment="blas") for shape, rate in rates.items()]
    records += [product(9e9, "bf16", experiment="blas")]
    records += [product(2e9, operation="vjp", experiment="blas")]
    records += [product(7e9, shape="1x8x8", operation="vjp", flags=["too-fast"])]
    records += [product(4e9, operation="matvec", profile="smoke")]
    ratio = (
        "On the Apple M9 CPU in PyTorch matmuls reach 5.00 GFLOP/s in fp32, and in bf16 1.8× that."
    )
    highest = (
        "Highest rates on the Apple M9 CPU in PyTorch: matmul 5.00 GFLOP/s in fp32, 9.00 GFLOP/s "
        "in bf16; vjp 2.00 GFLOP/s in fp32."
    )
    assert answers.rates(records) == (ratio, [highest])
    # A size that failed is not told where the precision has another one.
    failed = {"status": "too-slow", "operation": "matmul"}
    records += [product(1e9, "fp16", shape="1x9x9", **failed)]
    records += [product(1e9, "bf16", shape="1x9x9", **failed)]
    without = f"{highest} Without a value: matmul in fp16 (too slow)."
    assert answers.rates(records) == (ratio, [without])
    # Without a rate in fp32 the highest rates are the answer.
    (one,) = [each for each in records if each.config["operation"] == "vjp"][:1]
    assert answers.rates([one]).text.startswith("Highest rates on the Apple M9 CPU")


def test_flags_follow_a_slope_and_launches():
    slope = {"footprint_slope_bytes": metric(1000.0, 500.0, 1500.0, "B")}
    grown = record("memory", slope, {"load": "easy"}, flags=["busy"])
    assert answers.growth([grown]).endswith(" in 1,000 steps (busy).")
    times = {name: metric(1e-5) for name in answers.LAUNCHES}
    launched = record("kernel_launch", times, {}, flags=["busy", "few-steps"], backend="mps")
    said = answers.launches([launched])
    assert said.text.endswith("(n = 20, busy).")  # of so many, the flag is of other launches
    few = {name: time.replace(n=5) for name, time in times.items()}
    launched = record("kernel_launch", few, {}, flags=["few-steps"], backend="mps")
    assert answers.launches([launched]).text.endswith("(n = 5, few steps).")


@pytest.mark.parametrize(
    ("slope", "words"),
    [
        (metric(1000.0, 500.0, 1500.0, "B"), "the memory grows by 1.00 kB (500 B to 1.50 kB) per"),
        (metric(100.0, -500.0, 700.0, "B"), "no change of the memory is established: 100 B (-500"),
        (metric(-100.0, -120.0, -80.0, "B"), "the memory shrinks by -100 B"),
        (metric(100.0, unit="B"), "no change of the memory is established"),
    ],
)
def test_growth_is_told_where_its_interval_excludes_zero(slope, words):
    said = answers.growth([record("memory", {"footprint_slope_bytes": slope}, {"load": "easy"})])
    assert said.startswith("On the Apple M9 CPU in PyTorch, with load easy,") and words in said


def test_nothing_near_the_limit_of_the_memory_is_said():
    def case(scenario, seconds=None, **more):
        times = {"pass_s": metric(seconds)} if seconds else {}
        config = {"model": "whisper-large", "batch_size": 32, "scenario": scenario}
        return record("whisper_pretraining", times, config, **more)

    far, near = case(1, 2.0), case(3, status="too-big")
    assert answers.near_limit([far, near]) == (
        "What happens near the limit of the memory is not answered here: 1 too big."
    )
    assert answers.near_limit([far, case(3, 9.0)]) == answers.near_limit([far]) == ""


def test_growth_in_two_repeats_is_of_the_past():
    slopes = (metric(value, 0.9 * value, 1.1 * value, "B") for value in (100.0, 200.0))
    records = [
        record("memory", {"footprint_slope_bytes": slope}, {"load": "easy"}, repeat=repeat)
        for repeat, slope in enumerate(slopes)
    ]
    assert "the memory grew by" in answers.growth(records)
    # One of the two may not have grown at all.
    unclear = {"footprint_slope_bytes": metric(100.0, -50.0, 250.0, "B")}
    records[0] = record("memory", unclear, {"load": "easy"}, repeat=0)
    said = answers.growth(records)
    assert "two repeats changed by 100 B and 200 B per step, of which at least one cannot " in said
    assert said.endswith("be told from 0: no change of the memory is established.")


def test_models_have_their_sizes_and_images_per_second():
    values = {"parameters": metric(11.69e6, unit=""), "throughput": metric(12.3, unit="pictures/s")}
    of_224 = values | {"forward_macs": metric(1.81e9, unit="")}
    config = {"model": "resnet18", "batch_size": 8}
    records = [
        record("model_sizes", of_224, config | {"image_size": 224}, flags=["few-steps"]),
        record("model_sizes", values, config | {"image_size": 64}),
    ]
    alone = answers.sizes_and_speeds(records)
    assert alone.evidence == () and alone.text == (
        "A training step on the Apple M9 CPU in PyTorch processes: resnet18 (11.7 million "
        "parameters, 1.81 GMAC per image) 12.3 images/s (batch size 8, few steps)."
    )
    # A third of the images per second, and twice the MACs.
    changed = {
        "throughput": metric(4.1, unit="pictures/s"),
        "forward_macs": metric(3.62e9, unit=""),
    }
    larger = config | {"model": "vgg16", "batch_size": 2, "image_size": 224}
    both = answers.sizes_and_speeds([*records, record("model_sizes", of_224 | changed, larger)])
    assert both.text == (
        "An image in a training step on the Apple M9 CPU in PyTorch takes, relative to resnet18 "
        "(batch sizes 2 and 8): with vgg16 3.0× the time, for 2.0× the MACs."
    )
    assert both.evidence[0].startswith(alone.text[:-1])


def passes(forward_s, backward_s, lora, model="gpt2"):
    times = {"forward_s": metric(forward_s), "backward_s": metric(backward_s)}
    config = {"model": model, "lora": lora, "offload": "none", "batch_size": 1}
    return record("gpt2_finetuning", times, config)


def test_passes_with_lora_are_compared_with_those_of_the_same_model_without_it():
    said = answers.lora_effect([passes(1.0, 2.0, False), passes(1.1, 1.0, True)])
    assert said == (
        "Times with LoRA over those without it (gpt2 at batch size 1 on the Apple M9 CPU in "
        "PyTorch): forward pass 1.1×; backward pass 0.50×."
    )
    wide = passes(1.1, 1.0, True)
    wide.metrics["forward_s"] = metric(1.1, 0.9, 1.3)
    plain = passes(1.0, 2.0, False)
    plain.metrics["forward_s"] = metric(1.0, 0.9, 1.1)
    said = answers.lora_effect([plain, wide])
    assert "(0.82 to 1.4× in this process), without an established difference; backward" in said
    alone = answers.lora_effect([passes(1.0, 2.0, False), passes(1.1, 1.0, True, "gpt2-medium")])
    assert alone.startswith("What LoRA changes is not answered here")
    assert answers.lora_effect([]) == ""


def claim(published, holds, here=NEITHER):
    data = {"published": published, "holds": holds, "here": here, "restates": "no"}
    return Row(
        {"Claim": holds}, data | {"timed": False, "lacks": "" if here != NEITHER else "a GPU"}
    )


def test_the_table_has_the_contradicted_claims_that_the_sentence_counts():
    rows = [claim("contradicted", "no"), claim("contradicted", "no: 30 % of what is not stated")]
    rows += [claim("supported", "yes", "contradicted"), claim("supported", "yes", "supported")]
    rows.append(claim("contradicted", "no", "contradicted"))
    claims = Table("Claims", [*rows, claim(NEITHER, "not-recomputable")])
    assert answers.verdicts(claims) == (
        "The articles' own numbers support 2 of 6 claims and contradict 3 (1 of them with an open "
        "question). Verdicts on this machine: 3 by counting (1 supported, 2 contradicted), none by "
        "timing. Of the others 3 need a GPU."
    )
    found = answers.contradicted(claims)
    assert found.rows == [*rows[:3], rows[-1]]
    assert found.title == (
        "Claims that the articles' own numbers contradict (3), or this machine's (2)"
    )
    plain = answers.verdicts(Table("Claims", [claim("contradicted", "no")]))
    assert "contradict 1. Verdicts" in plain
