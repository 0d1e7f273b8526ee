"""The line that says how far a case is."""

from types import SimpleNamespace

import pytest

from pomology.experiment import progress
from pomology.measure.clock import Part


@pytest.fixture
def seconds(monkeypatch):
    """The time that a fake clock says."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now.s)
    return now


def test_in_a_notebook_one_line_is_updated_twice_a_second_and_ends_as_the_result(
    monkeypatch, seconds
):
    shown = []
    handle = SimpleNamespace(update=lambda text: shown.append(text.data))

    def display(text, display_id):
        shown.append(text.data)
        return handle

    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", display)
    line = progress.Progress("vae")
    part = Part("training", 469.0)
    for part.steps, seconds.s in ((10, 0.4), (20, 0.6), (25, 0.9), (40, 65.0)):
        line.step(part)
    line.end("vae: 5 s")
    assert shown == [
        "vae: training, step 20 of 469, 1 s",
        "vae: training, step 40 of 469, 1:05 min",
        "vae: 5 s",
    ]


def test_a_terminal_gets_the_result_only(capsys, seconds):
    line = progress.Progress("vae")
    seconds.s = 9.0
    line.step(Part("training", 469.0))
    line.end("vae: 5 s")
    assert capsys.readouterr().out == "vae: 5 s\n"
