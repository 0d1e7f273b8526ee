"""Sentences that open the answers of notebooks, and texts that agree with what is shown."""

import nbformat
import pytest
from notebook_code import PATHS, code

ALSO = {
    "sustained_load": "throttling.duration_text(experiment.records)",
    "simclr": "epoch_breakdown.loading(experiment.records)",
    "gpt2_pretraining": 'answers.frameworks(of_run, unknown="", experiment=experiment.name)',
    "whisper_pretraining": "answers.near_limit(experiment.records)",
}
OPENINGS = {
    "kernel_launch": "answers.launches",
    "energy": "answers.without_joules",
    "model_memory": "model_memory.fitting",
    "blas": "answers.rates",
    "memory": "answers.growth",
    "model_sizes": "answers.sizes_and_speeds",
    "gpt2_finetuning": "answers.lora_effect",
}


def document(name):
    (path,) = [path for path in PATHS if path.stem == name]
    return nbformat.read(path, 4)


@pytest.mark.parametrize("name", OPENINGS)
def test_the_answer_opens_with_what_was_asked(name):
    opened = f"experiment.answer(opening={OPENINGS[name]}(experiment.records"
    assert [cell for cell in code(document(name)) if cell.startswith(opened)]


def test_the_answer_on_offload_tells_its_cost_and_then_the_counted_memory():
    (cell,) = [
        cell for cell in code(document("whisper_finetuning")) if "experiment.answer(" in cell
    ]
    opening = "opening=answers.offload_cost(experiment.records)"
    also = "also=offload_memory.fitting(step_words, needed)"
    assert cell.endswith(f"experiment.answer(\n    {opening},\n    {also},\n)")


@pytest.mark.parametrize("name", ALSO)
def test_the_answer_begins_with_times_where_the_question_does(name):
    (answer,) = [cell for cell in code(document(name)) if "experiment.answer(" in cell]
    assert answer.endswith(f"experiment.answer(also={ALSO[name]})")


def test_capabilities_says_that_nothing_was_compiled_on_a_cpu():
    (cell,) = [each for each in code(document("capabilities")) if "experiment.answer(" in each]
    assert cell.startswith("opening = answers.features(experiment.records)")
    assert "torch.compile was not tried on the CPU" in cell


def test_the_rows_of_a_cpu_are_said_to_be_in_table_6():
    cells = document("kernel_launch").cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert "not in table 6" not in text and "no launch to compare" not in text
    assert "Its rows in the figure and in table 6 are the times of a function call" in text


def test_whisper_shows_its_step_and_builder_and_not_the_whole_module():
    assert "show(whisper.step, whisper.build)" in code(document("whisper_finetuning"))
