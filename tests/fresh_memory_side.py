"""Tests of memory that need a process of their own, run by `test_memory.py` in one."""

from __future__ import annotations

import numpy as np
import pytest
from test_memory import MB, notebook_scope

from pomology.machine import memory
from pomology.results import journal

pytestmark = pytest.mark.usefixtures("quiet_machine")


def test_counters_of_this_process_agree_with_each_other():
    trace = memory.MemoryTrace(dict, 0.0)
    before = trace.counters()
    held = np.ones(40 * MB // 8)
    after = trace.counters()
    assert after["resident_bytes"] - before["resident_bytes"] == pytest.approx(held.nbytes, rel=0.05)
    assert after["footprint_bytes"] > before["footprint_bytes"]
    # Pages of libraries that other processes use as well count in part.
    assert 0.5 * after["resident_bytes"] < after["footprint_bytes"] < 1.02 * after["resident_bytes"]
    assert after["page_faults"] > before["page_faults"] and after["page_ins"] >= 0 and trace.absent == {}


@pytest.mark.parametrize("leaks", [False, True])
def test_a_planted_leak_is_found_by_the_notebooks_own_step(tmp_path, leaks):
    batch_size, kept, last = 4096, [], "        case.trace()"
    planted = f"        kept.append(numbers + 1)\n{last}" if leaks else last
    form = {"profile": "article", "batch_size": batch_size, "steps": 80, "kept": kept}  # all steps
    scope = notebook_scope("memory_torch", tmp_path, lambda text: text.replace(last, planted), **form)
    for case in scope["experiment"].cases(load=["easy"]):
        with case:
            scope["train"](case)
    (record,) = journal.read(tmp_path / "memory_torch.jsonl").records
    assert record.status == "ok", record.reason
    # Not the footprint: on Linux that moves with other processes that use the same libraries.
    found, leaked = record.metrics["resident_slope_bytes"], batch_size * 32 * 4
    assert len(kept) == (80 if leaks else 0)
    if leaks:
        # Holes between what is kept may grow as well.
        assert found.low > 0 and found.low <= 1.1 * leaked and leaked <= found.high
        assert record.metrics["page_faults_slope"].low > 0
    else:
        assert found.high < leaked / 2
