"""The configuration of JupyterLab for `make lab`, which ignores all other configuration files.

JupyterLab listens on loopback with a token, which Jupyter makes or takes from JUPYTER_TOKEN. It
runs the kernel of .venv, does not use the network, and saves notebooks without outputs. The user's
settings of JupyterLab (theme, keys) apply.
"""

import copy
import json
import os
import warnings
from pathlib import Path

import nbformat

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NOTEBOOKS = ROOT / "notebooks"
OWN = Path(os.environ.get("JUPYTER_CONFIG_DIR") or Path.home() / ".jupyter")
SHOWN = ROOT / "outputs" / "lab"  # the last saved notebooks with their outputs


def save_without_outputs(model, path, contents_manager, **_):
    """Save a notebook without outputs for git, and a copy with its outputs to `outputs/lab/`."""
    place = Path(contents_manager.root_dir, path.strip("/")).resolve()
    if model["type"] != "notebook" or NOTEBOOKS not in place.parents:
        return
    content = model["content"]
    if any(cell.get("outputs") for cell in content["cells"]):
        shown = nbformat.from_dict(copy.deepcopy(content))
        if contents_manager.notary.check_cells(shown):
            contents_manager.notary.sign(shown)  # unsigned tables would lose their style
        SHOWN.mkdir(parents=True, exist_ok=True)
        nbformat.write(shown, SHOWN / place.name)
    for cell in content["cells"]:
        kept = {"tags", "jupyter"}  # folded cells stay folded
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key in kept}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    if place.is_file():  # keep the Python version of the file in git
        before = json.loads(place.read_text(encoding="utf-8"))["metadata"]
        content["metadata"] |= {
            key: before[key] for key in ("kernelspec", "language_info") if key in before
        }


c = get_config()  # noqa: F821

c.ServerApp.ip = "127.0.0.1"
c.ServerApp.allow_remote_access = False
c.ServerApp.allow_root = True  # for containers
# Jupyter prints its address at this level, but no line for every notebook.
c.ServerApp.log_level = c.LabApp.log_level = "ERROR"
c.ServerApp.root_dir = str(ROOT)
c.ServerApp.jpserver_extensions = {"jupyter_server_terminals": True}
# Images of an untrusted notebook could be loaded from any host, which then learns who opened it.
own = "'self' data: blob:"
sources = "; ".join(f"{kind}-src {own}" for kind in ("img", "media", "font", "frame", "object"))
policy = f"frame-ancestors 'self'; {sources}"
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": policy}}
c.FileContentsManager.preferred_dir = NOTEBOOKS.name
c.FileContentsManager.pre_save_hook = save_without_outputs
warnings.filterwarnings("ignore", "Overriding existing pre_save_hook")  # Jupyter sets it twice

# Use the kernel of .venv, not one that a user registered as `python3`.
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
os.environ.pop("JUPYTER_PATH", None)
# The Makefile sets this for errors in this file; kernels must not inherit it.
os.environ.pop("TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR", None)
c.KernelSpecManager.allowed_kernelspecs = {"python3"}
# Without encryption ipykernel warns at every start of a kernel.
c.KernelManager.transport_encryption = "auto"

c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"
c.LabApp.app_settings_dir = str(HERE / "settings")  # defaults, which the user's settings override
user_settings = os.environ.get("JUPYTERLAB_SETTINGS_DIR") or OWN / "lab" / "user-settings"
c.LabApp.user_settings_dir = str(user_settings)

# A separate layout, because that of other work has other open files; `prepare.py` makes the first.
c.LabApp.workspaces_dir = str(SHOWN / ".layouts")
