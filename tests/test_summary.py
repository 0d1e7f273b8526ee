"""What every device achieves of its peak, against numbers worked out by hand from the articles' tables."""

from __future__ import annotations

import csv
import re

import nbformat
import pytest
from pomology.report.showing import Report
from records import metric, product, rate, record, write

from pomology import format
from pomology.articles import published
from pomology.report import declaration, roofline, summary
from pomology.report import page as report_page
from pomology.report.figures import style
from pomology.results.run import Run
from pomology.runner import notebooks

TERA = 1e12


def found(records=(), **wanted) -> list[summary.Rate]:
    rates = summary.rates(list(records))
    return [one for one in rates if all(getattr(one, key) == value for key, value in wanted.items())]


@pytest.mark.parametrize(
    ("wanted", "flops_per_s", "share"),
    [
        # 8 x 5.007 TFLOP in 2.710 s are 14.78 TFLOP/s, of 27; 4 x 5.007 in 3.645, of 13.6; 8 x 5.007 in 2.771, of 39.
        ({"workload": "gpt2_pretraining", "device": "M2 Ultra", "framework": "mlx"}, 14.78, 0.547),
        ({"workload": "gpt2_pretraining", "device": "M2 Max", "framework": "torch"}, 5.495, 0.404),
        ({"workload": "gpt2_pretraining", "device": "A6000"}, 14.46, 0.371),
        # 417.3 TFLOP an epoch in 252.657 s, of 9.06; 23.71 in 15.547, of 21.2; 0.1968 in 1.998.
        ({"device": "2070 Super CUDA", "settings": "batch size 1024, image size 64"}, 1.652, 0.182),
        ({"workload": "siamese", "device": "M1 Ultra GPU", "settings": "batch size 1024"}, 1.525, 0.0719),
        ({"workload": "vae", "device": "M1 Ultra GPU", "settings": "batch size 5120"}, 0.0985, 0.00465),
        # 4,167 TFLOP in 201.6 s, of 35.6, and in 301.8 s, of 13.8; 0.1220 in 10.8 s, and 0.05671 in 10.2 s, of 35.6.
        ({"workload": "vgg16", "device": "3090"}, 20.67, 0.581),
        ({"workload": "vgg16", "device": "Titan V"}, 13.81, 1.0006),
        ({"workload": "rasbt_lenet", "device": "3090"}, 0.01130, 3.17e-4),
        ({"workload": "rasbt_mlp", "device": "3090"}, 0.005560, 1.56e-4),
    ],
)
def test_published_times_reach_what_a_pencil_says(wanted, flops_per_s, share):
    (one,) = found(**wanted)
    assert one.rate.value / TERA == pytest.approx(flops_per_s, rel=2e-3)
    assert one.share.value == pytest.approx(share, rel=4e-3) and one.share.low is one.share.high is None
    assert one.source == "published"


def test_several_settings_of_a_device_reach_what_a_pencil_says():
    lines = found(workload="transformer_lm", device="2070 Super CUDA")  # the last: 376.7 TFLOP in 72.54 s, of 9.06
    assert [round(one.rate.value / TERA, 2) for one in lines] == [1.96, 3.48, 4.93, 5.19]
    assert lines[-1].share.value == pytest.approx(0.573, rel=2e-3)
    # 399.2 TFLOP, and 55.8 over 2 or 200 epochs, in 405, 3558 and 29.4 s.
    small = {one.device: one.rate.value / TERA for one in found(workload="simclr") if "batch size 128" in one.settings}
    assert small == pytest.approx({"M1 Pro GPU": 1.05, "M1 Pro CPU": 0.12, "Nvidia A6000": 13.59}, abs=5e-3)
    # At batch 512: 97 steps of 3.4117 TFLOP and 66.65 of features are 397.6 an epoch; 200 in 87.1 min, 800 in 331.1.
    larger = found(workload="simclr_reference")
    assert not any(one.setting for one in larger)  # no article prints them
    assert [one.rate.value / TERA for one in larger] == pytest.approx([15.23, 16.01], rel=1e-3)
    # Every time with a count is there once; one row is printed twice.
    rows = [row for row in published.rows() if row["flops"] and row["metric"].endswith("_s")]
    assert len(found(source="published")) == len(rows) - 1
    assert {one.workload for one in found()} == set(summary.WORKLOADS)


def test_peaks_are_of_devices_that_the_articles_have_and_each_names_its_source():
    devices, shown = {row["device"] for row in published.rows()}, " ".join(summary.table([]).notes)
    table_1 = [row for row in published.rows("001", "costs") if row["metric"] == "peak_flops_per_s"]
    printed = {row["device"]: row["si"] for row in table_1}
    names = {"A6000": "NVIDIA RTX A6000"}
    lines = published.read("peaks.csv")
    assert len(lines) == len(summary.peaks()) > 8
    for line in lines:
        device, peak, source = line["device"], float(line["peak_flops_per_s"]), line["source"]
        assert device in devices and line["precision"] == ("tf32" if device in ("3090", "Nvidia A6000") else "fp32")
        assert line["url"].startswith("https://") and f"({line['url']})" in shown and 1e12 < peak < 1e14
        # Those that are not printed as such are worked out in their source.
        if worked := re.search(r"^2 operations × ([\d,]+) cores × ([\d,]+) MHz", source):
            cores, clock = (int(text.replace(",", "")) for text in worked.groups())
            assert peak == pytest.approx(2e6 * cores * clock, rel=5e-3)
        assert "table 1" not in source or peak == printed[names.get(device, device)]


def test_a_device_whose_peak_is_not_known_has_a_rate_and_no_share():
    assert {one.role for one in found(source="published") if one.share is not None} == {"gpu", "rival"}
    for device in ("M1 Ultra CPU", "Titan V CPU", "Intel CPU"):
        rates = found(device=device)
        assert rates and all(one.share is one.peak_flops_per_s is None and one.rate.value > 0 for one in rates)
        assert {one.how for one in rates} == {summary.NO_PEAK}
    # The same name with as many cores as article 003 tells, and with as many as nobody tells.
    assert {one.share is None for one in found(workload="siamese", device="M1 Ultra GPU")} == {False}
    for workload in ("vgg16", "rasbt_lenet", "rasbt_mlp"):
        apple = found(workload=workload, role="gpu", source="published")
        assert "M1 Pro GPU" in {one.device for one in apple}
        assert {(one.share, one.how) for one in apple} == {(None, "how many GPU cores it had is not told")}


LM = {"model": "gpt2", "batch_size": 1}
RUN = [
    product(100e9, low=90e9, high=110e9),
    product(400e9, precision="fp16", low=390e9, high=410e9),
    record("vae", rate(50e9, 45e9, 55e9)),
    record("vae", rate(20e9), config={"batch_size": 5120}),
    record("dcgan", {"step_s": metric(2.0, 1.6, 2.5, "s")}, flops_per_step=60 * 10**9),
    record("gpt2_pretraining_torch", rate(80e9), config=LM, article="001", scaled=True),
    record("model_sizes", rate(40e9), config={"model": "vgg16"}, article="000"),
    record("model_sizes", rate(30e9), config={"model": "resnet18"}, article="000"),
    record("whisper_pretraining", rate(90e9), precision="autocast fp16", article="001"),
    record("cnn", rate(7e9), precision="bf16", article="004"),
    record("siamese", rate(99e9), status="error", reason="broke"),
    record("lstm", rate(99e9), profile="smoke"),
    record("mlp", {"throughput": metric(5.0, unit="1/s")}),
]


def test_this_machine_is_held_against_its_own_best_product():
    mine = {(one.workload, one.settings): one for one in found(RUN, source="measured")}
    assert len(mine) == 8
    vae = mine["vae", "batch size 128, computing alone"]  # of the article's setting nothing but steps was timed
    assert (vae.share.value, *vae.share.bounds) == pytest.approx((0.5, 45 / 110, 55 / 90))
    assert vae.setting == ""
    assert (vae.peak_flops_per_s, vae.device, vae.role) == (100e9, "Apple M9 CPU", "cpu")
    assert vae.how == "the best product in fp32 of this run, with PyTorch"
    dcgan = mine["dcgan", "batch size 128"]
    assert (dcgan.rate.value, *dcgan.rate.bounds) == pytest.approx((30e9, 24e9, 37.5e9))
    assert mine["gpt2_pretraining", "model gpt2, batch size 1, a smaller model"].share.value == pytest.approx(0.8)
    assert mine["vgg16", "model vgg16"].share.value == pytest.approx(0.4)
    assert ("model_sizes resnet18", "model resnet18") in mine
    half = mine["whisper_pretraining", "batch size 128"]
    assert half.precision == "fp16" and half.share.value == pytest.approx(90 / 400)
    nobody = record("vae", rate(1e9), chip=None, backend="mps", framework="strange")
    (one,) = found([nobody], source="measured")
    assert (one.device, one.role, one.share) == ("this machine GPU", "gpu", None)
    without = mine["cnn", "batch size 128"]
    assert without.share is None and without.how == "no product in bf16 was measured in this run"


def published_shares(workloads=tuple(summary.WORKLOADS)) -> list[float]:
    """At the setting of each workload at which a device of the article is fastest; worked out from the tables."""
    chosen = {"batch size 1024", "batch size 1024, image size 64", "batch size 5120"}
    chosen |= {"batch size 200, embedding size 500, layers 6, hidden size 1024"}
    chosen |= {f"model gpt2-large, batch size {size}" for size in (2, 4, 8)}
    best = {}
    for one in found(source="published"):
        article_s = one.settings in chosen or one.settings.startswith("batch size 128, epochs")
        if one.share and one.workload in workloads and article_s:
            best[one.workload, one.device] = max(one.share.value, best.get((one.workload, one.device), 0))
    return sorted(best.values())


BEST = "Of its best measured rate of operations this machine's"
AT_THEIRS = "at the articles' own settings, loading and all else included"


def test_the_sentence_compares_what_both_have_timed():
    said = summary.sentence(RUN)
    # vae 0.2, dcgan 0.3, gpt2 0.8 of a smaller model; vgg16 is in no article's table.
    shares = "20 to 80 % (median 30 %) computing alone (3 models, smaller versions among them)."
    assert said.startswith(f"{BEST} processor reached {shares}")
    theirs = published_shares(("vae", "dcgan", "gpt2_pretraining"))
    low, middle, high = (format.significant(100 * one, 2) for one in (theirs[0], theirs[3], theirs[-1]))
    assert len(theirs) == 7
    assert f"GPUs reached {low} to {high} % (median {middle} %) of their published peaks on the same models (7" in said
    assert "GPU reached" not in said
    # An audit's count without upstream's numbers.
    assert len(published_shares()) == 13 and format.significant(100 * published_shares()[6], 2) == "18"


def epoch(seconds: float, computing: float, experiment="vae", **more):
    """A case of 100 steps whose epoch takes much longer than its steps."""
    metrics = rate(computing) | {"epoch_s": metric(seconds, 0.9 * seconds, 1.1 * seconds, "s")}
    return record(experiment, metrics, **more)


def test_whole_times_are_compared_at_one_setting_of_the_article_and_computing_stands_apart():
    product_ = product(100e9, low=95e9, high=105e9)
    small, large = epoch(2.0, 99e9), epoch(3.0, 80e9, config={"batch_size": 5120})
    faster = epoch(1.0, 99e9, config={"batch_size": 5120, "pictures": 64})
    records = [product_, small, faster, large, epoch(1.0, 99e9, config={"batch_size": 64})]
    mine = {one.settings: one for one in found(records, source="measured")}
    # 0.1968 TFLOP in 3 s, as the published times are worked out; its steps alone are a rate of their own.
    whole, steps = mine["batch size 5120"], mine["batch size 5120, computing alone"]
    assert (whole.rate.value, steps.rate.value) == (pytest.approx(65.59e9, rel=1e-3), 80e9)
    assert whole.rate.low == pytest.approx(65.59e9 / 1.1, rel=1e-3)
    assert mine["batch size 64"].rate.value == 99e9 and not mine["batch size 64"].setting  # no setting of the article
    assert "batch size 5120, pictures 64" not in mine  # the kit's own faster way has no whole time beside the article's
    # Its fastest device is faster at 5120; the kit's own faster way to run that is not the article's.
    (chosen,) = [one for one in summary.alike(summary.rates(records)) if one.source == "measured"]
    assert chosen is not None and chosen.settings == "batch size 5120"
    said = summary.sentence(records)
    assert f"{BEST} processor reached 66 % {AT_THEIRS} (one model); 80 % computing alone (one model)." in said
    # The nearest of those that it has, where it has not that one.
    (chosen,) = [one for one in summary.alike(summary.rates([product_, small])) if one.source == "measured"]
    assert chosen.settings == "batch size 128" and chosen.share.value == pytest.approx(0.9838, rel=1e-3)
    # What five steps tell is said to be about so much.
    few = large.metrics["epoch_s"].replace(low=None, high=None, n=2, covers="none")
    large = large.replace(metrics=large.metrics | {"epoch_s": few})
    assert "reached about 66 %" in summary.sentence([product_, large])


FAST = [product(1e12, backend="mps"), record("vae", rate(3e11), backend="mps")]
SMALL = record("vae", rate(30e9), scaled=True)
ALONE = [product(100e9), SMALL]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], ""),
        (ALONE, "None can be called slow, as only one was measured: the Apple M9 CPU reaches 30 % of its best "),
        ([*ALONE, *FAST], "None is the slower: the Apple M9 "),  # 30 % of each
        (
            [*RUN, *FAST],
            "The Apple M9 CPU is slow for its peak: it reaches 20 % of its best measured rate, the ",
        ),
        (
            [*RUN, *FAST[:1], record("siamese", rate(3e11), backend="mps")],
            "Which device is slow for its peak cannot be",
        ),
    ],
)
def test_the_device_that_is_slow_for_its_peak_is_named_first(records, said):
    found = summary.slowest(summary.reaches(records))
    assert found.startswith(said) and bool(found) == bool(said)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (FAST, [f"{BEST} GPU reached 30 % computing alone (one model)."]),
        (
            [*FAST, product(100e9), record("vae", rate(50e9))],
            [f"{BEST} {name} reached {share} % computing" for name, share in (("processor", 50), ("GPU", 30))],
        ),
        ([product(100e9), SMALL], ["processor reached 30 % computing alone (one model, smaller versions among them)."]),
        ([product(100e9), record("cnn", rate(20e9), article="004")], ["processor reached 20 % computing alone"]),
    ],
)
def test_the_sentence_is_true_of_a_gpu_of_one_model_and_of_models_of_its_own(records, said):
    assert all(part in summary.sentence(records) for part in said)


def test_what_cannot_be_compared_is_said_or_left_out():
    assert summary.sentence([]) == summary.sentence([one for one in RUN if one.profile == "smoke"]) == ""
    said = summary.sentence(RUN[2:])
    assert said.startswith(
        "What share of its best this machine's processor reached cannot be told: this run has timed no"
    )
    assert BEST not in said and "GPU reached cannot" not in said and "The articles' GPUs reached" in said
    # A GPU whose best is not timed, beside a processor whose best is.
    said = summary.sentence([*RUN, record("vae", rate(3e11), backend="mps")])
    assert "processor reached 20 to 80 %" in said and "this machine's GPU reached cannot be told" in said


def test_the_notebook_reads_the_whole_run_and_works_alone(tmp_path):
    assert notebooks.notebooks()[-1].name == "summary" and notebooks.notebooks()[-1].article == published.KIT
    alone = Report("summary", article="kit", combines=["*"], figure="share_of_peak", out=str(tmp_path / "empty"))
    assert roofline.NO_CEILINGS in alone.summary().notes
    out = write(tmp_path / "run", RUN)
    whole = Report.of(declaration.of("summary"), Run(out))
    table = whole.summary()
    assert len(table.rows) == len(found(RUN)) and roofline.NO_CEILINGS not in table.notes
    assert sum(row.kind == "measured" for row in table.rows) == 8
    (row,) = [row for row in table.rows if row.cells[2] == "M2 Ultra (MLX, 2025)"]
    assert row.cells[4:7] == ("14.8 TFLOP/s", "27.0 TFLOP/s", "54.7 %")
    row, _ = [row for row in table.rows if row.kind == "measured" and row.cells[0] == "Variational autoencoder (VAE)"]
    assert row.cells[4:7] == ("50 GFLOP/s ± 10 %", "100 GFLOP/s", "50 % (41 to 61 %)")
    with open(out / "tables" / "summary-rates.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(table.rows)
    assert {"article", "workload", "device", "flops_per_s", "peak_flops_per_s", "share", "how"} <= set(lines[0])


def test_copies_that_jupyterlab_keeps_are_no_notebooks(tmp_path):
    for name in ("a.ipynb", "one/b.ipynb", ".ipynb_checkpoints/a-checkpoint.ipynb", "one/.ipynb_checkpoints/b.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [path.name for path in notebooks.notebook_paths(tmp_path)] == ["a.ipynb", "b.ipynb"]


def test_the_page_of_a_run_has_the_chart(tmp_path, monkeypatch):
    monkeypatch.setattr(Report, "drawn", lambda _: "<svg/>")  # takes seconds
    monkeypatch.setattr(report_page, "peaks_figure", lambda _: style.nothing())
    out = write(tmp_path / "run", RUN, {"chip": "Apple M9", "profile": "quick"})
    nbformat.write(nbformat.v4.new_notebook(metadata={"pomology": {"article": "kit"}}), out / "summary.ipynb")
    whole = report_page.build(out).read_text()
    _, chart, *rest = re.split("<h2[^>]*>", whole)  # nothing is ranked: of the articles' settings it has no whole time
    assert chart.startswith("How much of its peak each device reaches")
    assert "20 to 80 % (median 30 %)" in chart and chart.count('<img class="drawing"') == 1
    assert "is slow for its peak" in chart or "only one was measured" in chart
    (own,) = [part.replace("\xa0", " ") for part in rest if part.startswith("The kit itself")]
    assert 'id="summary"' in own and f"the table, {len(found(RUN))} rows" in own and "54.7 %" in own
    assert "cannot be compared" not in whole and "cannot be shown" not in whole
