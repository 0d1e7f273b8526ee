"""The tests of `keras_side.py`, in a process of their own: TensorFlow must not share one with PyTorch."""

from __future__ import annotations

from pathlib import Path

import apart
import pytest

SIDE = Path(__file__).with_name("keras_side.py")
NAMES = apart.names(SIDE)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, list[str]]:
    return apart.outcomes(SIDE, tmp_path_factory.mktemp("keras"))


@pytest.mark.parametrize("name", NAMES)
def test_in_tensorflow(outcomes, name):
    assert name in outcomes, "it was not run"
    assert not any(outcomes[name]), "\n".join(outcomes[name])[-4000:]
