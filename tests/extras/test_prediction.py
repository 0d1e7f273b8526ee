"""Predictions compared with sums by hand and simulated times; counts compared with PyTorch's."""

import re

import counts
import numpy as np
import pandas
import pytest
import torch
from records import product, rate, record, stream, write
from torch import nn

from pomology.__main__ import main
from pomology.articles import devices as names
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, model, times, validation, work, workloads
from pomology.extras.prediction.devices import Hardware
from pomology.extras.prediction.model import Model
from pomology.extras.prediction.work import Work
from pomology.models import workload
from pomology.paths import root

PEAKS = {"fp32": 10e12, "tf32": None, "half": 100e12}
CARD = Hardware("a card", PEAKS, 500e9, "cuda", "by hand")
# Shares for convolutions in half, matmuls in fp32, other computing, memory, memory in half.
NUMBERS = np.array([1 / 0.25, 1 / 0.8, 1 / 0.5, 1 / 0.6, 1 / 0.5, 1e-5])
SPREADS = {"fp32": (-0.1, 0.2), "tf32": (-0.1, 0.2), "half": (-0.3, 0.4)}
MODEL = Model(NUMBERS, SPREADS)
STEP = Work(convolutions=1e12, products=8e11, bytes=3e10, launches=400)


def test_a_step_is_the_sum_of_computing_moving_and_launching():
    """1e12 / (0.5 · 10e12) + 8e11 / (0.8 · 10e12) + 3e10 / (0.6 · 500e9) + 400 · 10 µs."""
    step_s, bound = MODEL.predict(STEP, CARD)
    assert step_s.value == pytest.approx(0.2 + 0.1 + 0.1 + 0.004) and step_s.how == "estimated"
    assert step_s.low == pytest.approx(0.404 * np.exp(-0.1)) and bound == "operations"
    assert step_s.high == pytest.approx(0.404 * np.exp(0.2))
    # 1e12 / (0.25 · 100e12) + 8e11 / (0.5 · 100e12) + 3e10 / (0.5 · 500e9) + 4 ms
    step_s, bound = MODEL.predict(STEP, CARD, "bf16")
    assert step_s.value == pytest.approx(0.04 + 0.016 + 0.12 + 0.004) and bound == "memory traffic"
    assert step_s.bounds == pytest.approx((0.18 * np.exp(-0.3), 0.18 * np.exp(0.4)))
    _, bound = MODEL.predict(STEP._replace(launches=1e6), CARD)
    assert bound == "launches"
    with pytest.raises(PomologyError, match=r"^fp16: a card has no such peak in by hand"):
        MODEL.predict(STEP, CARD._replace(measured=True), "fp16")


def simulated(spread: float = 0.0, cards: int = 12, factor: float = 1.0) -> pandas.DataFrame:
    """Return times by the model with NUMBERS, with normal errors of their logarithms."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(cards):
        peaks = {key: peak and peak * random.uniform(0.2, 5) for key, peak in PEAKS.items()}
        bandwidth = random.uniform(1e11, 2e12)
        card = CARD._replace(name=f"card {number}", flops_per_s=peaks, bytes_per_s=bandwidth)
        for name in range(8):
            convolutions, products = 10 ** random.uniform(9, 13, 2)
            step = Work(convolutions, products, 10 ** random.uniform(8, 10), 99)
            precision = ("fp32", "half")[name % 2]
            columns = model.columns(step, card, precision)
            seconds = factor * float(np.array(list(columns.values())) @ NUMBERS)
            time = {"workload": f"w{name}", "device": card.name, "precision": precision}
            time["step_s"] = seconds * float(np.exp(random.normal(0, spread)))
            rows.append(time | columns)
    return pandas.DataFrame(rows)


def test_the_interval_covers_90_percent_of_normal_errors():
    row = validation.summary(model.left_out(simulated(0.3), "device"))
    assert 0.8 <= row["covered"] <= 0.97
    assert row["median"] == pytest.approx(0.2, abs=0.08)  # exp(0.3 · 0.674) - 1 = 0.22


def test_other_workloads_calibrate_and_a_users_model_has_the_general_interval():
    seen = simulated(cards=1, factor=1.7)
    card = CARD._replace(name="card 0", measured=True)
    general = Model(NUMBERS, {"fp32": (-0.55, 0.55), "half": (-1.1, 1.1)})
    calibrated = general.calibrated(card, seen, "w0")
    assert model.errors_of(seen[:1], calibrated.numbers) == pytest.approx([0], abs=0.05)
    assert calibrated.spreads["fp32"][1] < 0.5
    low, high = calibrated.spreads["fp32"]
    assert calibrated.spreads["half"] == pytest.approx((2 * low, 2 * high))
    assert general.calibrated(card, seen).spreads == general.spreads
    cpu = card._replace(backend="cpu")
    assert set(MODEL.calibrated(cpu, seen[:0]).spreads.values()) == {model.CPU_UNSEEN}
    (sentence,) = calibrated.errors("fp32", "")
    assert sentence.startswith("3 times in fp32 of 3 other workloads calibrate the device")


def test_the_stored_parameters_fit_published_times_as_well_as_a_new_fit():
    seen = times.published()
    assert f"{len(seen):,} published times" in model.fitted().evidence[model.ALL]
    errors = [
        model.errors_of(seen, numbers) for numbers in (model.fitted().numbers, model.fit(seen))
    ]
    kept, new = np.abs(errors) @ model.weights_of(seen["workload"])
    assert kept == pytest.approx(new, rel=1e-3)


@pytest.fixture(scope="module")
def by_device():
    return model.left_out(times.published(), "device")


@pytest.mark.parametrize("precision", validation.PRECISIONS)
def test_the_interval_of_each_precision_contains_90_percent_of_unseen_devices_times(
    precision, by_device
):
    """Counted again with the errors of other devices in a list, each as often as it weighs."""
    seen = by_device[by_device["precision"].eq(precision)]
    inside = []
    for device, times_of in seen.groupby("device"):
        others = []
        for _, group in seen[seen["device"].ne(device)].groupby("device"):
            others += list(np.repeat(group["error"], round(1000 / np.sqrt(len(group)))))
        low, high = np.quantile(others, [0.05, 0.95])
        inside += list(times_of["error"].between(low, high))
    assert len(inside) == len(seen)
    assert 0.865 <= np.mean(inside) < 0.935  # 87 to 93 % as shown
    assert np.mean(inside) == pytest.approx(seen["inside"].mean(), abs=0.01)


def test_stored_errors_and_intervals_are_those_of_a_new_cross_validation(by_device):
    stored = model.kept()
    for precision, ends in model.spreads(by_device, "device").items():
        assert stored["spreads"][precision] == pytest.approx(ends, abs=0.02)
    groups = {model.DEVICE_LEFT_OUT: by_device}
    groups |= validation.by_precision(model.DEVICE_LEFT_OUT, by_device)
    groups["source left out"] = model.left_out(times.published(), "source")
    for title, group in groups.items():
        kept = stored["errors"][title]
        assert kept == pytest.approx(model.summary(group), abs=0.01), title
    # The median again, by another way: of measured over predicted.
    ratios = np.exp(by_device["error"])
    median = np.median(np.abs(1 / ratios - 1))
    assert stored["errors"][model.DEVICE_LEFT_OUT]["median"] == pytest.approx(median, abs=0.01)


def test_a_median_has_the_range_that_a_draw_of_devices_gives():
    """Of two devices, either is drawn alone in a quarter of cases."""
    times_of = pandas.DataFrame({"device": ["a", "b", "b"], "error": 0.0, "inside": True})
    times_of["error"] = -np.log1p([0.1, 0.3, 0.3])
    row = model.summary(times_of)
    assert (row["n"], row["devices"]) == (3, 2)
    ends = (row["median"], row["median_low"], row["median_high"])
    assert ends == pytest.approx((0.3, 0.1, 0.3))
    alone = validation.table("title", {"one": times_of[:1]}).rows[0].cells
    assert alone["Median error"] == "10 %"


def test_the_answer_has_median_errors_their_counts_and_what_the_intervals_contained():
    times_of = pandas.DataFrame({"device": ["a", "b", "b"], "inside": [True, True, False]})
    times_of["error"] = -np.log1p([0.1, 0.3, 0.3])  # predicted over measured is 1.1, 1.3, 1.3
    own = times_of[1:].assign(device="A chip CPU")
    groups = {f"Published times: {validation.DEVICE_LEFT_OUT}": times_of}
    groups |= {f"A chip CPU: {validation.ALONE}": own}
    said = validation.answer(groups, {"fp32": np.log([0.5, 2.0])})
    assert said.text == (
        "The typical (median) error is 30 % for published times, predicted from those of other "
        "devices; 30 % for the A chip CPU, predicted from its measured peaks alone."
    )
    assert said.evidence == [
        "Published times, predicted from those of other devices: the median error is 30 % (95 % "
        "interval 10 to 30 % by a bootstrap over devices; n = 3); 0 % of the predictions are too "
        "short, and 67 % of the times are in their 90 % interval.",
        "A chip CPU, predicted from its measured peaks alone: the median error is 30 % (n = 2); 0 "
        "% of the predictions are too short, and 50 % of the times are in their 90 % interval.",
        "A 90 % interval in fp32 is 0.5 to 2 times the prediction.",
    ]
    assert len(validation.answer(groups).evidence) == 2


def test_the_figure_has_the_times_of_a_run_twice_if_it_has_any():
    """Filled markers are calibrated, open ones from peaks alone; both at measured and predicted."""
    times_of = pandas.DataFrame({"step_s": [0.5, 2.0], "error": np.log([2.0, 0.5])})
    groups = {f"A chip CPU: {how}": times_of for how in (validation.ALONE, validation.BY_OTHERS)}
    elsewhere = times_of.assign(maker="nvidia")
    (published,) = validation.figure(elsewhere, "device left out").axes
    assert published.get_title(loc="left") == "Published times: device left out"
    both = validation.figure(elsewhere, "device left out", groups)
    _, own = both.axes
    alone, calibrated = own.collections[:2]
    for points in (alone, calibrated):  # measured, and measured over 2 or times 2
        assert points.get_offsets().ravel().tolist() == pytest.approx([0.5, 0.25, 2.0, 4.0])
    assert len(alone.get_facecolors()) == 0 and len(calibrated.get_facecolors()) == 1
    key = [text.get_text().replace("\n", " ") for text in both.legends[0].get_texts()]
    assert {"equal", "this machine's CPU, peaks alone"} < {*key}


# Arguments of `predict` -> the rows of the stored errors that the answer states.
STATED = {
    ("--on", "M2 Max"): ["fp32", "Apple, fp32"],
    ("--on", "M2 Max", "--precision", "bf16"): ["half"],
    ("--on", "MI100"): ["AMD, fp32"],
}


@pytest.mark.parametrize("arguments", STATED)
def test_an_answer_states_the_shares_of_its_precision_and_maker(arguments, capsys):
    assert main(["predict", "vae", "128", *arguments]) == 0
    said = capsys.readouterr().out
    for name in STATED[arguments]:
        row = model.kept()["errors"][f"{model.DEVICE_LEFT_OUT}: {name}"]
        numbers = (row["n"], row["devices"], 100 * row["within_30"], 100 * row["covered"])
        words = r"{} .*on {} GPUs.*: {:.0f} % within 30 %, {:.0f} % in their 90 % interval"
        assert re.search(words.format(*numbers), said), said
    assert "median error 17 % (13 to 21 % by a bootstrap over the GPUs)" in said
    without = "none of them is in fp16/bf16 on a GPU of Apple" in said
    assert without == ("bf16" in arguments)


def test_the_page_states_the_stored_errors():
    page = (root() / "docs" / "prediction.md").read_text(encoding="utf-8")
    total = model.kept()["errors"][model.DEVICE_LEFT_OUT]
    median, low, high, within, covered = (
        f"{100 * total[name]:.0f}"
        for name in ("median", "median_low", "median_high", "within_30", "covered")
    )
    assert (
        f"median error is {median} % over {total['n']:,} published times ({low} to {high} % by a "
        f"bootstrap over {total['devices']} devices). {within} % of the predictions are within "
        f"30 %, and {covered} % of the times are in the 90 % interval."
    ) in page


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def counted(build, *inputs, **settings) -> Work:
    with torch.device("meta"):
        module = build()
    return work.count(module, work.step(inputs), **settings)


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=2), 2 * 100 * 16 * 4 * 9),
        (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), 2 * 100 * 8 * 16 * 4),
    ],
)
def test_a_convolution_by_hand(layer, forward):
    """10 x 10 positions times the kernel's elements; backward twice that, after a first layer."""
    first = 2 * (2 * 2 * 100 * 3 * 8)  # 1 x 1, forward and the kernel's gradient
    step = counted(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), layer()), empty(2, 3, 10, 10))
    assert (step.convolutions, step.products) == (first + 3 * 2 * forward, 0)


def test_memory_is_weights_gradients_state_and_tensors_of_autograd():
    """8 x 4 weights, their gradients, Adam's two moments, its counter, and the 16 x 8 inputs."""
    step = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8))
    assert step.memory_bytes == 4 * (4 * 8 * 4 + 1 + 16 * 8)
    half = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8), precision="bf16")
    assert half.memory_bytes == step.memory_bytes - 2 * 16 * 8


FILE = """
from torch import nn
class Model(nn.Linear):
    def __init__(self, change):
        super().__init__(8, 8)
        self.change = change
    def forward(self, data):
        return self.change(super().forward(data))
def plain(): return Model(lambda y: y)
def nonzero(): return Model(lambda y: y[y > 0])
def detached(): return Model(lambda y: y.detach())
"""
ASKED = {
    "plain": (0, "predicted for M2 Max GPU (38 cores) from peaks of a data sheet"),
    "nonzero": (2, "mine.py: NotImplementedError: "),
    "detached": (2, "the model's output does not depend on its weights"),
}


@pytest.mark.parametrize("function", ASKED)
def test_a_users_model_is_predicted_or_refused_in_one_line(tmp_path, capsys, function):
    place = tmp_path / "mine.py"
    place.write_text(FILE, encoding="utf-8")
    status, words = ASKED[function]
    assert main(["predict", f"{place}:{function}", "--input=4x8", "--on=M2 Max 38 cores"]) == status
    output, errors = capsys.readouterr()
    assert words in output + errors and errors.count("\n") == (status == 2)


STEPS = {"flops_per_step": 10**9, "bytes_per_step": 10**8}


def test_a_runs_steps_are_the_sums_of_its_records():
    """0.01 s for 1e9 operations at 10e12/s, and for 1e8 bytes at 500e9/s; no half precision."""
    cases = [record("vae", rate(1e11), **STEPS)]
    cases.append(record("vae", rate(1e11), {"offload": True}, **STEPS))
    cases.append(record("vae", rate(1e11), {"batch_size": 1}, precision="bf16", **STEPS))
    (step,) = times.of_run(cases, {"cpu": CARD}).to_dict("records")
    assert (step["workload"], step["device"], step["launches"]) == ("vae", "a card", 0)
    found = (step["step_s"], step["fp32_products"], step["memory"])
    assert found == pytest.approx((0.01, 1e-4, 2e-4))


def test_a_workload_of_pomology_is_predicted_on_a_run(tmp_path, capsys):
    """Its step has 420 MFLOP at 2e11 FLOP/s; another workload of the run calibrates."""
    case = record("mlp", rate(1e11), **STEPS)
    write(tmp_path / "mine", [product(2e11), stream(1e10), case], {"chip": "Apple M9"})
    assert main(["predict", "vae 128", f"--from={tmp_path / 'mine'}"]) == 0
    assert "predicted for cpu from the peaks measured in the run mine" in capsys.readouterr().out


LARGER = "say 'M2 Max GPU (38 cores)' for the other"
LAPTOP = "NVIDIA GeForce RTX 3080 Laptop GPU"


@pytest.mark.parametrize(
    ("target", "on", "words"),
    [
        ("vae 128", "rtx 4090", ["vae 128, fp32; per step: ", "predicted for RTX 4090 from "]),
        ("VAE 128", "Apple M2 Max", ["vae 128, fp32", "for M2 Max GPU (30 cores)", LARGER]),
        ("ResNet-50 2 32", "Tesla T4", ["resnet50 2 32, fp32", "predicted for T4 from "]),
    ],
)
def test_workloads_and_devices_are_named_as_people_type_them(target, on, words, capsys):
    assert main(["predict", *target.split(), "--on", on]) == 0
    said = capsys.readouterr().out
    assert all(each in said for each in words), said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vae 128", "--on", "M9"), "--on M9: unknown device; `pomology devices` lists all"),
        (("vae 128", "--on", LAPTOP), f"--on {LAPTOP}: RTX 3080 Laptop has no data sheet"),
        (("vae 128", "--on", "cpu"), "--on cpu: needs --from"),
        (("vae 128", "--on", "M4", "--from", "reference-cpu"), "reference-cpu has peaks of cpu"),
        (("vae 128", "--on", "AMD EPYC"), "--on AMD EPYC: no CPU has a data sheet; --from RUN"),
        (("vae 128", "--on", "M1 Pro CPU"), "--on M1 Pro CPU: no CPU has a data sheet; --from RUN"),
        (("vae 128", "--on", "GPU 8 GB"), "--on GPU 8 GB: names no device; expected a model"),
        (
            ("vae 128", "--on", ""),
            "--on: expected a device, such as 'RTX 3090' or 'M2 Max', not an",
        ),
        (("vae 128", "--from", " "), "--from: expected a run with measured peaks, not an empty"),
        (("vae 128", "--input", ""), "--input: expected shapes of a batch, such as 32x3x224x224"),
        (("vae 128", "--input", "4x8"), "--input 4x8: expected with file.py:build only"),
        (("model.py:build",), "--input: expected shapes such as 32x3x224x224"),
        (("",), "expected 'vae 128', or file.py:build"),
        (("resnet 32",), "resnet: unknown workload; similar names: resnet50; "),
        (("banana 4",), "banana: unknown workload; `pomology models` lists all"),
    ],
)
def test_other_names_are_refused_in_one_line(arguments, words, capsys):
    assert main(["predict", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and "\n" not in said


# A model of `fit` as people type it for `predict` -> the command of `fit`.
MODELS = {
    "gpt2 4 512": "pomology fit gpt2 --batch 4 --sequence 512",
    "Llama 3.2 1B 4 512": "pomology fit llama-3.2-1b --batch 4 --sequence 512",
    "Llama 3 8B": "pomology fit llama-3-8b",
    "phi 2 4": "pomology fit phi-2 --batch 4",
    "ViT-B/16 32 224": "pomology fit vit-base --batch 32",  # its inputs have one size
    "bert 16": "pomology fit bert-base --batch 16`; similar names: bert_base",
}


@pytest.mark.parametrize("target", MODELS)
def test_a_model_of_fit_is_answered_with_its_command(target, capsys):
    assert main(["predict", target, "--on", "T4"]) == 2
    said = capsys.readouterr().err.strip()
    assert f"is no workload of `predict`; for this model type `{MODELS[target]}" in said
    assert "\n" not in said


@pytest.mark.parametrize("row", workloads.rows(), ids=lambda row: row["workload"])
def test_a_workload_without_its_batch_is_refused_with_its_example(row, capsys):
    assert main(["predict", row["workload"], "--on", "T4"]) == 2
    said = capsys.readouterr().err.strip()
    assert row["example"] in said and "BATCH" in said and "\n" not in said


def test_a_machines_gpu_has_the_data_sheet_of_its_size():
    gpus = [{"name": "Apple M1 Max", "memory_bytes": None, "cores": 32}]
    choice = devices.with_data_sheet("Apple M1 Max", gpus)
    assert choice.device.name == choice.name == "M1 Max GPU (32 cores)"
    assert (choice.device.peak("fp32"), choice.device.bytes_per_s) == (10.6e12, 409.6e9)
    assert devices.with_data_sheet("NVIDIA A100-SXM4-80GB").device.peak("bf16") == 312e12


SMALL = [("vae", ""), ("transformer_lm", "200x2x200"), ("resnet50", "32"), ("lstm", "")]
ALL = [
    (row["workload"], size) for row in workloads.rows() for size in workloads.sizes(row["workload"])
]


@pytest.mark.parametrize(
    ("name", "size"),
    [*SMALL, *(pytest.param(*each, marks=pytest.mark.long) for each in ALL if each not in SMALL)],
)
def test_the_counts_of_the_table_are_those_of_the_notebooks_steps(name, size):
    """At another batch size than those of which the table was made."""
    for backend in ("mps", "cuda"):
        counted = work.quantities(workload.count_warm(counts.STEPS[name](size), 10, backend))
        wanted = work.in_precision("fp32", **counted)
        step = workloads.parse(f"{name} 10 {size}")
        assert workloads.count(step, backend=backend) == pytest.approx(wanted, rel=1e-6)


def test_each_example_of_a_workload_is_one():
    for row in workloads.rows():
        assert str(workloads.parse(row["example"])) == row["example"]
        assert bool(row["size"]) == bool(row["sizes"])


def lines_of(arguments, capsys):
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    return lines


def test_devices_are_listed_with_data_sheets_and_results(capsys):
    lines = lines_of(["devices"], capsys)
    assert lines[0] == (
        f"{len(names.all_names())} devices: {len(names.sheets())} with a data sheet, "
        f"{len(names.counts())} with published results"
    )
    (line,) = (line for line in lines if line.startswith("RTX 4090 "))
    assert line.split() == ["RTX", "4090", "82.6", "82.6", "165.2", "1008", "24", "GB", "yes", "31"]
    first = [line.partition("  ")[0] for line in lines[3:]]
    assert first.index("M3 Max GPU (40 cores)") < first.index("A100 80 GB SXM")
    assert first.index("RTX 2080 Ti") < first.index("RTX 3070")


M4_MAX = ["M4 Max CPU", "M4 Max GPU", "M4 Max GPU (32 cores)", "M4 Max GPU (40 cores)"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("m4 max", M4_MAX),
        ("rtx 409", ["RTX 4090"]),
        ("Apple M4 Max", M4_MAX),
        ("m4", ["M4 GPU (10 cores)"]),
        ("H200", ["H200 141 GB SXM"]),
        ("RTX 4000", ["Quadro RTX 4000"]),
        ("V100-SXM2-32GB", ["V100 32 GB"]),
        ("NVIDIA GeForce RTX 4090", ["RTX 4090"]),
    ],
)
def test_a_filter_lists_some_devices(text, wanted, capsys):
    lines = lines_of(["devices", *text.split()], capsys)
    assert [line.partition("  ")[0] for line in lines[3 : 3 + len(wanted)]] == wanted
    assert lines[0].startswith(f"{len(wanted)} device") and not lines[3 + len(wanted)]


def test_a_filter_without_a_device_is_refused(capsys):
    assert main(["devices", "M9"]) == 2
    assert "M9: unknown device; `pomology devices` lists all" in capsys.readouterr().err


# Words of `pomology devices` -> sentences under its table.
SENTENCES = {
    "m2 max": [
        "In predictions this name means M2 Max GPU (30 cores), the smallest with a data sheet; say "
        "'M2 Max GPU (38 cores)' for the other.",
        "Most published results are of M2 Max GPU: ",
    ],
    "M3 MAX (20-core)": [
        "No size with 20 cores has a data sheet or a published result of its own, only M3 Max GPU, "
        "M3 Max GPU (30 cores) and M3 Max GPU (40 cores).",
        "No prediction for M3 MAX (20-core): only M3 Max GPU (30 cores) and M3 Max GPU (40 cores) "
        "have a data sheet.",
    ],
    "H200 PCIe": ["No size with PCIe has a data sheet or a published result"],
    "M5 Pro": ["No prediction for M5 Pro: M5 Pro GPU has no data sheet; similar "],
    "M5": ["the only size with a data sheet.", "Other models: M5 Pro GPU."],
    "M1 CPU": ["No prediction for M1 CPU: no CPU has a data sheet; the GPU of this chip is M1 GPU"],
    "titan": ["take this machine's size of a model or else the smallest, and say which."],
    "": ["take this machine's size of a model or else the smallest, and say which."],
}


@pytest.mark.parametrize("text", SENTENCES)
def test_a_list_of_devices_says_what_their_name_means(text, capsys):
    said = " ".join(lines_of(["devices", *text.split()], capsys))
    assert all(sentence in said for sentence in SENTENCES[text]), said
    assert ("this machine's size" in said) == (text in ("", "titan"))


def test_the_size_with_most_results_is_that_of_the_column(capsys):
    lines = lines_of(["devices", "A100"], capsys)
    results = {line[:15].strip(): int(line.split()[-1]) for line in lines[3:9]}
    most = max(results, key=results.get)
    sentence = f"Most published results are of {most}: {results[most]} of {sum(results.values())}."
    assert sentence in lines
