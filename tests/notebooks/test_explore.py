"""The notebook to explore runs, which no run executes: as it comes it shows the reference run."""

import papermill
from nbformat import writes

from pomology.runner import notebooks


def test_it_shows_measured_and_published_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    (path,) = [each.path for each in notebooks.notebooks(run=False, skipped={})]
    text = writes(papermill.execute_notebook(path, tmp_path / "x.ipynb", cwd=path.parent))
    assert text.count('"image/png"') == 4 and "M1 Ultra GPU" in text and "AMD EPYC CPU" in text
