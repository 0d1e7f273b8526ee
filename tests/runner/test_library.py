"""The files of the package on which numbers depend."""

import json
import subprocess
import sys

import pytest

from pomology.paths import notebook_paths, root
from pomology.runner import library, notebooks

LOADED = """
import json, sys
sys.path.insert(0, sys.argv[1])
CODE
names = [name for name in sys.modules if name.split(".")[0] == "pomology"]
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""


def imports(path) -> list[str]:
    """Return the lines of a notebook that import from the package, each once."""
    texts = "\n".join(notebooks._code(path)).splitlines()
    return list(dict.fromkeys(line.strip() for line in texts if line.startswith("from pomology")))


@pytest.mark.parametrize("name", ["vae", "kernel_launch", "whisper_pretraining"])
def test_they_are_those_that_a_kernel_imports_and_that_compute(name):
    (path,) = (path for path in notebook_paths(root() / "notebooks") if path.stem == name)
    code = LOADED.replace("CODE", "\n".join(imports(path)))
    command = [sys.executable, "-P", "-c", code, str(root() / "lib")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folders = [library.LIBRARY / folder for folder in library.COMPUTING]
    own = {file for file in json.loads(said) if any(file.startswith(f"{f}/") for f in folders)}
    found = {str(file) for file in library.files(notebooks._code(path))}
    assert own and own <= found
    assert found - {str(library.LIBRARY / "__init__.py")} <= {
        str(file) for folder in folders for file in folder.glob("*.py")
    }


def test_all_that_the_package_imports_is_found_as_python_finds_it():
    """A form of import that is not recognized would hide a file, such as a relative one."""
    for folder in library.COMPUTING:
        for path in (library.LIBRARY / folder).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "from ." not in text and "\nimport pomology." not in text, path


def test_a_file_of_the_models_is_of_the_notebooks_that_name_it():
    whisper = library.LIBRARY / "models" / "whisper.py"
    for name, uses in (("whisper_pretraining", True), ("vae", False)):
        (path,) = (path for path in notebook_paths(root() / "notebooks") if path.stem == name)
        assert (whisper in library.files(notebooks._code(path))) is uses
