"""Code that works on Linux but fails, or is silently wrong, on a Mac, in library and notebooks.

ruff bans dotted names (`banned-api` in pyproject.toml).
"""

import re

import nbformat
import pytest
from notebook_code import PATHS, code

from pomology.paths import root

EVERYWHERE = {
    r"non_blocking=True": "on MPS data may be read before it has arrived",
    r"memory_format=\w*\.?channels_last": "gives wrong gradients on MPS",
    r"environ\[.PYTORCH_ENABLE_MPS_FALLBACK.\] =": "is read when torch is loaded",
    r"(get_context|set_start_method)\(.fork": "Metal does not outlive a fork",
    r"torch\.optim\.AdamW\((?!(?s:.{0,150})fused)": "is a loop over tensors on MPS; fuse it",
    r"\bGradScaler\(\)": "without a device it is CUDA's",
    r"ru_maxrss(?!.*sys\.platform)": "KiB, but on macOS bytes",
}
IN_NOTEBOOKS = {
    r"(device=|\.to\()[\"'](cuda|mps)|\.(cuda|mps)\(\)": "a fixed device; take case.device",
    r"torch\.float64|\.double\(\)": "MPS has no float64",
    r"\b(perf_counter|process_time|monotonic)\((?!.*# own clock: )": "does not wait for a GPU",
    r"[\"']/(proc|sys)/": "only Linux has it; ask the library",
    r"precision=.(bf)?16": "on a CPU Lightning makes bf16-mixed of 16-mixed",
    r"class \w+\(.*Dataset|def (collate|worker_init)": "spawned workers do not see cells",
}


def faults(source: str, rules: dict[str, str]) -> list[str]:
    """Return the reason for each match of a rule."""
    return [why for rule, why in rules.items() for _ in re.finditer(rule, source)]


def test_the_library_has_no_such_code():
    for path in (root() / "lib" / "pomology").rglob("*.py"):
        assert faults(path.read_text(encoding="utf-8"), EVERYWHERE) == [], path.name


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_has_no_such_code(path):
    source = "\n".join(code(nbformat.read(path, 4)))
    assert faults(source, EVERYWHERE | IN_NOTEBOOKS) == []
