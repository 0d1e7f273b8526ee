"""A training near the limit of the memory spares a part of it for the machine."""

from types import SimpleNamespace

import pytest

from pomology.errors import PomologyError, TooBig
from pomology.models import memory_filling


@pytest.mark.parametrize(
    ("free", "wanted"), [(100e9, 90e9), (20e9, 18e9), (8e9, 6.5e9), (2e9, 0.5e9)]
)
def test_a_batch_near_the_limit_leaves_a_part_of_the_memory(free, wanted):
    backend = SimpleNamespace(kind="gpu", free_memory=lambda: int(free))
    case = SimpleNamespace(backend=backend, scaled=False, note=lambda text: None)
    assert memory_filling.fill(case, lambda count: count, "byte") == pytest.approx(wanted)
    backend.kind = "cpu"
    found = memory_filling.fill(case, lambda count: count, "byte")
    assert found == pytest.approx(wanted / memory_filling.FRAGMENTATION) and not case.scaled
    # 100 bytes each, and 50 of whatever is there only once.
    parts = memory_filling.fill(case, lambda count: 50 + 100 * count, "part", most_bytes=1000)
    assert parts == 9 and case.scaled
    with pytest.raises(TooBig, match="one part needs at least 2"):
        memory_filling.fill(case, lambda count: 2000 * count, "part", most_bytes=1000)
    with pytest.raises(PomologyError, match=r"near is 1\.5"):
        memory_filling.fill(case, lambda count: 100 * count, "part", 1.5)
