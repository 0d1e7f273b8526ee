"""The notebook `lora`: MLX's step against transformers' and peft's, and costs by formula."""

import json
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from notebook_code import definitions
from records import metric, record
from safetensors.torch import save_file

from pomology.extras.fit import measured_cases, published_runs
from pomology.models import isolated, verify, workload
from pomology.paths import root

QWEN = {"model": "qwen2.5-0.5b", "batch_size": 2, "sequence": 48, "precision": "bf16"}


@pytest.mark.long
def test_mlx_computes_what_transformers_and_peft_do():
    mlx = isolated.call("MLX", "references.lora_reference:in_mlx")
    expected = isolated.call("PyTorch", "references.lora_reference:in_torch")
    assert len(expected) == 2 * 2 * 2 + 1  # A and B of queries and values in two blocks, the loss
    assert verify.difference(mlx, expected, 1e-4, relative=True)[1] is None


@pytest.mark.parametrize("lora_layers", [0, 2])
def test_the_formula_is_what_pytorch_counts(lora_layers):
    notebook = definitions("lora", lora_layers=lora_layers)
    formula = notebook["formula"](QWEN | {"model": "smoke/3"})
    declared = notebook["workload"]("smoke/3", QWEN["sequence"], QWEN["precision"])
    counted = declared.cost(QWEN["batch_size"], "cuda")
    assert list(workload.differences(declared, workload.count(declared, 2, "cuda"))) == []
    for name in ("parameters", "flops", "forward_flops", "state_bytes"):
        assert getattr(formula, name) == getattr(counted, name), name
    assert formula.saved_bytes < counted.saved_bytes  # PyTorch keeps more, in fp32 too


def test_the_model_is_qwen_with_adapters_in_fp32():
    notebook = definitions("lora")
    with torch.device("meta"):
        weights = list(notebook["build"](QWEN).parameters())
    adapters = [weight for weight in weights if weight.requires_grad]
    trained = sum(weight.numel() for weight in adapters)
    assert trained == 24 * 8 * (3 * 896 + 128)
    assert {weight.dtype for weight in adapters} == {torch.float32}
    formula = notebook["formula"](QWEN)
    assert sum(weight.numel() for weight in weights) == formula.parameters == 494_032_768 + trained
    all_weights = 6 * 494_032_768 * 2 * 48  # FLOPs of training them
    assert formula.flops == pytest.approx(2 / 3 * all_weights, rel=0.01)


def test_pretrained_weights_come_from_the_cache_only(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    notebook = definitions("lora")
    notebook["SIZES"]["qwen2.5-0.5b"] = notebook["SIZES"]["smoke"]
    assert notebook["checkpoint"](QWEN) is None
    file = tmp_path / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "main" / "model.safetensors"
    file.parent.mkdir(parents=True)
    shipped = notebook["random_model"](QWEN).named_parameters()
    save_file({name: torch.ones_like(weight) for name, weight in shipped}, file)
    network = notebook["build"](QWEN)
    notebook["load"](network, notebook["checkpoint"](QWEN))
    frozen = [weight for weight in network.parameters() if not weight.requires_grad]
    assert len(frozen) == 2 * 12 + 2 and all((weight == 1).all() for weight in frozen)
    assert notebook["checkpoint"](QWEN | {"model": "qwen2.5-0.5b/2"}) is None


def test_the_prediction_of_a_case_stands_next_to_it():
    cells = json.loads((root() / "notebooks" / "today" / "lora.ipynb").read_bytes())["cells"]
    (cell,) = (
        source for each in cells if "measured_cases.table" in (source := "".join(each["source"]))
    )
    config = QWEN | {"batch_size": 1, "sequence": 16, "rank": 8, "precision": "fp32"}
    metrics = {"step_s": metric(1.5), "footprint_peak_bytes": metric(3e9, unit="B")}
    tables = []
    experiment = SimpleNamespace(
        records=[record("lora", metrics, config=config)],  # not those of the run's other notebooks
        show=lambda table, _: tables.append(table),
    )
    names = {"experiment": experiment, "measured_cases": measured_cases, "framework": "torch"}
    exec(cell, names | {"model": "qwen2.5-0.5b"})
    row, *others = tables[0].rows
    assert row.cells["Predicted tokens/s"] == "not on a CPU"
    assert row.cells["Tokens/s"] == "10.7" and row.cells["Memory"] == "3.00 GB"
    assert {other.kind for other in others} == {"published"}
    assert 2 < float(row.cells["Predicted memory"].removesuffix(" GB")) < 4


@pytest.mark.parametrize(
    ("chip", "cores", "notes"),
    [
        ("Apple M1 Max", 32, ["Apple M1 Max: taken as M1 Max GPU (32 cores), this machine's"]),
        ("NVIDIA GeForce RTX 4090", None, []),
        ("Apple M5 Pro", 16, ["Apple M5 Pro: M5 Pro GPU has no data sheet"]),
    ],
)
def test_a_time_is_predicted_for_this_machines_gpu(chip, cores, notes, monkeypatch):
    gpus = [{"name": chip, "cores": cores, "memory_bytes": None}]
    monkeypatch.setattr(measured_cases.snapshot, "gpus", lambda: gpus)
    config = QWEN | {"batch_size": 1, "sequence": 16, "rank": 8}
    backend = "mps" if cores else "cuda"
    case = record("lora", {"step_s": metric(1.5)}, config, backend=backend, chip=chip)
    table = measured_cases.table([case], "qwen2.5-0.5b", "torch")
    row = table.rows[0]
    assert row.cells["Predicted tokens/s"].endswith(")") == (chip != "Apple M5 Pro")
    rest = table.notes[len(measured_cases.NOTES) :]
    assert [note[: len(start)] for note, start in zip(rest, notes, strict=True)] == notes


def test_published_rows_are_the_nearest_of_each_model_and_device():
    config = QWEN | {"batch_size": 1, "sequence": 512, "rank": 8}
    table = measured_cases.table([record("lora", {}, config)], "qwen2.5-0.5b", "mlx")
    shown = [row.cells for row in table.rows if row.kind == "published"]
    models = [(cells["Model"], cells["Device"]) for cells in shown]
    assert len(set(models)) == len(models) and len(models) > 8
    # Of Qwen's lengths from 256 to 8,192 tokens, 512 is this machine's.
    (qwen,) = [cells for cells in shown if cells["Model"].startswith("qwen-7b")]
    assert qwen["Batch"].endswith("× 512 tokens") and qwen["Source"] == "github.com/QwenLM/Qwen"
    assert all(cells["Predicted tokens/s"].endswith(")") for cells in shown)


def test_a_row_whose_memory_differs_says_what_its_source_does_not_state():
    """Of torchtune's runs two state no checkpointing, and one has a loss in parts and offload.

    Its README, section "Memory and training speed" (2024): the 8B runs have batch, length and
    compilation; the last one of the list of options is on top of chunked cross-entropy.
    """
    table = measured_cases.table([], "qwen2.5-0.5b", "torch")
    tuned = {}
    for row in table.rows:
        memory, needed = row.cells["Memory"], row.cells["Predicted memory"]
        counted, printed = (float(each.removesuffix(" GB") or 1) for each in (needed, memory))
        differs = abs(counted / printed - 1) > 0.15 if memory else False
        assert bool(row.cells["Notes"]) == differs, row
        if "torchtune" in row.cells["Device"]:
            tuned[row.cells["Device"].partition(",")[0]] = row.cells["Notes"]
    unstated = (
        "memory: the source does not state rank, adapted matrices, checkpointing and loss; "
        "predicted with rank 8, peft's default ones, no checkpointing and transformers' loss, with "
        "logits in fp32; with checkpointing 23.5 GB would be predicted"
    )
    assert tuned["RTX 4090"] == tuned["RTX A6000"] == unstated
    assert tuned["A100 80 GB SXM"] == (
        "memory: the run takes the logits in parts (chunked cross-entropy), the prediction all at "
        "once; the run keeps activations in the host's memory, not predicted"
    )


def test_nothing_is_made_up_where_all_settings_are_stated():
    (row,) = [
        row
        for row in published_runs.lora()
        if row["model"] == "qwen-1.8b" and row["sequence"] == "512" and row["method"] == "lora"
    ]
    said = measured_cases.difference(row, published_runs.planned(row), "cuda")
    assert said == "memory: the settings that the source states do not explain the difference"
    mean = row | {"note": "Sequence is the mean per sample: some tokens"}
    said = measured_cases.difference(mean, published_runs.planned(mean), "cuda")
    assert said == "memory: the length is a mean, and the peak is that of the longest batch"


def test_the_figure_has_a_line_for_each_device_and_a_marker_for_each_case():
    config = QWEN | {"batch_size": 1, "sequence": 512, "rank": 8}
    case = record("lora", {"step_s": metric(0.5)}, config, backend="mps", chip="Apple M4 Max")
    (axis,) = measured_cases.figure([case], "qwen2.5-0.5b").axes
    lines = {len(line.get_xdata()): line for line in axis.lines if len(line.get_xdata()) != 2}
    assert list(lines[1].get_xdata()) == [512] and list(lines[1].get_ydata()) == [1024]
    long = [line for line in axis.lines if len(line.get_xdata()) == len(measured_cases.SEQUENCES)]
    assert len(long) == len(measured_cases.OTHERS) + 1  # and this machine's own


def test_the_table_of_models_is_of_a_gpu():
    table = measured_cases.models("torch")
    assert "In " in table.title and len(table.rows) > 40
