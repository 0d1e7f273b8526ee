"""setup/environment.sh with mock programs: choices, refusals and updates."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pomology.paths import root

TOOLS = "sh env sed grep cksum awk dirname mkdir rm mv cp cat sleep tail touch"
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
# A mock Python: answers the probe, copies itself into virtual environments, logs its calls.
PYTHON = """#!/bin/sh
[ "$1" != -m ] || echo "python $0 $*" >>"$MOCKS/calls"
case $1 in
  -c) case $2 in
    *ensurepip*) echo "{answer}" ;;
    *version_info*) echo 12 ;;
    *python_version*) echo "Python 3.12.1" ;;
  esac ;;
  -m) case $2 in
    venv) mkdir -p $3/bin && cp "$0" $3/bin/python && touch $3/pyvenv.cfg ;;
    pip) for word; do case $word in *wanted.txt) cp "$word" "$MOCKS/wanted" ;; esac; done
      env >"$MOCKS/environment"; echo "pip said no"; {pip} ;;
  esac ;;
  -) {check} ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>"$MOCKS/calls"
case $1 in
  venv) mkdir -p .venv/bin && cp "$MOCKS/python.template" .venv/bin/python ;;
  pip) for word; do case $word in *wanted.txt) cp "$word" "$MOCKS/wanted" ;; esac; done ;;
esac
"""


class Machine:
    """A checkout, and a PATH with the programs of a test only."""

    def __init__(self, folder: Path):
        self.checkout = folder / "a check out"  # paths may contain spaces
        self.mocks = folder / "mocks"
        (self.checkout / "setup").mkdir(parents=True)
        self.mocks.mkdir()
        shutil.copy(root() / "setup" / "environment.sh", self.checkout / "setup")
        (self.checkout / "requirements.txt").write_text(LOCK)
        (self.checkout / "pyproject.toml").write_text(EXTRAS)
        for tool in TOOLS.split():
            (self.mocks / tool).symlink_to(shutil.which(tool))
        self.program("uname", "case $1 in -s) echo Linux ;; *) echo x86_64 ;; esac")
        self.program("getconf", "echo glibc 2.36")
        self.program("df", "echo Filesystem; echo /dev/x 0 0 99999999999 1% /")
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


def test_the_first_usable_python_makes_the_environment_with_pip(machine):
    machine.python("python3", "version 3.14")
    machine.python("python3.12", "version unknown")
    machine.python("python3.11")
    machine.python("python3.13")
    machine.made("dev")
    assert machine.calls("-m venv") == [f"python {machine.mocks}/python3.11 -m venv .venv"]
    first, project = machine.calls("-m pip install")
    assert "--no-deps --require-hashes --only-binary :all:" in first
    assert project.endswith("--editable .")


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
    assert seen == {*kept.split(), "UV_DEFAULT_INDEX"}


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
