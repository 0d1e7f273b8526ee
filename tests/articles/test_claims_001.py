"""Article 001's claims on pretended machines: an M2 Ultra with PyTorch and MLX, and a Linux box with an RTX 4090.

Records have the settings that the notebooks give them. Numbers are made up, of three repeats that differ by a few
thousandths, and each claim is tried with some that bear it out, some that do not, and without those that it needs.
"""

from __future__ import annotations

import math

import pytest
from records import record as record_of

from pomology.articles import claims, published
from pomology.measure.estimate import Estimate
from pomology.report import claims as report_claims
from pomology.results.frame import of_records
from pomology.results.record import Record

SUPPORTED, FAILS, UNKNOWN = claims.SUPPORTED, claims.CONTRADICTED, claims.INCONCLUSIVE
MPS, MLX = ("torch", "mps", "Apple M2 Ultra"), ("mlx", "mlx-gpu", "Apple M2 Ultra")
CUDA = ("torch", "cuda", "NVIDIA GeForce RTX 4090")


def record(
    experiment: str, device: tuple[str, str, str], config: dict, metrics: dict, **more
) -> Record:
    values = {name: Estimate(value) for name, value in metrics.items()}
    about = dict(zip(("framework", "backend", "chip"), device, strict=True))
    return record_of(
        experiment, values, config, precision=config.get("precision", "fp32"), **about, **more
    )


def claim(number: int) -> published.Claim:
    return next(one for one in published.claims("001") if one.id == f"001-C{number}")


def thrice(records: list[Record]) -> list[Record]:
    """Three repeats of each: a float varies by thousandths, an int is a count."""
    made = []
    for number, one in enumerate(records):
        for repeat in range(3):
            factor = 1 + 0.001 * math.sin(10 * number + 3 * repeat)
            varied = {
                name: x.value if type(x.value) is int else x.value * factor
                for name, x in one.metrics.items()
            }
            metrics = {name: x.replace(value=varied[name]) for name, x in one.metrics.items()}
            made.append(one.replace(repeat=repeat, metrics=metrics))
    return made


def decide(number: int, records: list[Record]) -> claims.Decision:
    return claims.test(claim(number), report_claims.MeasuredLookup(of_records(thrice(records))))


def cell(number: int, records: list[Record]) -> str:
    return report_claims.claims_table([claim(number)], of_records(thrice(records))).rows[0].cells[3]


# Parameters, those trained, and kept with fused attention at the batch sizes of table 3.


def passes(mps: list[float], mlx: list[float]) -> list[Record]:
    """Table 4, as both notebooks write it, and beside it what they run of smaller models."""
    made = []
    for size, torch_s, mlx_s in zip((8, 4, 2), mps, mlx, strict=True):
        config = {"model": "gpt2-large", "context_size": 1024, "batch_size": size}
        made.append(record("gpt2_pretraining", MPS, config, {"pass_s": torch_s}))
        made.append(record("gpt2_pretraining", MLX, config, {"pass_s": mlx_s}))
    small = {"model": "gpt2-micro", "batch_size": 2, "context_size": 64}
    made.append(record("gpt2_pretraining", MPS, small, {"pass_s": 0.01}, scaled=True))
    return [
        *made,
        record("gpt2_pretraining", ("torch", "cpu", "Apple M2 Ultra"), small, {"pass_s": 0.5}),
    ]


def launches(cold: float, following: float, device=MPS) -> list[Record]:
    return [record("kernel_launch", device, {}, {"launch_cold_s": cold, "launch_s": following})]


def products(operation: str, times: dict[tuple, float]) -> list[Record]:
    """times: (device, precision) -> seconds of every product of that operation that the claims ask for."""
    shapes = [{"shape": "8x2000x2000"}]
    if operation == "vjp":
        inner = ("8x1024x128", "8x1024x512", "8x1024x2048")
        shapes = [{"shape": shape, "wrt": side} for shape in inner for side in ("left", "right")]
    if operation == "matvec":
        sizes = (128, 512, 2048, 4096)
        shapes = [{"shape": f"{rows}x{columns}"} for rows in sizes for columns in sizes]
        shapes += [{"shape": "4096x11008"}, {"shape": "4096x32000"}]
    return [
        record(
            "blas",
            device,
            {"operation": operation, "precision": precision, **one},
            {"kernel_s": time},
        )
        for (device, precision), time in times.items()
        for one in shapes
    ]


def halves(operation: str, mps: float, mlx: float, ratio: float = 1.0) -> list[Record]:
    """Both frameworks of a Mac: how many times faster fp16 is, and how many times slower MPS is than MLX."""
    times = {
        (MPS, "fp32"): ratio,
        (MPS, "fp16"): ratio / mps,
        (MLX, "fp32"): 1.0,
        (MLX, "fp16"): 1.0 / mlx,
    }
    return products(operation, times)


def memory(grows: float, faults: float, near: float) -> list[Record]:
    """Bytes and page faults a step, as the notebook of memory over time has them."""
    return [
        record("memory", device, {"load": load}, {"page_faults_slope": count, **slope})
        for device, growth in ((MPS, grows), (MLX, 1e3))
        for load, count in (("easy", faults), ("near", near))
        for slope in [{"resident_slope_bytes": growth, "footprint_start_bytes": 10e9}]
    ]


def whisper(device, forward: float, backward: float) -> list[Record]:
    times = {"forward_s": forward, "backward_s": backward, "step_s": forward + backward}
    config = {"model": "whisper-medium", "batch_size": 4, "precision": "fp32", "scenario": 1}
    half = {name: time / 2 for name, time in times.items()}
    return [
        record("whisper_pretraining", device, config, times),
        record("whisper_pretraining", device, {**config, "precision": "fp16"}, half),
    ]


def texts(device, plain: float, lora: float, xl: float, offload: str = "none") -> list[Record]:
    rows = [
        ("gpt2-large", False, "none", plain),
        ("gpt2-large", True, "none", lora),
        ("gpt2-xl", False, offload, xl),
    ]
    made = []
    for model, adapters, way, time in rows:
        config = {
            "model": model,
            "batch_size": 16,
            "lora": adapters,
            "offload": way,
            "task": "classification",
        }
        made.append(
            record(
                "gpt2_finetuning",
                device,
                config,
                {"forward_s": time / 3, "backward_s": 2 * time / 3},
            )
        )
    return made


def energy(device, joules: float) -> list[Record]:
    metrics = {"energy_gpu_j_per_step": joules, "step_s": 1.0}
    return [record("energy", device, {"model": "whisper-medium", "batch_size": 4}, metrics)]


CARD = {(CUDA, "fp32"): 5.5, (CUDA, "fp16"): 1.0}
# claim -> records that bear it out, and records that do not.
ALONE = {
    2: (passes([3.2, 3.6, 10.7], [2.7, 2.9, 8.7]), passes([3.2, 3.6, 8.0], [2.7, 2.9, 8.7])),
    4: (passes([3.5, 3.5, 3.5], [2.6, 2.6, 2.6]), passes([3.2, 3.6, 10.7], [2.7, 2.9, 8.7])),
    6: (launches(8e-4, 1.5e-4), launches(1e-4, 1.5e-4)),
    8: (halves("matmul", mps=1.02, mlx=1.25), halves("matmul", mps=1.4, mlx=1.25)),
    9: (products("vjp", CARD), products("vjp", CARD | {(CUDA, "fp32"): 2.0})),
    10: (halves("vjp", mps=2.0, mlx=1.9), halves("vjp", mps=2.0, mlx=1.2)),
    11: (halves("vjp", mps=2.0, mlx=2.0, ratio=1.5), halves("vjp", mps=2.0, mlx=2.0, ratio=1.05)),
    12: (halves("matvec", mps=1.9, mlx=2.0), halves("matvec", mps=1.9, mlx=2.0, ratio=2.0)),
    17: (memory(5e6, 10.0, 90.0), memory(-5e6, 10.0, 90.0)),
    18: (memory(5e6, 10.0, 90.0), memory(5e6, 10.0, 4.0)),
}


@pytest.mark.parametrize("number", ALONE)
def test_a_claim_that_one_machine_can_tell_has_both_verdicts(number):
    bears_out, does_not = ALONE[number]
    assert decide(number, bears_out).status == SUPPORTED
    assert decide(number, does_not).status == FAILS
    if number == 6:  # PyTorch's launches and MLX's: the claim says `devices`
        assert decide(6, bears_out + launches(1e-4, 1.5e-4, MLX)).status == FAILS
    # A part of the numbers tells nothing, and claim 6 needs but one device.
    for records in [[]] + ([bears_out[:1]] if number != 6 else []):
        assert decide(number, records).status == UNKNOWN
        assert f"needs {claim(number).needs.removeprefix('needs ')}" in cell(number, records)


def lookup(records: list[Record]) -> report_claims.MeasuredLookup:
    return report_claims.MeasuredLookup(of_records(thrice(records)))


class Two:
    """A lookup over a Mac and NVIDIA cards, which the kit has for no run: it tests the formulas."""

    def __init__(self, mac: list[Record], card: list[Record], **named: list[Record]):
        self.mac, self.card = lookup(mac), lookup(card)
        self.named = {name: lookup(records) for name, records in named.items()}
        self.has = self.mac.has

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        if role == "rival":
            return ("rival",) if self.card.devices(experiment, "gpu") else ()
        return self.mac.devices(experiment, role)

    def __call__(self, experiment, metric, role, config):
        if role == "rival":
            return self.card(experiment, metric, "gpu", config)
        return self.named.get(role, self.mac)(experiment, metric, role, config)


BOTH = {(MPS, "fp32"): 1.2, (MPS, "fp16"): 1.1, (MLX, "fp32"): 1.1, (MLX, "fp16"): 1.0}
LIKE = {(MLX, "fp32"): 1.0, (MLX, "fp16"): 1.0}
MIXED, FASTER = ({(CUDA, "fp32"): fp32, (CUDA, "fp16"): 0.5} for fp32 in (1.5, 0.5))
FAST, SLOW = products("matmul", {(CUDA, "fp32"): 1.0}), products("matmul", {(CUDA, "fp32"): 0.1})
# claim -> the Mac, a card that bears it out, and one that does not.
TOGETHER = {
    13: (products("matmul", BOTH), FAST, SLOW),
    14: (whisper(MPS, 1.0, 2.0), whisper(CUDA, 0.3, 0.6), whisper(CUDA, 0.8, 1.6)),
    15: (
        texts(MPS, 3.0, 2.0, 6.0),
        texts(CUDA, 1.0, 1.0, 9.0, "zero"),
        texts(CUDA, 1.0, 1.0, 3.0, "zero"),
    ),
    16: (
        whisper(MPS, 1.0, 2.0) + texts(MPS, 3.0, 2.0, 6.0),
        whisper(CUDA, 0.3, 0.6) + texts(CUDA, 1.0, 1.0, 9.0, "zero"),
        whisper(CUDA, 0.3, 0.6) + texts(CUDA, 1.0, 2.5, 9.0, "zero"),
    ),
    26: (
        products("matmul", {(MLX, "fp16"): 1.0}),
        *(products("matmul", {(CUDA, "fp16"): x}) for x in (0.5, 2.0)),
    ),
    27: (products("matvec", LIKE), products("matvec", MIXED), products("matvec", FASTER)),
    28: (products("vjp", LIKE), products("vjp", MIXED), products("vjp", FASTER)),
    19: (energy(MPS, 100.0), energy(CUDA, 60.0), energy(CUDA, 20.0)),  # with 70 J more
}


@pytest.mark.parametrize("number", TOGETHER)
def test_a_claim_about_both_makers_has_a_verdict_only_from_both(number):
    mac, bears_out, does_not = TOGETHER[number]
    assert claims.test(claim(number), Two(mac, bears_out)).status == SUPPORTED
    assert claims.test(claim(number), Two(mac, does_not)).status == FAILS
    for alone in (mac, bears_out):
        assert decide(number, alone).status == UNKNOWN, "one machine has not both"
        assert f"needs {claim(number).needs.removeprefix('needs ')}" in cell(number, alone)


@pytest.mark.parametrize(
    ("name", "backend", "chip", "same"),
    [
        ("A6000", "cuda", "NVIDIA RTX A6000", True),
        ("2080Ti", "cuda", "NVIDIA GeForce RTX 2080 Ti", True),
        ("M2 MAX", "mps", "Apple M2 Max", True),
        ("RTX 4090", "cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", False),
        ("A6000", "cuda", "NVIDIA RTX 6000 Ada Generation", False),
        ("M2 Ultra", "mps", "Apple M2", False),
        ("M2 Ultra", "cpu", "Apple M2 Ultra", False),  # a processor is not the GPU of that name
    ],
)
def test_a_gpu_that_is_named_is_found_on_the_machine_that_has_it(name, backend, chip, same):
    term = report_claims.MeasuredLookup(of_records(energy(("torch", backend, chip), 50.0)))(
        "energy", "energy_gpu_j_per_step", name, {}
    )
    assert term.number.value == 50.0 if same else term.number is None
