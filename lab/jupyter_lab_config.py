"""JupyterLab as `make lab` starts it: this file alone, whatever is configured on the machine for other work.

It listens on loopback, with a token that Jupyter makes or takes from JUPYTER_TOKEN, runs this environment's kernel,
asks nothing of the network, and saves notebooks without what running them leaves. The user's own settings of JupyterLab
(theme, keys) hold here too.
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
SHOWN = ROOT / "outputs" / "lab"  # the notebooks as they were last saved, with their outputs


def save_without_outputs(model, path, contents_manager, **_):
    """Keep what a run leaves in a notebook out of git; the notebook with it goes to `outputs/lab/`."""
    place = Path(contents_manager.root_dir, path.strip("/")).resolve()
    if model["type"] != "notebook" or NOTEBOOKS not in place.parents:
        return
    content = model["content"]
    if any(cell.get("outputs") for cell in content["cells"]):
        shown = nbformat.from_dict(copy.deepcopy(content))
        if contents_manager.notary.check_cells(shown):
            contents_manager.notary.sign(shown)  # else its tables are shown without their style
        SHOWN.mkdir(parents=True, exist_ok=True)
        nbformat.write(shown, SHOWN / place.name)
    for cell in content["cells"]:
        kept = {"tags", "jupyter"}  # folded cells stay folded
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key in kept}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    if place.is_file():  # the release of Python that ran it is no change either
        before = json.loads(place.read_text(encoding="utf-8"))["metadata"]
        content["metadata"] |= {
            key: before[key] for key in ("kernelspec", "language_info") if key in before
        }


c = get_config()  # noqa: F821

c.ServerApp.ip = "127.0.0.1"
c.ServerApp.allow_remote_access = False
c.ServerApp.allow_root = (
    True  # containers; nothing here is more dangerous as root than any other command
)
c.ServerApp.log_level = c.LabApp.log_level = (
    "ERROR"  # the address is printed, and nothing for every notebook
)
c.ServerApp.root_dir = str(ROOT)
c.ServerApp.jpserver_extensions = {"jupyter_server_terminals": True}
# A notebook from somebody else would load its pictures from anywhere, and so tell that it was opened, and where.
own = "'self' data: blob:"
policy = f"frame-ancestors 'self'; img-src {own}; media-src {own}; font-src {own}; frame-src {own}; object-src {own}"
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": policy}}
c.FileContentsManager.preferred_dir = NOTEBOOKS.name
c.FileContentsManager.pre_save_hook = save_without_outputs
warnings.filterwarnings("ignore", "Overriding existing pre_save_hook")  # Jupyter sets it twice

# This environment's kernel, not one that a user registered as `python3`.
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
os.environ.pop("JUPYTER_PATH", None)
os.environ.pop(
    "TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR", None
)  # the Makefile's, for this file
c.KernelSpecManager.allowed_kernelspecs = {"python3"}
c.KernelManager.transport_encryption = (
    "auto"  # ipykernel warns at every start of a kernel that talks in the clear
)

c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"
c.LabApp.app_settings_dir = str(HERE / "settings")  # defaults: the user's own settings win
c.LabApp.user_settings_dir = os.environ.get("JUPYTERLAB_SETTINGS_DIR") or str(
    OWN / "lab" / "user-settings"
)

# Not the layout of other work, whose open files are not here; `prepare.py` makes the first one.
c.LabApp.workspaces_dir = str(SHOWN / ".layouts")
