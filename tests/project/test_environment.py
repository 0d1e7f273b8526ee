"""setup/environment.sh with mock programs: choices, refusals and updates."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pomology.paths import root

sys.path.insert(0, str(root() / "setup"))
import installed

TOOLS = "sh env sed grep cksum awk dirname mkdir rm mv cp cat tail touch ln"
LOCK = """\
absl-py==2.5.1 --hash=sha256:aa
mlx==0.32.4 --hash=sha256:bb
mlx-cpu==0.32.4 ; sys_platform == 'linux' --hash=sha256:cc
nvidia-cublas==13.1 ; sys_platform == 'linux' --hash=sha256:dd
nvidia-ml-py==13.6 ; sys_platform == 'linux' --hash=sha256:ee
s3fs==2026.9.0 ; extra == 'store' --hash=sha256:ff
asyncssh==2.24.1 ; extra == 'fleet' or extra == 'store' --hash=sha256:11
torch==2.14.1 --hash=sha256:22
torchvision==0.29.1 --hash=sha256:33
"""
EXTRAS = "".join(f"{name} = [\n]\n" for name in ("dev", "fleet", "store", "cuda"))
# A mock Python: answers the probe, copies itself into virtual environments, logs its calls. Its pip
# installs a mock uv if the test put one into the registry.
PYTHON = """#!/bin/sh
# Modules of the checkout's folder must not take the place of Python's own.
case $1 in -I | -P) shift ;; -m) echo "$* can import from the checkout"; exit 1 ;; esac
[ "$1" != -m ] || [ "$3" = config ] || echo "python $0 $*" >>"$MOCKS/calls"
case $1 in
  -c) case $2 in
    *ensurepip*) echo "{answer}" ;;
    *version_info*) echo 12 ;;
    *python_version*) echo "Python 3.12.1" ;;
  esac ;;
  -m) case "$2 $*" in
    venv*) mkdir -p $3/bin && cp "$0" $3/bin/python && touch $3/pyvenv.cfg ;;
    pip*setup/uv.txt) if [ -f "$MOCKS/uv.registry" ]; then
        cp "$MOCKS/uv.registry" .venv-uv/bin/uv
      else
        echo "no matching distribution for uv"; false
      fi ;;
    "pip -m pip config get"*) case $5 in *index-url) echo "$CONF_OF_PIP" ;; esac ;;
    pip*) for word; do case $word in *pins.txt) cp "$word" "$MOCKS/wanted" ;; esac; done
      env >"$MOCKS/environment"; echo "pip said no"; {pip} ;;
  esac ;;
  setup/installed.py) cp "$2" "$MOCKS/checked"; {check} ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>"$MOCKS/calls"
case $1 in
  --version) echo "uv 0.13.9 (mock)" ;;
  venv) mkdir -p .venv/bin && cp "$MOCKS/python.template" .venv/bin/python ;;
  pip) for word; do case $word in *pins.txt) cp "$word" "$MOCKS/wanted" ;; esac; done
    env >"$MOCKS/environment" ;;
esac
"""


class Machine:
    """A checkout, and a PATH with the programs of a test only."""

    def __init__(self, folder: Path):
        self.checkout = folder / "a check out"  # paths may contain spaces
        self.mocks = folder / "mocks"
        (self.checkout / "setup").mkdir(parents=True)
        self.mocks.mkdir()
        for name in ("environment.sh", "uv.txt"):
            shutil.copy(root() / "setup" / name, self.checkout / "setup")
        (self.checkout / "requirements.txt").write_text(LOCK)
        (self.checkout / "pyproject.toml").write_text(EXTRAS)
        for tool in TOOLS.split():
            (self.mocks / tool).symlink_to(shutil.which(tool))
        self.program("uname", "case $1 in -s) echo Linux ;; *) echo x86_64 ;; esac")
        self.program("getconf", "echo glibc 2.36")
        self.program("df", "echo Filesystem; echo /dev/x 0 0 99999999999 1% /")
        self.program("sleep", "true")  # the script waits for its installer a second at a time
        self.python("python.template")

    def program(self, name: str, text: str) -> None:
        place = self.mocks / name
        place.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        place.chmod(0o755)

    def python(self, name: str, answer="ok", pip="true", check="true") -> None:
        text = PYTHON.replace("{answer}", answer).replace("{pip}", pip)
        self.program(name, text.replace("{check}", check))

    def make(self, *extras: str, **variables: str) -> subprocess.CompletedProcess:
        environment = {"PATH": str(self.mocks), "MOCKS": str(self.mocks), **variables}
        command = [self.mocks / "sh", self.checkout / "setup" / "environment.sh", *extras]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def made(self, *extras: str, **variables: str) -> str:
        """Make the environment, and return stdout."""
        done = self.make(*extras, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def calls(self, words: str = "") -> list[str]:
        place = self.mocks / "calls"
        lines = place.read_text().splitlines() if place.exists() else []
        return [line for line in lines if words in line]

    def wanted(self) -> str:
        return (self.mocks / "wanted").read_text()

    def old(self) -> Path:
        """Create a file that disappears when the environment is made again."""
        place = self.checkout / ".venv" / "old"
        place.parent.mkdir(exist_ok=True)
        place.touch()
        return place


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_first_usable_python_makes_the_environment_with_a_pinned_uv(machine):
    machine.python("python3", "version 3.14")
    machine.python("python3.12", "version unknown")
    machine.python("python3.11")
    machine.python("python3.13")
    machine.program("uv.registry", UV)
    assert "installing into .venv with uv" in machine.made("dev")
    python = f"python {machine.mocks}/python3.11"
    made, got_uv = [line for line in machine.calls() if line.startswith("python ")]
    assert made == f"{python} -m venv .venv-uv"
    assert ".venv-uv/bin/python -m pip install" in got_uv and "--require-hashes" in got_uv
    version, venv, first, project = [line for line in machine.calls() if line.startswith("uv ")]
    assert version == "uv --version"
    assert venv.endswith(f"--python {machine.mocks}/python3.11 .venv")
    assert "--no-deps --require-hashes --only-binary :all:" in first
    assert project.endswith("--editable .")
    (machine.checkout / "requirements.txt").write_text(LOCK + LOCK)
    machine.made()
    assert machine.calls("-m venv .venv-uv") == [made]  # uv is there already


def test_pip_takes_the_place_of_a_uv_that_cannot_be_had(machine):
    machine.python("python3")
    said = machine.made()
    assert "uv failed (no matching distribution for uv): using pip" in said
    assert "installing into .venv with pip" in said
    assert f"python {machine.mocks}/python3 -m venv .venv" in machine.calls()
    first, project = machine.calls("python .venv/bin/python -m pip install")
    assert "--no-deps --require-hashes --only-binary :all:" in first
    assert project.endswith("--editable .")
    assert not (machine.checkout / ".venv-uv").exists()
    refused = machine.make(POMOLOGY_TORCH="cpu")
    assert refused.returncode == 2 and "TORCH=cpu needs uv" in refused.stderr


@pytest.mark.parametrize("command", ["venv", "pip"])
def test_pip_takes_over_where_uv_reaches_no_registry(machine, command):
    machine.python("python3")
    machine.python("python.template")
    failing = f'case $1 in {command}) echo "no certificate"; echo "hint: ask"; exit 1 ;; esac\n'
    machine.program("uv", UV.replace("case $1 in", failing + "case $1 in", 1))
    said = machine.made()
    assert "uv failed (no certificate): using pip, which takes some minutes" in said
    assert len(machine.calls(".venv/bin/python -m pip install")) == 2
    assert (machine.checkout / ".venv" / ".ready").exists()


def test_without_a_usable_python_uv_downloads_one(machine):
    machine.python("python3", "version 3.14")
    refused = machine.make()
    assert "uv could not be installed to download one; try: apt" in refused.stderr
    machine.program("uv.registry", UV)
    assert "no Python 3.11 to 3.13 (python3 is 3.14): installing uv" in machine.made()
    assert machine.calls("uv venv")[0].endswith("--python 3.12 .venv")


def test_uv_gets_the_registry_and_the_certificate_of_pip(machine):
    machine.python("python3")
    machine.program("uv", UV)
    given = {"CONF_OF_PIP": "https://packages.example", "PIP_CERT": "/ca.pem"}
    machine.made(**given, PIP_EXTRA_INDEX_URL="https://more.example")
    seen = (machine.mocks / "environment").read_text()
    assert "UV_INDEX=https://more.example\nUV_INDEX_STRATEGY=unsafe-best-match\n" in "".join(
        sorted(seen.splitlines(keepends=True))
    )
    assert "UV_DEFAULT_INDEX=https://packages.example\n" in seen and "SSL_CERT_FILE=/ca.pem" in seen
    (machine.checkout / "requirements.txt").write_text(LOCK + LOCK)
    machine.made(CONF_OF_PIP="https://other.example", UV_DEFAULT_INDEX="https://own.example")
    assert "UV_DEFAULT_INDEX=https://own.example\n" in (machine.mocks / "environment").read_text()


def active_environment(machine, **answers: str) -> Path:
    """Create an environment of the user's, in the test's folder."""
    folder = machine.mocks.with_name("users own")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    machine.python("python.own", **answers)
    shutil.copy(machine.mocks / "python.own", folder / "bin" / "python")
    return folder


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_with_the_packages_is_used(machine, variable):
    machine.python("python3")
    machine.program("uv", UV)
    folder = active_environment(machine)
    said = machine.made(**{variable: str(folder)})
    assert f"using the environment {folder} (Python 3.12.1): adding pomology" in said
    link = machine.checkout / ".venv"
    assert link.is_symlink() and link.resolve() == folder and not machine.calls("uv venv")
    assert "s3fs==2026.9.0 ; python_version < '3'" in (machine.mocks / "checked").read_text()
    calls = machine.calls()
    machine.made()
    assert machine.calls() == calls  # the choice stays when it is not active any more
    machine.made("store", **{variable: str(folder)})
    assert "s3fs==2026.9.0 ; python_version > '3'" in machine.wanted()
    assert "--editable ." in machine.calls()[-1] and (folder / "bin" / "python").exists()


def test_an_active_environment_without_the_packages_is_left_alone(machine):
    machine.python("python3")
    machine.program("uv", UV)
    folder = active_environment(machine, check="{ echo torch is missing; false; }")
    said = machine.made(VIRTUAL_ENV=str(folder))
    assert f"{folder} lacks packages of requirements.txt: torch is missing; installing" in said
    assert not (machine.checkout / ".venv").is_symlink() and machine.calls("uv venv")
    assert [each.name for each in folder.iterdir()] == ["bin"]


def test_a_linked_environment_of_another_checkout_says_so(machine, tmp_path):
    machine.python("python3")
    machine.program("uv", UV)
    folder = active_environment(machine)
    machine.made(VIRTUAL_ENV=str(folder))
    ready = folder / ".ready"
    lines = ready.read_text()
    here = str(machine.checkout.resolve())
    other = tmp_path / "another one"
    ready.write_text(lines.replace(here, str(other)))
    assert "its program pomology" not in machine.made()  # that folder is not there any more
    other.mkdir()
    ready.write_text(lines.replace(here, str(other)))
    assert f"its program pomology was that of {other}, and is now that of {here}" in machine.made()


def test_a_linked_environment_that_no_longer_fits_is_left_and_not_deleted(machine):
    machine.python("python3")
    machine.program("uv", UV)
    folder = active_environment(machine)
    machine.made(VIRTUAL_ENV=str(folder))
    active_environment(machine, check="{ echo zipp is missing; false; }")
    with (machine.checkout / "requirements.txt").open("a") as file:
        file.write("zipp==4.1.2 --hash=sha256:44\n")
    assert "zipp is missing; installing into .venv" in machine.made()
    assert not (machine.checkout / ".venv").is_symlink()
    assert (folder / "bin" / "python").exists()


def test_a_given_python_and_the_own_environment_take_precedence_over_the_active_one(machine):
    machine.python("python3")
    machine.program("uv", UV)
    folder = active_environment(machine)
    machine.made(VIRTUAL_ENV=str(folder), POMOLOGY_PYTHON="python3")
    own = machine.checkout / ".venv"
    assert not own.is_symlink()
    machine.made("dev", VIRTUAL_ENV=str(folder))
    assert not own.is_symlink()
    (own / "pyvenv.cfg").touch()
    (machine.checkout / "requirements.txt").write_text(LOCK + LOCK)
    machine.made(VIRTUAL_ENV=str(own))
    assert not own.is_symlink()


def test_nothing_is_done_again_until_the_lock_or_the_project_changes(machine):
    machine.python("python3")
    machine.made()
    calls = machine.calls()
    machine.made()
    assert machine.calls() == calls
    with (machine.checkout / "pyproject.toml").open("a") as file:
        file.write("# another description\n")
    old = machine.old()
    machine.made()
    assert machine.calls() != calls and old.exists()
    with (machine.checkout / "requirements.txt").open("a") as file:
        file.write("zipp==4.1.2 --hash=sha256:44\n")
    machine.made()
    assert not old.exists() and "zipp" in machine.wanted()


def test_a_half_made_environment_and_one_that_was_moved_are_made_again(machine):
    machine.python("python3")
    half = machine.old()
    machine.made()
    assert not half.exists()
    machine.old()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    machine.made()
    assert not (machine.checkout / ".venv" / "old").exists()


def test_extras_are_added_and_kept(machine):
    machine.python("python3")
    on = "python_version > '3'"
    machine.made()
    assert f"s3fs==2026.9.0 ; {on}" not in machine.wanted()
    machine.made("store")
    assert f"s3fs==2026.9.0 ; {on}" in machine.wanted()
    assert f"asyncssh==2.24.1 ; python_version < '3' or {on}" in machine.wanted()
    machine.made("fleet")
    assert (machine.checkout / ".venv" / ".ready").read_text().splitlines()[2] == "store fleet"
    assert "EXTRAS=flet: expected dev, fleet" in machine.make("flet").stderr


def test_only_variables_about_registries_reach_the_installer(machine):
    machine.python("python3")
    gone = "PIP_USER PIP_TARGET PIP_PREFIX PIP_NO_BINARY PIP_REQUIRE_VIRTUALENV UV_EXCLUDE_NEWER"
    gone += " UV_NO_BINARY_PACKAGE PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE"
    kept = "PIP_INDEX_URL PIP_CONFIG_FILE PIP_PROXY UV_CACHE_DIR"
    machine.made(**dict.fromkeys(f"{gone} {kept}".split(), "given"))
    seen = (machine.mocks / "environment").read_text().splitlines()
    seen = {line.removesuffix("=given") for line in seen if line.endswith("=given")}
    assert seen == {*kept.split()}


MAC = "case $1 in -s) echo Darwin ;; *) echo {} ;; esac"
# Mock programs, Python's answer to the probe, and words of the error.
REFUSED = [
    ({"uname": MAC.format("x86_64")}, "machine x86_64", "Intel Macs"),
    ({"uname": MAC.format("arm64")}, "machine x86_64", "Rosetta"),
    ({"uname": MAC.format("arm64"), "sw_vers": "echo 13.6.1"}, "ok", "macOS 14"),
    ({}, "venv 3.12", "apt install python3.12-venv"),
    ({"getconf": "echo glibc 2.27"}, "ok", "glibc 2.28"),
    ({"df": "echo Filesystem; echo /dev/x 0 0 3000000 1% /"}, "ok", "11 GB of disk"),
]


@pytest.mark.parametrize(("programs", "answer", "words"), REFUSED)
def test_an_unsupported_machine_is_refused_before_anything_is_made(
    machine, programs, answer, words
):
    machine.python("python3", answer)
    for name, text in programs.items():
        machine.program(name, text)
    done = machine.make()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr and not (machine.checkout / ".venv").exists()


def test_mlx_is_skipped_on_an_older_linux_and_cuda_with_torch_cpu(machine):
    machine.python("python3")
    machine.program("getconf", "echo glibc 2.31")
    assert "MLX needs glibc 2.35; this system has 2.31" in machine.made()
    assert "mlx" not in machine.wanted() and "nvidia-cublas" in machine.wanted()
    machine.program("getconf", "echo glibc 2.36")
    machine.program("uv", UV)
    machine.made(POMOLOGY_TORCH="cpu")
    names = [line.split("==")[0] for line in machine.wanted().splitlines()]
    assert names == ["absl-py", "mlx", "mlx-cpu", "nvidia-ml-py", "s3fs", "asyncssh"]
    assert machine.calls("--torch-backend cpu torch==2.14.1 torchvision==0.29.1")


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"pip": "false"}, "pip said no"), ({"check": "{ echo No torch; false; }"}, "No torch")],
)
def test_an_installation_that_fails_or_lacks_packages_is_one_line(machine, fault, words):
    machine.python("python3", **fault)
    done = machine.make()
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not (machine.checkout / ".venv" / ".ready").exists()


def test_missing_packages_and_other_versions_are_named(tmp_path, capsys):
    numpy = f"numpy=={metadata.version('numpy')} --hash=sha256:aa\n"
    pins = tmp_path / "pins.txt"
    pins.write_text(f"# made by a test\n{numpy}pip==0.1 ; python_version < '3'\n")
    installed.main(str(pins))
    pins.write_text(f"{numpy}nothing-of-this-name==1\npip==0.1 --hash=sha256:bb\n")
    with pytest.raises(SystemExit, match="nothing-of-this-name is missing, and 1 other"):
        installed.main(str(pins))
    assert installed.differences(["pip==0.1"])[0].endswith("in place of ==0.1")
