"""What a notebook defines, without its data and its runs; and notebooks that tests write."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
from nbformat import v4
from notebook_definitions import code, definitions, parameters

from pomology.paths import notebook_paths, root
from pomology.results.record import PROFILES

OF_NO_RUN = ("explore", "versus")
PATHS = [path for path in notebook_paths(root() / "notebooks") if path.stem not in OF_NO_RUN]
__all__ = ["PATHS", "code", "definitions", "notebook_text", "parameters", "twin", "write_notebook"]


def notebook_text(title: str, parameters: str, *code: str, **about: Any) -> str:
    """A notebook of these cells. about: what it says of itself in its metadata."""
    cells = [v4.new_markdown_cell(title), v4.new_code_cell(parameters.strip())]
    cells[1].metadata["tags"] = ["parameters"]
    cells += [v4.new_code_cell(source) for source in code]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "pomology": about}
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata))


def twin(name: str) -> ModuleType:
    """The file of an MLX twin, which stands next to its notebook and is in no package."""
    (path,) = (root() / "notebooks").glob(f"*/{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_notebook(kit: Path, name: str, text: str, values: str = "") -> None:
    """Put a notebook into a checkout, with these values of parameters in every profile."""
    path = kit / "notebooks" / "an_article" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for profile in PROFILES:
        file = kit / "params" / profile / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"profile: {profile}\n{values}")
