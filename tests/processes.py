"""Tests in a process of their own: a module has `pytestmark = pytest.mark.process("mlx")`.

No process may hold two frameworks. So pytest does not import such a module: it reads the names of
its tests from the source, and the first of them runs all of them in one process of that framework.
"""

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import apart
import pytest

INSIDE = "POMOLOGY_TESTS_INSIDE"  # is set in the subprocess
MARK = re.compile(r"^pytestmark = .*\bpytest\.mark\.process\(\"(\w+)\"\)", re.MULTILINE)


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    text = "process(framework): run a module's tests in a subprocess of this framework"
    config.addinivalue_line("markers", text)


@pytest.hookimpl
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    mark = MARK.search(module_path.read_text(encoding="utf-8"))
    if mark is None or INSIDE in os.environ:
        return None
    module = OtherModule.from_parent(parent, path=module_path)
    module.framework = mark[1]
    return module


class OtherModule(pytest.File):
    """A module that is run elsewhere, by the names of its tests."""

    framework: str

    def collect(self) -> Iterator[pytest.Item]:
        for node in ast.parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                test = OtherTest.from_parent(self, name=node.name)
                decorators = set(map(ast.unparse, node.decorator_list))
                for mark in ("long", "machines"):
                    if f"pytest.mark.{mark}" in decorators:
                        test.add_marker(mark)
                yield test

    @functools.cached_property
    def failures(self) -> dict[str, list[str]]:
        """Run the module: of each test, what its failures say."""
        folder = self.config._tmp_path_factory.mktemp(self.path.stem)
        report, said = folder / "report.xml", folder / "said.txt"
        arguments = [str(self.path), "-p", "no:cacheprovider", "-p", "no:xdist"]
        arguments.append(f"--junitxml={report}")
        if self.config.option.markexpr:
            arguments += ["-m", self.config.option.markexpr]
        environment = os.environ | {INSIDE: self.framework}
        if self.framework == "torch" and apart.FORKS:
            apart.fork(apart.LOADED, apart.run_tests, arguments, environment, str(said)).join()
        else:
            command = [sys.executable, "-m", "pytest", *arguments]
            with said.open("w") as file:
                subprocess.run(command, env=environment, stdout=file, stderr=file, check=False)
        assert report.exists(), said.read_text()[-4000:]
        failures: dict[str, list[str]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            wrong = [one.text or "" for one in case if one.tag in ("failure", "error")]
            failures.setdefault(case.get("name", "").partition("[")[0], []).extend(wrong)
        assert failures, said.read_text()[-4000:]
        return failures


class OtherTest(pytest.Item):
    """A test of such a module, with all its parameters."""

    parent: OtherModule

    def setup(self) -> None:
        if importlib.util.find_spec(self.parent.framework) is None:
            pytest.skip(f"{self.parent.framework} is not installed here")

    def runtest(self) -> None:
        failures = self.parent.failures
        assert self.name in failures, "it did not run"
        if failures[self.name]:
            raise AssertionError("\n\n".join(failures[self.name]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo) -> str:
        return str(excinfo.value)
