"""Writes fixtures/mps_operators.txt, what MPS has for each operator, from the wheel of PyTorch that Macs get.

`python tests/mps_operators.py WHEEL`; `pip download --no-deps --platform macosx_14_0_arm64 --python-version 3.11
--only-binary :all: torch==VERSION` brings that wheel to any machine. In it are the list of kernels that it was built
from (`native_functions.yaml`, which torchgen reads) and, among the symbols of its library, the operators that autocast
wraps on MPS. Line 1 of the file is the wheel's name; then `<what it has> <operator> <overloads, - for the plain one>`,
where it has a kernel or makes it of others; then `autocast <precision> <operators>`.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).parent / "fixtures" / "mps_operators.txt"
KERNEL, COMPOSITE = "kernel", "composite"
YAMLS = tuple(f"torchgen/packaged/ATen/native/{name}.yaml" for name in ("native_functions", "tags"))
LIBRARY = "torch/lib/libtorch_cpu.dylib"
# `at::autocast::WrapFunction_<policy, MPS, ...>` with the name in `at::_ops`, as C++ compilers spell it (Itanium ABI).
WRAPPED = re.compile(rb"13WrapFunction_ILNS0_10CastPolicyE(\d)ELN3c1010DeviceTypeE13E[^\0]*?4_ops(\d+)([^\0]{0,80})")
POLICIES = {b"0": "lower", b"1": "full"}  # the first two of `at::autocast::CastPolicy`


def entries(functions: Path, tags: Path) -> dict[str, str | None]:
    """Every operator with its overload (`add.Tensor`), and whether MPS has a kernel, makes it of others, or neither."""
    from torchgen.gen import get_grouped_native_functions, parse_native_yaml
    from torchgen.model import DispatchKey, NativeFunctionsGroup

    parsed = parse_native_yaml(str(functions), str(tags))
    mps, listed = parsed.backend_indices[DispatchKey.MPS], {}
    for group in get_grouped_native_functions(parsed.native_functions):
        grouped = isinstance(group, NativeFunctionsGroup)
        structured = grouped and group.structured and mps.has_kernel(group)
        for function in group.functions() if grouped else [group]:
            composite = (
                function.has_composite_implicit_autograd_kernel
                or function.has_composite_explicit_autograd_kernel
                or function.has_composite_explicit_autograd_non_functional_kernel
            )
            kernel = structured or mps.has_kernel(function)
            listed[str(function.func.name)] = KERNEL if kernel else COMPOSITE if composite else None
    return listed


def autocast(library: bytes, operators: dict[str, str | None]) -> dict[str, list[str]]:
    """What autocast computes on MPS in lower and in full precision."""
    spelt = {name.replace(".", "_"): name for name in operators}
    lists: dict[str, set[str]] = {policy: set() for policy in POLICIES.values()}
    for policy, length, rest in WRAPPED.findall(library):
        name = rest[: int(length)].decode()
        if policy in POLICIES and name in spelt:
            lists[POLICIES[policy]].add(spelt[name])
    return {policy: sorted(names) for policy, names in lists.items()}


def text(wheel: Path) -> str:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        operators = entries(*(Path(archive.extract(name, folder)) for name in YAMLS))
        lists = autocast(archive.read(LIBRARY), operators)
    overloads = defaultdict(list)
    for name, has in sorted(operators.items()):
        base, _, overload = name.partition(".")
        if has:
            overloads[has, base].append(overload or "-")
    lines = [wheel.name, *(" ".join([has, base, *names]) for (has, base), names in sorted(overloads.items()))]
    return "\n".join([*lines, *(f"autocast {policy} {' '.join(names)}" for policy, names in lists.items()), ""])


def read() -> tuple[str, dict[str, str], dict[str, list[str]]]:
    """The wheel's name, what MPS has for each operator that it has, and autocast's two lists, `lower` and `full`."""
    wheel, *lines = FILE.read_text(encoding="utf-8").splitlines()
    has, lists = {}, {}
    for kind, name, *rest in map(str.split, lines):
        if kind == "autocast":
            lists[name] = rest
        else:
            has |= {name if overload == "-" else f"{name}.{overload}": kind for overload in rest}
    return wheel, has, lists


if __name__ == "__main__":
    FILE.write_text(text(Path(sys.argv[1])), encoding="utf-8")
