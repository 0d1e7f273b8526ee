"""The notebook `memory`: a training near the limit of the memory spares the machine."""

from types import SimpleNamespace

import filling
import pytest

from pomology.errors import PomologyError, TooBig


@pytest.mark.parametrize(
    ("free", "wanted"), [(100e9, 90e9), (20e9, 18e9), (8e9, 6.5e9), (2e9, 0.5e9)]
)
def test_a_batch_near_the_limit_leaves_a_part_of_the_memory(free, wanted):
    backend = SimpleNamespace(kind="gpu", free_memory=lambda: int(free))
    case = SimpleNamespace(backend=backend, scaled=False, note=lambda text: None)
    assert filling.fill(case, lambda count: count, "byte") == pytest.approx(wanted)
    backend.kind = "cpu"
    found = filling.fill(case, lambda count: count, "byte")
    assert found == pytest.approx(wanted / filling.HOLES) and not case.scaled
    # 100 bytes each, and 50 of whatever is there only once.
    parts = filling.fill(case, lambda count: 50 + 100 * count, "part", most_bytes=1000)
    assert parts == 9 and case.scaled
    with pytest.raises(TooBig, match="one part needs at least 2"):
        filling.fill(case, lambda count: 2000 * count, "part", most_bytes=1000)
    with pytest.raises(PomologyError, match=r"near is 1\.5"):
        filling.fill(case, lambda count: 100 * count, "part", 1.5)
