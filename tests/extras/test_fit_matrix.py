"""The table of models by methods."""

import pytest

from pomology.__main__ import main
from pomology.extras.fit import counts, matrix, networks, times
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction import devices
from pomology.format import quantity


def test_each_cell_is_what_the_command_says_of_one_model(capsys):
    assert main(["fit", "--table", "qwen3-8b", "--on=rtx 4090"]) == 0
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if line.startswith("qwen3-8b "))
    device = devices.with_data_sheet("rtx 4090").device
    for method, column in (("lora", 2), ("qlora", 3)):
        plan = Plan(method, checkpointing=True, upcast=method == "qlora")
        need = counts.need("qwen3-8b", plan, "cuda")
        step_s = times.predict(need, plan, device)[0].value
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if method == "lora":  # 25.6 GB with CUDA's reserve
            assert cells[column] == f"({quantity(need.bytes, 'B')})"
            continue
        memory, time = cells[column].split(", ")
        assert memory == quantity(need.bytes, "B")
        minutes, seconds = time.removesuffix(" min").split(":")
        expected_s = 1e6 / 2048 * step_s
        assert 60 * int(minutes) + int(seconds) == pytest.approx(expected_s, abs=1)
    full = counts.need("qwen3-8b", Plan("full", checkpointing=True), "cuda")
    assert cells[1] == f"({quantity(full.bytes, 'B')})"
    assert said.startswith(
        "In 25.3 GB (what a program gets of 24 GiB) the largest that fit: QLoRA "
    )
    assert "CUDA's context and fragmentation take more: full 1.11, LoRA 1.23, QLoRA 1.19" in said


def test_it_has_the_language_models_by_size_and_no_others():
    where = TrainingDevice("mps", None, None, "", "no data sheet")
    rows = matrix.table(Plan(framework="mlx", batch=4), where).rows
    names = [row.cells["Model"] for row in rows]
    sizes = {row["name"]: int(row["parameters"]) for row in networks.rows()}
    assert names == sorted(names, key=sizes.__getitem__) and len(names) > 45
    assert not {"vit-base", "bert-base", "whisper-tiny"} & set(names)
    by_name = {row.cells["Model"]: row.cells for row in rows}
    assert by_name["gpt2"]["full"] == ""  # mlx-lm's full fine-tuning is not counted
    assert by_name["gpt2"]["QLoRA"].endswith("B")


def test_on_a_mac_qlora_is_mlx_lms_also_without_the_option():
    """bitsandbytes has no kernels for Metal."""
    where = TrainingDevice("mps", None, 115e9, "")
    (cells,) = (row.cells for row in matrix.table(Plan(), where, "llama-3.1-8b").rows)
    plan = Plan("qlora", checkpointing=True, framework="mlx")
    need = counts.need("llama-3.1-8b", plan, "mps")
    assert cells["QLoRA in MLX"] == quantity(need.bytes, "B") and "QLoRA" not in cells
    notes = str(matrix.table(Plan(), where, "llama-3.1-8b"))
    assert "QLoRA is mlx-lm's: bitsandbytes has no kernels for Metal." in notes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--table", "expected a GPU, and this machine has none"),
        ("--table xyz --on M4", "xyz: unknown model"),
        ("--table vit-base --on M4", "vit-base: expected a language model"),
        ("--table --on M4 --tokens 10M", "expected no --observed, no --tokens and no"),
        ("--table --on M4 --dropout 0.1", "expected no options but --on, --memory, "),
        ("--table --on M4 --method full", "expected no options but --on, --memory, "),
        ("--table --on M4 --precision fp32", "--rank, --checkpointing and --precision bf16 or"),
        ("", "MODEL: expected one, such as 'Llama 3.1 8B', or --table"),
    ],
)
def test_wrong_arguments(options, words, monkeypatch, capsys):
    here = TrainingDevice("cpu", None, 8e9, "")
    monkeypatch.setattr("pomology.extras.fit.answer.find.find", lambda *_: pytest.skip("a GPU"))
    if options == "--table":
        monkeypatch.setattr("pomology.extras.fit.answer.training_device", lambda _: here)
    assert main(["fit", *options.split()]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1
