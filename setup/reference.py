"""Publish a finished run as outputs/reference-cpu: `python setup/reference.py outputs/NAME`.

It has the report, the executed notebooks and their pages, the journals (packed), and the tables
that the report offers as CSV: every file to which a page of it leads.
"""

import gzip
import shutil
import sys
from pathlib import Path

from pomology.paths import root

TARGET = root() / "outputs" / "reference-cpu"
AS_THEY_ARE = ("machine.json", "*.ipynb", "*.html", "shown/*/*.csv")


def publish(run: Path, target: Path) -> None:
    """Copy a run's folder, without the files that only its own continuation needs."""
    shutil.rmtree(target, ignore_errors=True)
    for pattern in AS_THEY_ARE:
        for path in run.glob(pattern):
            copy = target / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for journal in run.glob("*.jsonl"):
        packed = gzip.compress(journal.read_bytes(), mtime=0)  # equal bytes for equal journals
        (target / f"{journal.name}.gz").write_bytes(packed)
    page = target / "index.html"
    text = page.read_text(encoding="utf-8").replace('.jsonl"', '.jsonl.gz"')
    page.write_text(text.replace(".jsonl<", ".jsonl.gz<"), encoding="utf-8")


if __name__ == "__main__":
    publish(Path(sys.argv[1]), TARGET)
