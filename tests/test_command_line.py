"""Commands refuse what they cannot use in a line, and end quietly where nobody reads them."""

import os
import subprocess
import sys

import fakes
import pytest
import records

from pomology.__main__ import main
from pomology.paths import root

MACHINE = {"chip": "Apple M9", "python": "3.11.9"}
LIBRARY = str(root() / "lib")


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
def test_what_is_no_run_is_a_line_before_anything_is_made(
    tmp_path, monkeypatch, capsys, arguments, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a text.zip").write_text("text")
    own = records.write(tmp_path / "own", [fakes.record()], MACHINE)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pomology: {words}") and error.count("\n") == 1
    assert not (own / "index.html").exists()


@pytest.mark.parametrize("reader", ["| head -n 1", "| true", ">/dev/full", ">&-"])
def test_a_run_goes_on_where_nobody_reads_what_it_says(tmp_path, reader):
    program = "import time\nfrom pomology.command_line import say\nsay('one')\ntime.sleep(0.3)\n"
    program += "for _ in range(3):\n    say('two')\nopen('done', 'w')"
    command = ["bash", "-c", f'"{sys.executable}" -c "$PROGRAM" 2>errors {reader}']
    environment = os.environ | {"PYTHONPATH": LIBRARY, "PROGRAM": program}
    subprocess.run(command, cwd=tmp_path, env=environment, check=False, stdout=subprocess.DEVNULL)
    assert (tmp_path / "done").exists()
    assert (tmp_path / "errors").read_text() == ""
