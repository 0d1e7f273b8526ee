"""Which models fit a machine by count."""

from types import SimpleNamespace

import notebook_code
from records import metric, record

from pomology.extras.fit import counts, offers
from pomology.extras.fit.plan import Plan
from pomology.views import model_memory


def counted(model, needed_gb, free_gb=16.0, repeat=0, **more):
    sizes = {"needed_bytes": needed_gb, "free_bytes": free_gb, "theoretical_bytes": 1.0}
    metrics = {name: metric(1e9 * size, unit="B") for name, size in sizes.items()}
    config = {"model": model, "batch_size": 4}
    return record("model_memory", metrics, config, repeat=repeat, **more)


def test_models_that_fit_are_tight_or_too_large_are_named_with_both_sizes_and_without_flags():
    sizes = {"whisper-medium": 12.0, "whisper-large": 30.0, "gpt2-large": 13.5, "gpt2-xl": 16.0}
    records = [counted(name, size, flags=["busy", "slowed"]) for name, size in sizes.items()]
    assert model_memory.fitting(records) == (  # 75, 188, 84.4 and 100 % of what is free
        "By count 2 of 4 models fit the free memory of the Apple M9 CPU: whisper-medium at batch "
        "size 4 (needs 12.0 GB, 16.0 GB free) and gpt2-large at batch size 4 (needs 13.5 GB, "
        "16.0 GB free). Tight, with more than 85 % of it, is gpt2-xl at batch size 4 (needs 16.0 "
        "GB, 16.0 GB free). Too large is whisper-large at batch size 4 (needs 30.0 GB, 16.0 GB "
        "free)."
    )
    tight = [counted("gpt2-large", 13.7), counted("gpt2-xl", 15.9)]  # 85.6 and 99.4 %
    said = model_memory.fitting(tight)
    assert said.startswith("By count none of 2 models fits the free memory of the Apple M9 CPU. ")
    assert "Tight, with more than 85 % of it, are gpt2-large at batch size 4 (needs 13.7" in said


def test_the_figure_has_a_bar_for_each_model_and_a_line_at_the_free_memory():
    records = [counted("whisper-medium", 12.0), counted("gpt2-xl", 30.0)]
    (axis,) = model_memory.figure(None, records).axes
    assert axis.get_title(loc="left") == "Apple M9 CPU: 16.0 GB free"
    assert [patch.get_width() for patch in axis.patches] == [1.0, 11.0, 1.0, 29.0]
    (line,) = axis.lines
    assert line.get_xdata()[0] == 16.0 and axis.get_xlim()[1] > 30
    assert model_memory.figure(None, [counted("gpt2-xl", 30.0, profile="smoke")]) is None


def test_the_note_of_a_case_and_pomology_fit_have_the_same_words():
    count = notebook_code.definitions("model_memory")["count"]
    notes = []

    class Case(dict):
        backend = SimpleNamespace(backend="cuda", free_memory=lambda: free)
        note = notes.append

        def metric(self, *_, **__):
            pass

    needed = 12_384_481_280 + 11_921_556_740  # weights, gradients and moments; activations
    for share in (0.84, 0.86, 0.99, 1.01):
        free = needed / share
        count(Case(model="gpt2-large"))
        device = offers.TrainingDevice("cpu", None, free, "all of it")
        verdict = offers.verdict(counts.Need(0, 0, {}, needed, {}), Plan(), device)
        assert notes[-1] == f"{verdict}: {100 * share:.0f} % of what is free"
    assert [note.partition(":")[0] for note in notes] == ["fits", "tight", "tight", "does not fit"]


def test_free_memory_is_that_of_the_last_repeat_and_a_smoke_run_has_no_answer():
    repeats = [counted("gpt2-xl", 20.0, 24.0), counted("gpt2-xl", 20.0, 18.0, repeat=1)]
    assert model_memory.fitting(repeats) == (
        "By count none of 1 model fits the free memory of the Apple M9 CPU. Too large is gpt2-xl "
        "at batch size 4 (needs 20.0 GB, 18.0 GB free)."
    )
    assert model_memory.fitting([counted("gpt2-xl", 20.0, profile="smoke")]) == ""
