"""Ceilings and what lies under them: journals made by hand, shares computed by hand, and pictures whose texts are
measured for overlap."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fakes
import nbformat
import pytest
import torch
from torch import nn

from pomology.articles import published
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.measure.estimate import Estimate
from pomology.report import article, declaration, details, roofline
from pomology.report import page as report_page
from pomology.report.showing import Report
from pomology.results import cases as results_cases
from pomology.results import journal
from pomology.results import record as results_record
from pomology.results.run import Run
from pomology.runner import notebooks
from pomology.workloads import cost

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "notebooks" / "this_machine"
FLOAT = 4  # bytes


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    state = {"power_source": "ac", "low_power_mode": False, "thermal_level": None, "load": 0.1, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)


def metric(value, low=None, high=None, unit="FLOP/s", how="measured"):
    return fakes.metric(value, low, high, unit, how)


def record(experiment="vae", metrics=None, **more):
    about = {"experiment": experiment, "config": more.pop("config", {"batch_size": 128}), "metrics": metrics or {}}
    return fakes.record(**about | more)


def product(value, precision="fp32", size=1024, low=None, high=None, experiment="ceilings", **more):
    config = {"operation": "matmul", "shape": f"1x{size}x{size}", "precision": precision}
    framework = {"ceilings_mlx": "mlx", "blas_mlx": "mlx"}.get(experiment, "torch")
    found = {"flops_per_s": metric(value, low, high)}
    more = {"article": "kit", "precision": precision, "framework": framework} | more
    return record(experiment, found, config=config, **more)


def stream(value, operation="triad", experiment="ceilings", **more):
    framework = "mlx" if experiment == "ceilings_mlx" else "torch"
    config = {"operation": operation, "shape": "512 MB", "precision": "fp32"}
    found = {"bytes_per_s": metric(value, 0.9 * value, 1.1 * value, "B/s")}
    return record(experiment, found, config=config, article="kit", framework=framework, **more)


# Ceilings -------------------------------------------------------------------------------------------------------------


def test_a_ceiling_is_the_best_over_sizes_frameworks_and_the_products_of_other_notebooks():
    records = [product(50e9), product(80e9, size=2048), product(40e9, "fp16"), product(99e9, status="mismatch")]
    records += [product(70e9, experiment="ceilings_mlx"), product(60e9, "fp16", experiment="blas_mlx")]
    records += [product(900e9, backend="mps"), product(1200e9, experiment="ceilings_mlx", backend="mlx-gpu")]
    records += [product(5e12, profile="smoke"), record("vae", {"flops_per_s": metric(7e12)})]
    found = roofline.ceilings(records)
    best = {key: (one.value, one.framework) for key, one in found.rates.items()}
    expected = {("cpu", "fp32"): (80e9, "torch"), ("cpu", "fp16"): (60e9, "mlx"), ("gpu", "fp32"): (1200e9, "mlx")}
    assert best == expected and not found.bandwidths


def test_a_number_that_scatters_widely_is_no_ceiling():
    records = [product(80e9, low=78e9, high=82e9), product(200e9, low=12e9, high=250e9, size=512)]
    assert roofline.ceilings(records).rates["cpu", "fp32"].value == 80e9
    assert roofline.ceilings(records[::-1]).rates["cpu", "fp32"].value == 80e9


def test_the_last_level_cache_where_the_system_tells_and_nothing_on_a_mac(tmp_path, monkeypatch):
    assert snapshot.cache_bytes(tmp_path) is None
    for number, size in enumerate(("48K", "2048K", "491520K", "?")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert snapshot.cache_bytes(tmp_path) == 480 * 2**20
    monkeypatch.setattr(snapshot.sys, "platform", "darwin")
    assert snapshot.cache_bytes() is None


def test_bandwidth_comes_from_copies_and_triads_and_from_no_product():
    records = [stream(8e9, "copy"), stream(9e9), stream(7e9, "add", "ceilings_mlx"), stream(90e9, backend="mps")]
    matvec = record("blas_torch", {"flops_per_s": metric(4e9), "bytes_per_s": metric(77e9, unit="B/s")})
    matvec = matvec.replace(config={"operation": "matvec", "shape": "128x128", "precision": "fp32"})
    found = roofline.ceilings([*records, matvec])
    assert {kind: one.value for kind, one in found.bandwidths.items()} == {"cpu": 9e9, "gpu": 90e9}
    assert {key: one.value for key, one in found.rates.items()} == {("cpu", "fp32"): 4e9}
    assert not roofline.ceilings([]) and found


NAMES = {"fp32": "fp32", "32-true": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16", "autocast": "autocast"}
NAMES |= {"autocast bf16": "bf16", "autocast fp16": "fp16", "torch.bfloat16": "bf16", "tf32": "tf32", "fp64": "fp64"}


@pytest.mark.parametrize("name", NAMES)
def test_the_precision_of_a_case_is_that_of_its_products(name):
    assert results_cases.precision(record(precision=name)) == NAMES[name]


# Shares, by hand ------------------------------------------------------------------------------------------------------


def test_a_share_and_its_interval_by_hand():
    best = roofline.ceilings([product(100e9, low=80e9, high=125e9), product(50e9, "bf16", low=49e9, high=51e9)])
    share = roofline.share(record(metrics={"flops_per_s": metric(25e9, 20e9, 30e9)}), best)
    # At the least the lowest rate over the highest ceiling, at the most the other way round.
    assert (share.value, share.low, share.high) == pytest.approx((0.25, 20 / 125, 30 / 80))
    half = record(metrics={"flops_per_s": metric(25e9)}, precision="bf16-mixed")
    assert (roofline.share(half, best).value, roofline.share(half, best).low) == (0.5, None)


def test_a_step_whose_operations_and_time_are_known_has_a_rate():
    timed = record(metrics={"step_s": metric(0.5, 0.4, 0.8, "s")}, flops_per_step=10**9)
    rate = results_cases.achieved(timed)
    assert (rate.value, rate.low, rate.high) == pytest.approx((2e9, 1.25e9, 2.5e9))
    best = roofline.ceilings([product(10e9)])
    assert roofline.share(timed, best).value == pytest.approx(0.2)


@pytest.mark.parametrize(
    "fault", [{"status": "mismatch"}, {"profile": "smoke"}, {"precision": "fp64"}, {"backend": "mps"}, {"metrics": {}}]
)
def test_where_something_is_missing_there_is_no_share(fault):
    best = roofline.ceilings([product(100e9)])
    good = record(metrics={"flops_per_s": metric(25e9)})
    assert roofline.share(good, best).value == 0.25
    assert roofline.share(good.replace(**fault), best) is None


@pytest.mark.parametrize(
    ("operations", "limit", "roof", "share"),
    [(2, "memory", 20e9, 0.25), (20, "compute", 100e9, 0.05), (0.1, "memory", 1e9, 5.0)],
)
def test_the_lower_roof_by_hand(operations, limit, roof, share):
    best = roofline.ceilings([product(100e9), stream(10e9)])
    case = record(metrics={"flops_per_s": metric(5e9)}, flops_per_step=int(operations * 1000), bytes_per_step=1000)
    found = roofline.roof(case, best)
    assert (found.limit, found.flops_per_s, found.share) == (limit, pytest.approx(roof), pytest.approx(share))
    assert roofline.roof(case.replace(bytes_per_step=None), best) is None
    assert roofline.roof(case, roofline.ceilings([product(100e9)])) is None


def test_the_intensity_of_a_product_is_that_of_its_operands_and_result():
    rates = {"flops_per_s": metric(60e9), "bytes_per_s": metric(3e9, unit="B/s")}
    assert roofline.intensity(record("blas_torch", rates)) == pytest.approx(20)


# Bytes, by hand -------------------------------------------------------------------------------------------------------


def moved(build, step, slots=0, backend="mps") -> int:
    return cost.workload(build, step, slots, backend).moved_bytes


def test_the_bytes_of_a_linear_layer_by_hand():
    batch, inputs, outputs = 5, 10, 7
    forward = outputs + batch * inputs + inputs * outputs + batch * outputs  # bias, input and weight; output
    total = batch * outputs + 1  # the sum reads the output and writes a number
    begin = 1  # the gradient of the sum: a one, which stands for all the outputs' gradients
    weight = 1 + batch * inputs + inputs * outputs
    bias = 1 + outputs
    parameters = inputs * outputs + outputs
    update = 7 * parameters  # Adam: reads weight, gradient and two moments, writes weight and moments
    found = moved(lambda: nn.Linear(inputs, outputs), lambda m: m(torch.empty(batch, inputs)).sum().backward(), 2)
    assert found == FLOAT * (forward + total + begin + weight + bias + update)


@pytest.mark.parametrize(("slots", "times"), [(0, 3), (1, 5), (2, 7)])
def test_the_update_moves_each_of_its_tensors(slots, times):
    def none(module):
        pass

    assert moved(lambda: nn.Linear(10, 7, bias=False), none, slots) == FLOAT * times * 70


def test_the_bytes_of_a_convolution_by_hand():
    pictures, kernel, result = 2 * 3 * 8 * 8, 4 * 3 * 3 * 3, 2 * 4 * 8 * 8

    def step(model):
        with torch.no_grad():
            model(torch.empty(2, 3, 8, 8))

    build = lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False)  # noqa: E731
    assert moved(build, step) == FLOAT * (pictures + kernel + result + 3 * kernel)


def test_views_are_free_and_half_precision_moves_half():
    def step(model):
        x = torch.empty(6, 4, dtype=model.weight.dtype)
        x.view(4, 6).t().reshape(2, 12)[:1].unsqueeze(0).expand(9, 1, 12)

    nothing = moved(lambda: nn.Linear(4, 4, bias=False), step)
    # A reshape of a transposed matrix copies it: 24 numbers read and written.
    assert nothing == FLOAT * (3 * 16 + 48)
    halved = moved(lambda: nn.Linear(4, 4, bias=False).half(), step)
    assert 2 * halved == nothing


def test_an_embedding_reads_the_rows_that_it_gives_and_not_the_table():
    def step(model):
        with torch.no_grad():
            model(torch.empty(5, dtype=torch.long))

    found = moved(lambda: nn.Embedding(1000, 8), step)
    assert found == 5 * 8 + 2 * FLOAT * 5 * 8 + FLOAT * 3 * 8000


def test_fused_attention_reads_and_writes_each_of_its_tensors_once():
    shape, rows = (2, 3, 16, 8), 2 * 3 * 16

    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = nn.ParameterList(torch.empty(shape) for _ in range(3))

    def step(model):
        nn.functional.scaled_dot_product_attention(*model.all).sum().backward()

    one = rows * 8  # queries, keys, values, the output, and each of their gradients
    forward = 4 * one + rows  # and the logarithm of a sum for each row
    summed = one + 1 + 1  # the sum, and the gradient that begins, which stands for all the output's
    backward = 4 * one + rows + 1 + 3 * one
    assert moved(Three, step, backend="cuda") == FLOAT * (forward + summed + backward + 3 * 3 * one)


def attention(backend: str) -> int:
    def step(layer):
        tokens = torch.empty(2, 256, 32)
        layer(tokens, tokens, tokens, need_weights=False)[0].sum().backward()

    return moved(lambda: nn.MultiheadAttention(32, 2, batch_first=True), step, backend=backend)


def test_fused_attention_moves_no_square_matrices_and_no_gradient_twice():
    square = FLOAT * 2 * 2 * 256 * 256  # the matrix of every head
    assert attention("mps") - attention("cuda") > 6 * square
    one = FLOAT * 2 * 256 * 32  # queries, or keys, or values, or the output
    assert attention("cuda") > 13 * one  # the attention alone: 4 forward, 5 backward and 3 gradients
    # Where nothing is fused, a second counting adds nothing of the first.
    plain = lambda module: module(torch.empty(5, 10)).sum().backward()  # noqa: E731
    assert moved(lambda: nn.Linear(10, 7), plain, backend="cuda") == moved(lambda: nn.Linear(10, 7), plain)


def test_a_step_writes_its_bytes_into_the_journal(tmp_path):
    experiment = Experiment("vae", article="003", devices="cpu", budget_s=0.01, out=str(tmp_path))
    for case in experiment.cases(batch_size=[4]):
        with case:
            step = lambda m: m(torch.empty(4, 10)).sum().backward()  # noqa: E731
            case.require_memory(cost.workload(lambda: nn.Linear(10, 7), step, 0))
            model = case.watch_model(nn.Linear(10, 7))
            for _ in case.steps([torch.ones(4, 10)] * 30):
                model(torch.ones(4, 10)).sum().backward()
                with torch.no_grad():
                    model.weight -= 0.1
    (written,) = experiment.records
    assert written.status == "ok" and written.bytes_per_step == moved(lambda: nn.Linear(10, 7), step)
    assert results_record.problem(written) is None


# Tables ---------------------------------------------------------------------------------------------------------------


def cells(table, heading):
    place = table.columns.index(heading)
    return [row.cells[place] for row in table.rows]


def test_tables_tell_the_share_where_there_are_ceilings_and_nothing_where_not():
    cases = [record(metrics={"flops_per_s": metric(25e9, 20e9, 30e9)}), record(backend="mps", config={"batch_size": 9})]
    best = roofline.ceilings([product(100e9, low=100e9, high=100e9)])
    table = details.details_table(cases, best)
    assert cells(table, roofline.BEST) == ["25.0 ± 5.0 %", ""]
    assert table.columns[table.columns.index("Achieved") + 1] == roofline.BEST
    assert table.data[0]["share_of_best"] == 0.25 and table.data[0]["share_of_best_low"] == pytest.approx(0.2)
    without = details.details_table(cases)
    assert roofline.BEST not in without.columns and len(without.columns) == len(table.columns) - 1
    assert details.details_table(cases, roofline.ceilings([])) == without
    assert details.details_table(cases[1:], best).columns == without.columns


def test_an_article_s_table_of_rates_tells_the_share_in_the_rows_of_this_machine():
    found = {"flops_per_s": metric(30e9, 29e9, 31e9), "step_s": metric(1, unit="s")}
    case = record("model_sizes", found, config={"model": "vgg16", "batch_size": 32}, article="000")
    best = roofline.ceilings([product(120e9)])
    table = article.article_table("model_sizes", [case], best)
    shares = dict(zip((row.kind for row in table.rows), cells(table, roofline.BEST), strict=True))
    assert shares == {"published": "", "measured": "25.0 %"}
    assert roofline.BEST not in article.article_table("model_sizes", [case]).columns
    repeats = [case.replace(repeat=1), case]
    assert cells(article.article_table("model_sizes", repeats, best), roofline.BEST)[-1] == "25.0 %"


def test_a_ceiling_that_was_measured_too_low_is_told():
    best = roofline.ceilings([product(10e9)])
    table = details.details_table([record(metrics={"flops_per_s": metric(25e9)})], best)
    assert cells(table, roofline.BEST) == ["250 %"] and any("More than 100 %" in note for note in table.notes)
    right = details.details_table([record(metrics={"flops_per_s": metric(25e9)})], roofline.ceilings([product(25e9)]))
    assert not any("More than 100 %" in note for note in right.notes)


def test_the_ceilings_stand_below_the_printed_peaks_with_what_reached_them():
    records = [product(80e9, flags=["contended"]), product(1e12, experiment="ceilings_mlx", backend="mlx-gpu")]
    table = article.article_table("roofline", [*records, stream(9e9)])
    assert ("M2 Ultra", "fp32", "27 TFLOPS") in [row.cells[:3] for row in table.rows if row.kind == "published"]
    ours = [row.cells for row in table.rows if row.kind == "measured"]
    assert ours[0][:4] == ("Apple M9 CPU", "fp32", "80.0 GFLOP/s", "") and ours[0][4].endswith("contended")
    assert ours[1][3] == "9.00 GB/s ± 10 %" and "triad" in ours[1][4]
    assert ours[2][:3] == ("Apple M9 GPU", "fp32", "1.00 TFLOP/s") and ours[2][4].startswith("MLX; ceilings_mlx")
    empty = roofline.ceilings_table([])
    assert not empty.rows and "run the notebooks ceilings" in " ".join(empty.notes)


EVERY = [notebook for notebook in notebooks.notebooks() if not notebook.after and notebook.article != published.KIT]


def full_run(kinds=("cpu", "mps")) -> list[dict]:
    """One record of every notebook of the kit on each device, and ceilings."""
    found = []
    for backend, times in (("cpu", 1), ("mps", 20)):
        if backend not in kinds:
            continue
        for precision, best in (("fp32", 80e9), ("fp16", 60e9), ("bf16", 95e9)):
            bounds = {"low": times * 0.98 * best, "high": times * 1.02 * best}
            found.append(product(times * best, precision, backend=backend, **bounds))
        found.append(stream(times * 5e9, backend=backend))
        for number, notebook in enumerate(EVERY):
            rate = times * 70e9 / (1 + number % 7)
            framework = "mlx" if notebook.name.endswith("_mlx") else "torch"
            where = {"mps": "mlx-gpu", "cpu": "cpu"}[backend] if framework == "mlx" else backend
            more = {"framework": framework, "backend": where, "article": notebook.article}
            counted = {"flops_per_step": (number + 1) * 10**9, "bytes_per_step": 10**9}
            if notebook.article == "004":
                more["framework"], counted["bytes_per_step"] = "tensorflow", None
            config = (
                {"operation": "matmul", "shape": "8x9x9"} if notebook.name.startswith("blas") else {"batch_size": 8}
            )
            rates = {"flops_per_s": metric(rate, 0.9 * rate, 1.1 * rate)}
            found.append(record(notebook.name, rates, config=config, **counted, **more))
    return found


def test_every_experiment_of_the_kit_lies_under_the_roofs_of_a_full_run():
    records = full_run()
    table = roofline.roofline_table(records)
    assert {row["experiment"] for row in table.data} == {notebook.name for notebook in EVERY} and len(EVERY) > 15
    assert len(table.rows) == 2 * len(EVERY)
    assert not [note for note in table.notes if note.startswith("Not in the table")]
    assert all(share.endswith("%") for share in cells(table, roofline.BEST))
    counted = [row for row in table.data if row["flops_per_byte"] is not None]
    assert {row["experiment"] for row in table.data} - {row["experiment"] for row in counted} == {"mlp", "cnn", "lstm"}
    assert all(row["limit"] in ("memory", "compute") for row in counted)


def test_what_is_not_in_the_table_is_named_with_the_reason():
    records = [record("kernel_launch_torch", {"launch_s": metric(1e-5, unit="s")}), record("dcgan", status="too-big")]
    records += [record("vae", {"flops_per_s": metric(1e9)}, profile="smoke"), stream(1e9)]
    table = roofline.roofline_table([*records, product(1e9)])
    assert not table.rows
    said = " ".join(table.notes)
    for words in ("(no operations were counted): kernel_launch_torch", "(too-big): dcgan", "(smoke test): vae"):
        assert words in said
    assert "run the notebooks ceilings" not in said
    assert "run the notebooks ceilings" in " ".join(roofline.roofline_table(records[:3]).notes)


def test_of_an_experiment_the_best_case_is_shown_also_of_a_smaller_model():
    rates = [3e9, 9e9, 5e9]
    records = [record(metrics={"flops_per_s": metric(r)}, config={"batch_size": r}, scaled=r > 8e9) for r in rates]
    failed = record(metrics={"flops_per_s": metric(99e9)}, config={"batch_size": 99}, status="mismatch")
    (point,) = roofline.roofline_points([*records, failed])
    assert point.rate.value == 9e9 and point.share is None and point.roof is None
    row = roofline.roofline_table([*records, failed]).rows[0].cells
    assert row[5] == "no ceiling" and row[6] == "not counted" and "scaled" in row[-1]


# The notebooks --------------------------------------------------------------------------------------------------------


def notebook(name="ceilings", folder=HERE) -> list[str]:
    return [cell.source for cell in nbformat.read(folder / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]


@pytest.fixture
def run_ceilings(tmp_path, monkeypatch):
    """Runs the notebook's cases with faults planted; gives the records by operation and precision."""

    def run(devices=None, sizes=(64,), **faults):
        experiment = Experiment("ceilings", article="kit", devices="cpu", budget_s=0.01, out=str(tmp_path))
        experiment.devices = devices or experiment.devices
        scope = {"experiment": experiment, "precisions": ["fp32", "fp16"], "sizes": list(sizes), "megabytes": 16}
        scope |= {"budget_s": 0.01, "limit_s": 20.0}
        for source in notebook()[1:]:
            if "experiment.table" in source or "experiment.ceilings" in source:
                continue
            if "experiment = Experiment(" in source:
                source = source.split("experiment = ")[0]
            exec(compile(source.split("\nfor case in")[0], "ceilings.ipynb", "exec"), scope)
            scope |= {name: fault for name, fault in faults.items() if name in scope}
        scope["cuda"] = False
        loop = (
            "for case in" + next(source for source in notebook() if "\nfor case in" in source).split("\nfor case in")[1]
        )
        exec(compile(loop, "ceilings.ipynb", "exec"), scope)
        return {(r.config["operation"], r.precision): r for r in experiment.records}

    return run


def test_the_bytes_and_operations_of_the_ceilings_by_hand(run_ceilings, monkeypatch):
    timed = calls.Measurement(1.0, Estimate(0.5, "s", 0.4, 0.8, 9), (), "budget")
    monkeypatch.setattr(calls, "measure", lambda *_, **__: timed)
    found = run_ceilings()
    assert {key: one.status for key, one in found.items()} == dict.fromkeys(found, "ok") and len(found) == 4
    triad, copy = (found[name, "fp32"].metrics["bytes_per_s"] for name in ("triad", "copy"))
    assert triad.value == pytest.approx(3 * 16e6 / 0.5) and copy.value == pytest.approx(2 * 16e6 / 0.5)
    assert (triad.low, triad.high) == pytest.approx((3 * 16e6 / 0.8, 3 * 16e6 / 0.4))
    rate = found["matmul", "fp16"].metrics["flops_per_s"]
    assert rate.value == pytest.approx(2 * 64**3 / 0.5) and rate.unit == "FLOP/s"


def test_a_product_that_is_not_what_was_asked_for_is_no_ceiling(run_ceilings, monkeypatch):
    from pomology.devices.torch import TorchDevice as Device

    works = Device.product
    monkeypatch.setattr(Device, "product", lambda self, precision, size: works(self, "fp32", size))
    found = run_ceilings()
    assert found["matmul", "fp32"].status == "ok" and found["matmul", "fp16"].status == "mismatch"
    assert "torch.float32 where torch.float16" in found["matmul", "fp16"].reason


def test_a_product_that_computes_nothing_is_no_ceiling(run_ceilings, monkeypatch):
    from pomology.devices.torch import TorchDevice as Device

    empty = lambda self, precision, size: lambda: torch.zeros(size, size)  # noqa: E731
    monkeypatch.setattr(Device, "product", empty)
    assert run_ceilings()["matmul", "fp32"].status == "mismatch"


def test_a_triad_that_leaves_something_out_is_no_ceiling(run_ceilings, monkeypatch):
    works = torch.add
    monkeypatch.setattr(torch, "add", lambda b, c, alpha, out: works(b, c, out=out))
    found = run_ceilings()
    assert found["triad", "fp32"].status == "mismatch" and found["copy", "fp32"].status == "ok"


def test_a_gpu_whose_work_is_done_by_the_processor_has_no_ceilings(run_ceilings):
    from pomology.devices.torch import TorchDevice as Device

    class Pretended(Device):
        def __init__(self):
            super().__init__("cpu")
            self.backend, self.kind = "mps", "gpu"

        name = "Apple M9"

        def synchronize(self):
            pass

        def free_memory(self):
            return 10**10

        def peak_memory(self):
            return {}

        def release(self):
            pass

        def reset_peak_memory(self):
            pass

    found = run_ceilings([Pretended()])
    assert {one.status for one in found.values()} == {"fallback"} and len(found) == 4
    assert not roofline.ceilings(found.values())


def test_behind_a_product_that_is_too_big_no_larger_one_is_tried(run_ceilings, monkeypatch):
    found = run_ceilings(sizes=(64, 100_000, 200_000))
    assert found["matmul", "fp32"].status == "too-big"
    assert found["matmul", "fp32"].reason == "1x100000x100000 is too big already"


def test_tf32_is_on_for_its_own_row_only():
    from types import SimpleNamespace

    scope = {"cases": []}
    (source,) = [source for source in notebook() if "def build" in source]
    imports = next(source for source in notebook() if "import torch" in source).split("experiment = ")[0]
    exec(compile(imports + source, "ceilings.ipynb", "exec"), scope)
    asked = []
    backend = SimpleNamespace(backend="cuda", product=lambda *what: asked.append((*what, allowed())))

    def allowed():
        return torch.backends.cuda.matmul.allow_tf32

    before = allowed()
    try:
        for precision in ("fp32", "tf32", "fp16", "tf32", "fp32"):
            scope["build"](SimpleNamespace(backend=backend, precision=precision), SimpleNamespace(lengths=(1, 8, 8)))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert asked == [
        *(("fp32", 8, False), ("fp32", 8, True), ("fp16", 8, False)),
        *(("fp32", 8, True), ("fp32", 8, False)),
    ]


def test_the_ceilings_come_second_and_what_lays_all_together_last():
    names = [one.name for one in notebooks.notebooks()]
    assert names[:3] == ["instrument_check", "ceilings", "ceilings_mlx"] and names[-2:] == ["roofline", "summary"]


# A run ----------------------------------------------------------------------------------------------------------------


def write(folder: Path, records: list[dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for one in records:
        journal.Journal(folder / f"{one.experiment}.jsonl").end(one)
    return folder


def test_the_roofline_notebook_reads_the_whole_run_and_works_alone(tmp_path):
    alone = Report("roofline", article="001", combines=["*"], figure="share_of_roof", out=str(tmp_path / "empty"))
    assert "run the notebooks ceilings" in " ".join(alone.roofline().notes)
    assert "run the notebooks ceilings" in " ".join(alone.table().notes)
    assert "<svg" in alone.figure().data
    out = write(tmp_path / "run", full_run())
    whole = Report.of(declaration.of("roofline"), Run(out))
    assert len(whole.roofline().rows) == 2 * len(EVERY)
    assert (out / "tables" / "roofline-roofline.csv").read_text().count("\n") == 2 * len(EVERY) + 1
    later = Experiment("vae", article="003", devices="cpu", out=str(out))
    assert roofline.BEST in later.details().columns
    assert len(whole.ceilings().rows) == 8  # of both devices three precisions and the memory


def test_the_page_of_a_run_has_the_ceilings_the_shares_and_the_roofline(tmp_path):
    out = write(tmp_path / "run", full_run())
    (out / "machine.json").write_text(json.dumps({"chip": "Apple M9", "profile": "quick"}))
    nbformat.write(nbformat.v4.new_notebook(metadata={"pomology": {"article": "001"}}), out / "roofline.ipynb")
    page = report_page.build(out).read_text()
    assert "processor: bf16 95.0 GFLOP/s, fp16 60.0 GFLOP/s, fp32 80.0 GFLOP/s, memory 5.00 GB/s" in page
    assert roofline.BEST.replace("'", "&#x27;") in page and "checks of the kit itself" not in page
    sections = re.split(r"<h2[^>]*>", page)
    (profiling,) = [part for part in sections if part.startswith("Profiling Apple Silicon")]
    assert 'id="roofline"' in profiling and "Where each experiment lies" not in profiling.split("<h3>")[0]
    assert page.count("cannot be shown") == 0 and "Not of an article" not in page
    (own,) = [part for part in sections if part.startswith("The kit itself")]
    assert 'id="ceilings"' in own and "5.00 GB/s" in own
