"""What passes on Linux and breaks, or goes wrong unnoticed, on a Mac: looked for in library and notebooks.

What has a dotted name of its own is banned by ruff (`banned-api` in pyproject.toml).
"""

import json
import re

import pytest

from pomology.paths import notebook_paths, root

PACKAGE = root() / "lib" / "pomology"
EVERYWHERE = {
    r"non_blocking=True": "on MPS what is read next may not have arrived",
    r"memory_format=\w*\.?channels_last": "gives wrong gradients on MPS",
    r"environ\[.PYTORCH_ENABLE_MPS_FALLBACK.\] =": "is read when torch is loaded; give it to a child",
    r"(get_context|set_start_method)\(.fork": "Metal does not outlive a fork",
    r"torch\.optim\.AdamW\((?!(?s:.{0,150})fused)": "is a loop over tensors on MPS; fuse it, or say why not",
    r"\bGradScaler\(\)": "without a device it is CUDA's",
    r"ru_maxrss(?!.*sys\.platform)": "KiB, but on macOS bytes",
}
IN_NOTEBOOKS = {
    r"(device=|\.to\()[\"'](cuda|mps)|\.(cuda|mps)\(\)": "a fixed device; take case.device",
    r"torch\.float64|\.double\(\)": "MPS has no float64",
    r"\b(perf_counter|process_time|monotonic)\((?!.*# own clock: )": "does not wait for a GPU",
    r"[\"']/(proc|sys)/": "only Linux has it; ask the library",
    r"precision=.(bf)?16": "on a CPU Lightning makes bf16-mixed of 16-mixed; take it from the case",
    r"class \w+\(.*Dataset|def (collate|worker_init)": "spawned workers do not see cells",
}


def faults(code: str, rules: dict[str, str]) -> list[str]:
    """Return a line for each match of a rule: where, what, and why it is wrong."""
    lines = []
    for pattern, why in rules.items():
        for found in re.finditer(pattern, code):
            number = code.count("\n", 0, found.start()) + 1
            lines.append(f"line {number}: {found[0]}: {why}")
    return lines


def test_the_library_has_none():
    found = {
        path.name: faults(path.read_text(encoding="utf-8"), EVERYWHERE)
        for path in PACKAGE.rglob("*.py")
    }
    assert not any(found.values()), found


@pytest.mark.parametrize("path", notebook_paths(root() / "notebooks"), ids=lambda path: path.stem)
def test_a_notebook_has_none(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert faults(code, EVERYWHERE | IN_NOTEBOOKS) == []


BAD = """x.to(device, non_blocking=True)
net.to(memory_format=torch.channels_last)
os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
multiprocessing.set_start_method("fork")
torch.optim.AdamW(net.parameters())
GradScaler()
resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x.to("cuda:0")
net.cuda()
x.to(torch.float64)
start = time.perf_counter()
open("/proc/meminfo")
Trainer(precision="16-mixed")
class Pairs(Dataset):""".splitlines()


@pytest.mark.parametrize("line", BAD)
def test_each_rule_finds_its_fault(line):
    assert len(faults(line, EVERYWHERE | IN_NOTEBOOKS)) == 1
