"""Commands refuse wrong arguments in one line."""

import fakes
import pytest
import records

from pomology.__main__ import main

MACHINE = {"chip": "Apple M9", "python": "3.11.9"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "own", "--with", "gone.zip"], "WITH: gone.zip: no such run"),
        (["report", "own", "--with", "'open"], "WITH='open: No closing quotation"),
        (["report", "own", "--with", "'a text.zip'"], "a text.zip: not the zip of a run"),
        (["compare", "--runs", "'a b.zip' c"], "RUNS: a b.zip: no such run"),
        (["share", "gone"], "RUN=gone: no such run"),
    ],
)
def test_a_wrong_run_is_a_line_before_any_file_is_written(
    tmp_path, monkeypatch, capsys, arguments, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a text.zip").write_text("text")
    own = records.write(tmp_path / "own", [fakes.record()], MACHINE)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pomology: {words}") and error.count("\n") == 1
    assert not (own / "index.html").exists()
