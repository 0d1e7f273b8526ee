"""The notebooks of `today/`: their counts by hand, and published rows next to this machine's."""

from types import SimpleNamespace

import declared
import pytest
from notebook_code import definitions
from records import elsewhere_row, metric, record, set_elsewhere

from pomology.views import community_results

BERT = {"batch_size": 64, "sequence": 128, "steps": 100, "optimizer": "Adam", "data": "random"}
PICTURES = {"batch_size": 64, "optimizer": "SGD", "data": "synthetic"}
# Of a step for one picture: three times the forward pass, less the gradient of its input.
PICTURE = 2 * (3 * 4.089e9 - 64 * 112**2 * 7**2 * 3)
# Matrices of 12 blocks, for a token, and GPT-2's vocabulary.
PRODUCTS = {"bert_base": 12 * 12 * 768**2, "gpt2_small": 12 * 12 * 768**2 + 768 * 50_257}
WORKLOADS = {"bert_base": "classifier", "gpt2_small": "language_model"}


FIT = {"workload": "bert_base", "metric": "fit_s", "unit": "s", "samples": "6400"}
TEXTS = {"workload": "bert_base", "unit": "texts/s", "precision": "amp"}
IMAGES = {"workload": "resnet50", "unit": "images/s"}
LORA = {"workload": "lora_7b_wikisql_mlx", "metric": "tokens_per_s", "unit": "tokens/s"}
MAC = FIT | {"role": "gpu", "faults": "one-run"}
SLOW = FIT | {"role": "cpu", "faults": "swapping"}
ROWS = (
    elsewhere_row("M1 Max GPU", 177, BERT, printed="2m 57s", **MAC),
    elsewhere_row("V100", 41, BERT, faults="one-run", printed="41s", **FIT),
    elsewhere_row("M1 Max CPU", 9000, BERT, printed="2h 30m", **SLOW),
    elsewhere_row("V100", 600, BERT | {"batch_size": 8}, printed="600", **TEXTS),
    elsewhere_row("T4", 300, PICTURES | {"image_size": 224}, printed="300", **IMAGES),
    elsewhere_row("T4", 999, PICTURES | {"image_size": 64}, printed="999", **IMAGES),
    elsewhere_row("M2 Ultra GPU", 475, {"model": "llama-7b", "batch_size": 4}, **LORA),
    elsewhere_row("M2 Ultra GPU", 250, {"model": "llama-7b", "batch_size": 1}, **LORA),
)


@pytest.mark.parametrize(
    ("name", "parameters"), [("bert_base", 108_311_810), ("gpt2_small", 124_439_808)]
)
def test_parameters_and_operations_are_the_models(name, parameters):
    """Those matrices and attention for each token; BERT's few asked once of a text are left out."""
    scope, tokens = definitions(name), 128
    work = scope[WORKLOADS[name]](tokens).cost(1)
    assert work.parameters == parameters
    by_hand = 6 * tokens * (PRODUCTS[name] + 2 * 12 * tokens * 768)
    assert work.flops == pytest.approx(by_hand, rel=2e-3)


def test_the_work_of_what_a_source_prints():
    def work(samples, size=224):
        row = {"workload": "resnet50", "samples": samples, "config": {"image_size": size}}
        return community_results.work(row)

    assert work(1) == pytest.approx(PICTURE, rel=1e-3) and work(64) == 64 * work(1)
    assert work(0) is None and work(1, size=32) is None


def test_a_table_has_the_published_rows_with_source_and_faults_and_this_machine(monkeypatch):
    set_elsewhere(monkeypatch, *ROWS)
    config, about = BERT | {"precision": "fp32"}, {"article": "today", "chip": "NVIDIA A10"}
    case = record("bert_base", {"fit_s": metric(20, 19, 21)}, config, backend="cuda", **about)
    table = declared.article_table("bert_base", [case])
    shown = [(each.cells["Device"], each.cells["Notes"]) for each in table.rows]
    assert [device for device, _ in shown] == [
        "V100 (PyTorch, 2022)",
        "M1 Max GPU (PyTorch, 2022)",
        "M1 Max CPU (PyTorch, 2022)",
        "V100 (PyTorch, 2022)",
        "A10 CUDA (PyTorch 2.13.0, 2026)",
    ]
    assert shown[0][1].startswith("apxml-2025; ") and "measured once" in shown[0][1]
    assert "the machine was swapping memory" in shown[2][1]
    pictures = [each.cells.values() for each in declared.article_table("resnet50", []).rows]
    assert "300 images/s" in pictures[0] and "7.29 TFLOP/s" in pictures[0]
    lora = [each.cells for each in declared.article_table("lora", []).rows]
    assert [each["Tokens"] for each in lora] == ["475 tokens/s", "250 tokens/s"]
    assert {each["Model"] for each in lora} == {"llama-7b"}


OWN = {"resnet50": {"image_size"}, "bert_base": {"sequence", "steps"}, "gpt2_small": {"sequence"}}
OWN["lora"] = {"model", "method", "sequence"}


@pytest.mark.parametrize("name", OWN)
def test_cases_have_the_settings_of_the_sources(name):
    """Without a setting of the published rows the ranking would leave a case out."""
    cases = []
    cpu, gpu = (SimpleNamespace(kind=kind, tf32=kind == "gpu") for kind in ("cpu", "gpu"))
    experiment = SimpleNamespace(devices=[cpu, gpu])
    experiment.cases = lambda rows, on: cases.extend((on[0].kind, row) for row in rows) or ()
    experiment.first_that_fits = experiment.cases
    list(definitions(name, experiment=experiment)["to_run"]())
    keys = {"batch_size", "optimizer", "data", "precision"} | OWN[name]
    assert all(keys <= row.keys() for _, row in cases)
    assert {row["precision"] for kind, row in cases if kind == "cpu"} == {"fp32"}
    expected = {"bf16"} if name == "lora" else {"fp32", "bf16"}
    assert expected <= {row["precision"] for kind, row in cases if kind == "gpu"}
