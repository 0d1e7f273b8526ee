"""The notebooks of `today/`: their counts by hand, and published rows next to this machine's."""

import json
from types import SimpleNamespace

import declared
import fakes
import pytest
from test_notebooks import definitions

from pomology.articles import elsewhere, published
from pomology.report.figures import draw

BERT = {"batch_size": 64, "sequence": 128, "steps": 100, "optimizer": "Adam", "data": "random"}
SMALL = BERT | {"batch_size": 8}
ROWS = []  # in the form of `elsewhere.csv`


def publish(
    source, workload, device, precision, config, metric, value, unit, printed="", faults=""
):
    """Add a published row."""
    roles = {"M1 Max GPU": "gpu", "M1 Max CPU": "cpu"}
    ROWS.append(
        {
            "row": str(len(ROWS)),
            "source": source,
            "workload": workload,
            "device": device,
            "role": roles.get(device, "rival"),
            "framework": "pytorch 1.13.0" if device == "M1 Max GPU" else "pytorch",
            "precision": precision,
            "config": json.dumps(config),
            "metric": metric,
            "value": value,
            "unit": unit,
            "printed": printed or value,
            "faults": faults,
            "bound": "",
            "year": "2022",
        }
    )


FIT = BERT, "fit_s"
publish("a", "bert_base", "M1 Max GPU", "fp32", *FIT, "177", "s", "2m 57s", "one-run")
publish("a", "bert_base", "V100", "fp32", *FIT, "41", "s", "41s", "one-run")
publish("a", "bert_base", "M1 Max CPU", "fp32", *FIT, "9000", "s", "2h 30m", "swapping")
publish("b", "bert_base", "V100", "amp", BERT, "samples_per_s", "500.5", "texts/s")
publish("a", "bert_base", "V100", "amp", SMALL, "samples_per_s", "600", "texts/s")
for size, device, metric, value, unit in (
    (64, "RTX 2080 Ti", "samples_per_s", "288.94", "images/s"),
    (224, "RTX 2080 Ti", "samples_per_s", "300", "images/s"),
    (64, "M1 Pro GPU", "epoch_s", "1200.8", "s"),
    (64, "M1 Pro GPU", "forward_s", "0.1", "s"),
):
    data = "synthetic" if metric == "samples_per_s" else "Food101, decoded, 75,750 images"
    config = {"batch_size": size, "image_size": 224, "optimizer": "SGD", "data": data}
    publish("b", "resnet50", device, "fp32", config, metric, value, unit)


@pytest.fixture
def others(monkeypatch):
    """These rows in place of the published ones."""
    about = dict.fromkeys(("title", "author", "date"), "")
    sources = [about | {"id": name, "url": f"https://example.org/{name}"} for name in "ab"]
    files = {"elsewhere.csv": tuple(ROWS), "sources.csv": tuple(sources)}
    read, caches = published.read, (elsewhere.rows, elsewhere.sources)
    monkeypatch.setattr(published, "read", lambda name: files.get(name) or read(name))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def bert(**more):
    about = {
        "experiment": "bert_base",
        "article": "today",
        "config": BERT | {"precision": "fp32"},
        "backend": "cuda",
    }
    about |= {"chip": "NVIDIA A10", "framework": "torch", "framework_version": "2.13.0"}
    return fakes.record(**about | more)


# Counts


# Of a step for one picture: three times the forward pass, less the gradient of the first layer's input.
PICTURE = 2 * (3 * 4.089e9 - 64 * 112**2 * 7**2 * 3)
PRODUCTS = {
    "bert_base": 12 * 12 * 768**2,
    "gpt2_small": 12 * 12 * 768**2 + 768 * 50_257,
}  # of a token


def test_resnet_50_is_that_of_torchvision():
    """Whose documentation gives 4.089 billion multiply-adds of a picture."""
    work = definitions("resnet50")["work"](1)
    assert (work.parameters, work.forward_flops) == (
        25_557_032,
        pytest.approx(2 * 4.089e9, rel=1e-3),
    )
    assert work.flops == pytest.approx(PICTURE, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "parameters"), [("bert_base", 108_311_810), ("gpt2_small", 124_439_808)]
)
def test_parameters_and_operations_are_the_models(name, parameters):
    """The matrices of 12 blocks and of attention, for each token, and GPT-2's vocabulary."""
    work, tokens = definitions(name)["work"](1, 128), 128
    assert work.parameters == parameters
    by_hand = 6 * tokens * (PRODUCTS[name] + 2 * 12 * tokens * 768)
    assert work.flops == pytest.approx(by_hand, rel=2e-3)  # and what BERT asks once of a text
    if name == "bert_base":
        config = {"batch_size": 1, "sequence": tokens}
        row = {"workload": name, "metric": "step_s", "config": config}
        assert elsewhere.work(row) == pytest.approx(by_hand, rel=2e-3)


def test_the_work_of_what_a_source_prints():
    def work(metric, **config):
        return elsewhere.work(
            {"workload": "resnet50", "metric": metric, "config": {"image_size": 224} | config}
        )

    picture = work("samples_per_s")
    assert picture == pytest.approx(PICTURE, rel=1e-3)
    assert work("samples_per_s") == picture and work("step_s", batch_size=64) == 64 * picture
    assert work("fit_s", batch_size=64, steps=100) == 6400 * picture
    assert work("epoch_s", data="Food101, decoded, 75,750 images") == 75_750 * picture
    assert [
        work("step_s"),
        work("step_s", batch_size="largest that fits"),
        work("epoch_s", data="CIFAR"),
    ] == [None] * 3
    assert work("samples_per_s", image_size=32) is None and work("forward_s", batch_size=64) is None


# Others' rows, and this machine's


def test_a_table_has_the_published_rows_with_source_and_faults_and_this_machine(others):
    fit = fakes.metric(20.0, unit="s", low=19.0, high=21.0)
    table = declared.article_table("bert_base", [bert(metrics={"fit_s": fit})])
    rest = "sequence 128, steps 100, optimizer Adam, data random; "
    shown = [(row.cells[0], *row.cells[3:6], row.cells[-1].replace(rest, "")) for row in table.rows]
    assert shown[:2] == [
        ("V100 (PyTorch, 2022)", "fp32", "41 s", "", "a; measured once"),
        (
            "M1 Max GPU (PyTorch 1.13.0, 2022)",
            "fp32",
            "177 s",
            "",
            "a; measured once",
        ),
    ]
    assert shown[2][-1] == "a; memory was short: the machine swapped"
    assert shown[3][1:] == (
        "amp",
        "",
        "600 texts/s",
        f"a; {rest[:-2]}",
    )
    assert shown[4][0] == "A10 CUDA (PyTorch 2.13.0, 2026)" and shown[4][2].startswith("20.0 s")
    assert sum("https://example.org/a" in note for note in table.notes) == 1
    pictures = [row.cells[:6] for row in declared.article_table("resnet50", []).rows]
    assert pictures[0][1:5] == ("224", "fp32", "300 images/s", "7.29 TFLOP/s")
    assert pictures[1][3:5] == ("1,200.8 s (epoch)", "1.53 TFLOP/s") and len(pictures) == 2


def test_a_figure_has_each_device_once_and_doubtful_ones_hollow(others):
    flops = {"flops_per_s": fakes.metric(2e13, unit="FLOP/s")}
    (axis,) = draw(declared.of("bert_base"), [bert(metrics=flops, flops_per_step=1)]).axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    theirs = [
        "V100 (PyTorch, 2022)",
        "M1 Max GPU (PyTorch 1.13.0, 2022)",
        "M1 Max CPU (PyTorch, 2022)",
    ]
    assert sorted(labels[:3]) == sorted(theirs) and labels[3:] == [
        "A10 CUDA, PyTorch, batch size 64, tokens 128"
    ]
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in hollow] == [[labels.index(theirs[2])]]


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "gpt2_small"])
def test_cases_have_the_settings_of_the_sources(name):
    """Without a setting of the published rows the ranking would leave a case out."""
    asked = []
    cpu, gpu = (SimpleNamespace(kind=kind, tf32=kind == "gpu") for kind in ("cpu", "gpu"))
    experiment = SimpleNamespace(devices=[cpu, gpu])
    experiment.cases = lambda rows, on: asked.extend((on[0].kind, row) for row in rows) or ()
    experiment.first_that_fits = experiment.cases
    scope = definitions(name, experiment=experiment)
    list(scope["to_run"]())
    keys = {"batch_size", "optimizer", "data", "precision"}
    keys |= {
        "resnet50": {"image_size"},
        "bert_base": {"sequence", "steps"},
        "gpt2_small": {"sequence"},
    }[name]
    assert all(keys <= row.keys() for _, row in asked)
    assert {row["precision"] for kind, row in asked if kind == "cpu"} == {"fp32"}
    assert {"fp32", "bf16"} <= {row["precision"] for kind, row in asked if kind == "gpu"}
    strict = [
        row.get("tf32") for kind, row in asked if kind == "gpu" and row["precision"] == "fp32"
    ]
    assert set(strict) == ({"off"} if name == "resnet50" else {None})
