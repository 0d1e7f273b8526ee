"""Fixture of the tests of results: an empty journal in a run's folder."""

from pathlib import Path

import pytest

from pomology.results.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run" / "vae.jsonl")
