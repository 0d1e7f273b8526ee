"""The line that says how far a case is."""

from types import SimpleNamespace

from pomology.experiment import progress
from pomology.measure.clock import Part


def test_in_a_notebook_one_line_is_updated_twice_a_second_and_a_terminal_gets_the_result(
    monkeypatch, capsys
):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now.s)
    part = Part("training", 469.0)
    line = progress.Progress("vae")
    now.s = 9.0
    line.step(part)
    line.end("vae: 9 s")
    assert capsys.readouterr().out == "vae: 9 s\n"

    shown = []
    handle = SimpleNamespace(update=lambda text: shown.append(text.data))
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    display = lambda text, display_id: (shown.append(text.data), handle)[1]  # noqa: E731
    monkeypatch.setattr("IPython.display.display", display)
    now.s = 0.0
    line = progress.Progress("vae")
    for part.steps, now.s in ((10, 0.4), (20, 0.6), (25, 0.9), (40, 65.0)):
        line.step(part)
    line.end("vae: 5 s")
    assert shown == [
        "vae: training, step 20 of 469, 1 s",
        "vae: training, step 40 of 469, 1:05 min",
        "vae: 5 s",
    ]
