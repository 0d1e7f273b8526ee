"""The memory of the M1 Ultra article's models, counted by their notebooks."""

import pytest
from test_notebooks import definitions

MIB = 2**20


@pytest.mark.parametrize(
    ("notebook", "row", "state_mib", "saved_mib"),
    [
        ("vae", 5120, 10, 48),
        ("siamese", 1024, 175, 729),
        ("transformer_lm", 0, 105, 107),
        ("transformer_lm", 4, 409, 3395),
    ],
)
def test_memory(notebook, row, state_mib, saved_mib):
    """At a batch size; of the language model, the article's first and last row."""
    scope = definitions(notebook)
    work = scope["work"](scope["rows"][row] if "rows" in scope else row)
    assert work.state_bytes / MIB == pytest.approx(state_mib, rel=0.01)
    assert work.saved_bytes / MIB == pytest.approx(saved_mib, rel=0.02)
