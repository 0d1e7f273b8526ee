#!/bin/sh
# Install or update the environment in .venv: sh setup/environment.sh [extra ...]
#
# The Makefile calls this before every command; without changes it takes a few milliseconds. It uses
# an installed Python 3.11 to 3.13. Without one, uv downloads Python, and is itself installed from
# the package registry if necessary. uv installs the packages if it is on PATH, otherwise pip.
# TORCH=cpu selects PyTorch's build without CUDA on Linux.
set -u
cd "$(dirname "$0")/.." || exit 2

ENV=.venv
PY=$ENV/bin/python
UV_VERSION=0.13.9
NEEDED_GB=11  # on Linux, while CUDA's packages are unpacked
SIZE="8.6 GB" # measured, with the test tools
PYTHON=${POMOLOGY_PYTHON:-}
TORCH=${POMOLOGY_TORCH:-}

# Keep only variables that say how to reach a registry; others could change the installed packages.
unset VIRTUAL_ENV CONDA_PREFIX
for name in $(env | sed -n -e 's/^\(PIP_[A-Z0-9_]*\)=.*/\1/p' -e 's/^\(UV_[A-Z0-9_]*\)=.*/\1/p' \
  -e 's/^\(PYTHON[A-Z][A-Z0-9_]*\)=.*/\1/p'); do
  case $name in
    PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_FIND_LINKS | PIP_NO_INDEX | PIP_CONFIG_FILE) ;;
    PIP_KEYRING_PROVIDER | PIP_CERT | PIP_CLIENT_CERT | PIP_TRUSTED_HOST | PIP_PROXY) ;;
    PIP_TIMEOUT | PIP_DEFAULT_TIMEOUT | PIP_RETRIES | PIP_CACHE_DIR | PIP_NO_CACHE_DIR) ;;
    UV_INDEX* | UV_DEFAULT_INDEX | UV_EXTRA_INDEX_URL | UV_FIND_LINKS | UV_NO_INDEX) ;;
    UV_CONFIG_FILE | UV_KEYRING_PROVIDER | UV_NATIVE_TLS | UV_SYSTEM_CERTS | UV_INSECURE_HOST) ;;
    UV_HTTP_* | UV_CACHE_DIR | UV_NO_CACHE | UV_OFFLINE | UV_CONCURRENT_* | UV_LINK_MODE) ;;
    UV_PYTHON_INSTALL_* | UV_PYTHON_CACHE_DIR | UV_PYTHON_DOWNLOADS* | UV_VERSION) ;;
    *) unset "$name" ;;
  esac
done
if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
  export UV_DEFAULT_INDEX="$PIP_INDEX_URL" # uv does not read pip's variables
fi
export PYTHONNOUSERSITE=1

fail() {
  printf 'pomology: %s\n' "$*" >&2
  exit 2
}

# Succeed if version $1 is at least $2, both MAJOR.MINOR.
at_least() {
  [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" = "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }
}

# --- Exit if the environment is up to date --------------------------------------------------------
# .venv/.ready has three lines: the folder with the lock's checksum and TORCH, the checksum of
# pyproject.toml, and the installed extras.
here=$(pwd -P)
lock="$here $(cksum <requirements.txt) ${TORCH:-default}"
project=$(cksum <pyproject.toml)
ready_lock=
ready_project=
ready_extras=
if [ -f $ENV/.ready ] && $PY -c '' 2>/dev/null; then
  { read -r ready_lock && read -r ready_project && read -r ready_extras; } <$ENV/.ready || true
fi
if [ -z "$TORCH" ] && [ "$ready_lock" = "${lock%default}cpu" ]; then
  lock=$ready_lock # an environment made with TORCH=cpu keeps that build
fi
missing=
for extra in "$@"; do
  case " $ready_extras " in
    *" $extra "*) ;;
    *) missing="$missing $extra" ;;
  esac
done
if [ "$ready_lock" = "$lock" ] && [ "$ready_project" = "$project" ] && [ -z "$missing" ]; then
  exit 0
fi

# --- Check the options and this machine -----------------------------------------------------------
for extra in "$@"; do
  grep -q "^$extra = \[" pyproject.toml || fail "EXTRAS=$extra: expected dev, fleet, store or cuda"
done
case $TORCH in
  "" | cpu) ;;
  *) fail "TORCH=$TORCH: expected cpu or nothing" ;;
esac
systems="pomology needs Linux x86-64, or macOS with an Apple chip"
system=$(uname -s)
machine=$(uname -m)
glibc=
case $system in
  Linux)
    [ "$machine" = x86_64 ] || fail "this is Linux on $machine; $systems"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/glibc \([0-9]*\.[0-9]*\).*/\1/')
    [ -n "$glibc" ] || fail "PyTorch for Linux needs glibc, which this system lacks"
    at_least "$glibc" 2.28 || fail "PyTorch needs glibc 2.28 or later; this system has $glibc"
    wanted_machine=x86_64
    uv_python=3.12
    ;;
  Darwin)
    # Under Rosetta `uname -m` prints x86_64 on an Apple chip, too; these two sysctls do not change.
    if [ "$machine" != arm64 ] && [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" != 1 ] &&
      [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" != 1 ]; then
      fail "PyTorch has no build for Intel Macs; $systems"
    fi
    macos=$(sw_vers -productVersion 2>/dev/null)
    [ -z "$macos" ] || [ "${macos%%.*}" -ge 14 ] ||
      fail "PyTorch needs macOS 14 or later; this is macOS $macos"
    wanted_machine=arm64
    uv_python=cpython-3.12-macos-aarch64-none
    ;;
  *) fail "this is $system; $systems (on Windows: WSL)" ;;
esac

# --- Find a Python --------------------------------------------------------------------------------
# A program that prints: ok, version X.Y, machine NAME, or venv X.Y.
probe='
import platform, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if not ((3, 11) <= sys.version_info[:2] <= (3, 13)):
    print("version " + version)
elif sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("version free-threaded-" + version)
elif sys.implementation.name != "cpython":
    print("version " + sys.implementation.name + "-" + version)
elif platform.machine() != sys.argv[1]:
    print("machine " + platform.machine())
else:
    try:
        import ensurepip, venv
        print("ok")
    except ImportError:
        print("venv " + version)
'

uv=$(command -v uv 2>/dev/null)
python=
found=
refused=
usual=
[ -n "$PYTHON" ] || usual="python3 python3.12 python3.11 python3.13"
for candidate in ${PYTHON:+"$PYTHON"} $usual; do
  path=$(command -v "$candidate" 2>/dev/null) || {
    [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON: no such program"
    continue
  }
  answer=$("$path" -c "$probe" "$wanted_machine" 2>/dev/null) || answer="version unknown"
  case $answer in
    ok) python=$path ;;
    venv*) # uv needs neither venv nor ensurepip
      if [ -n "$uv" ]; then
        python=$path
      else
        refused="$path lacks venv and ensurepip"
        refused="$refused; try: apt install python${answer#venv }-venv, or set PYTHON"
      fi
      ;;
    machine*)
      refused="$path is for ${answer#machine }, this machine is $wanted_machine"
      if [ "$system" = Darwin ]; then
        refused="$refused (Rosetta translates it)"
        refused="$refused; try: brew install python@3.12 outside of Rosetta, or set PYTHON"
      else
        refused="$refused; set PYTHON to another one"
      fi
      ;;
    *) found="$found $candidate is ${answer#version }," ;;
  esac
  [ -z "$python" ] || break
done
if [ -z "$python" ]; then
  [ -z "$refused" ] || fail "$refused"
  [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON:${found%,}; expected Python 3.11, 3.12 or 3.13"
fi

torch_cpu=
if [ "${lock##* }" = cpu ] && [ "$system" = Linux ]; then
  torch_cpu=yes
fi
if [ -n "$torch_cpu" ]; then
  NEEDED_GB=5
  SIZE="8.6 GB less CUDA's packages"
elif [ "$system" = Darwin ]; then
  NEEDED_GB=5
  SIZE="2.8 GB"
fi
free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
if [ ! -d $ENV ] && [ "$free_gb" -lt $NEEDED_GB ]; then
  fail "the installation needs $NEEDED_GB GB of disk; $free_gb GB are free in $here"
fi

how_to_get_python() {
  case $system in
    Darwin) echo "brew install python@3.12, or: brew install uv" ;;
    *) echo "apt install python3.12 python3.12-venv, or: pipx install uv" ;;
  esac
}

# Install uv with any python3; uv then downloads a suitable Python.
bootstrap_uv() {
  uv=.venv-uv/bin/uv
  [ ! -x $uv ] || return 0
  rm -rf .venv-uv
  "${python:-python3}" -m venv .venv-uv >/dev/null 2>&1 &&
    .venv-uv/bin/python -m pip install --quiet --disable-pip-version-check \
      "uv==$UV_VERSION" >.venv-uv/log 2>&1
}

if [ -z "$python" ]; then
  if [ -z "$uv" ]; then
    found=${found# }
    echo "no Python 3.11 to 3.13 (${found:-no python3 found,}" |
      sed 's/,$/): installing uv into .venv-uv to download one/'
    bootstrap_uv || fail "no Python 3.11 to 3.13, and uv could not be installed to download one;" \
      "try: $(how_to_get_python)"
  fi
  python=$uv_python
elif [ -z "$uv" ] && [ -n "$torch_cpu" ]; then
  bootstrap_uv || fail "TORCH=cpu needs uv to find these builds, and uv could not be installed"
fi

# --- Install --------------------------------------------------------------------------------------
if [ "$ready_lock" != "$lock" ]; then
  rm -rf $ENV # incomplete, moved, or of an older lock
  if [ -n "$uv" ]; then
    said=$("$uv" venv --quiet --seed --no-project --python "$python" $ENV 2>&1) || {
      rm -rf $ENV
      why=$(printf '%s\n' "$said" | tail -n 1 | sed 's/^ *//')
      fail "uv could not use Python $python ($why); try: $(how_to_get_python)"
    }
  else
    "$python" -m venv $ENV || fail "$python -m venv failed"
  fi
fi
rm -f $ENV/.ready
if [ -z "$uv" ]; then
  elsewhere=$($PY -m pip config list 2>/dev/null | grep -E "^[^.]*\.(target|prefix|root)=")
  [ -z "$elsewhere" ] || fail "pip is configured to install elsewhere ($elsewhere);" \
    "remove that: pip config unset ${elsewhere%%=*}"
fi
extras="$ready_extras$missing"
extras=${extras# }

# pip and uv unpack large wheels in TMPDIR, and /tmp may be small.
TMPDIR=$here/$ENV/tmp
export TMPDIR
mkdir -p "$TMPDIR"
wanted=$ENV/wanted.txt
cp requirements.txt $wanted
# The markers of an extra's packages have `extra == 'name'`: replace it by true for the installed
# extras, by false for the others.
for extra in $extras; do
  sed "s/extra == '$extra'/python_version > '3'/g" $wanted >$wanted.new && mv $wanted.new $wanted
done
sed "s/extra == '[a-z]*'/python_version < '3'/g" $wanted >$wanted.new && mv $wanted.new $wanted
if [ -n "$glibc" ] && ! at_least "$glibc" 2.35; then
  echo "MLX needs glibc 2.35; this system has $glibc, so MLX is not installed"
  sed '/^mlx/d' $wanted >$wanted.new && mv $wanted.new $wanted
fi
case " $extras " in
  *" cuda "*) # mlx-cpu and mlx-cuda have a library file of the same name
    sed '/^mlx-cpu==/d' $wanted >$wanted.new && mv $wanted.new $wanted
    ;;
esac
torch=
if [ -n "$torch_cpu" ]; then
  torch=$(sed -n 's/^\(torch\(vision\)\{0,1\}==[^ ]*\).*/\1/p' $wanted)
  gone='/^torch==/d; /^torchvision==/d; /^triton==/d; /^cuda-/d; /^nvidia-ml-py/!{/^nvidia-/d;}'
  sed "$gone" $wanted >$wanted.new && mv $wanted.new $wanted
fi

install() {
  if [ -n "$uv" ]; then
    "$uv" pip install --python $PY "$@"
  else
    $PY -m pip install --disable-pip-version-check --no-input --no-user "$@"
  fi
}

packages() {
  install --no-deps --require-hashes --only-binary :all: -r $wanted &&
    { [ -z "$torch" ] || "$uv" pip install --python $PY --no-deps --torch-backend cpu $torch; } &&
    install --no-deps --no-build-isolation --editable .
}

total=$(grep -c '==' $wanted)
log=$ENV/install.log
version=$("$PY" -c 'import platform; print("Python " + platform.python_version())')
installer=$([ -n "$uv" ] && echo uv || echo pip)
echo "installing packages into $ENV with $installer: some minutes, $SIZE; $version"
packages >$log 2>&1 &
job=$!
trap 'kill $job 2>/dev/null; exit 130' INT TERM
if [ -t 1 ]; then
  while kill -0 $job 2>/dev/null; do
    printf '\r  %s of at most %s packages collected ' "$(grep -c '^Collecting' $log)" "$total"
    sleep 1
  done
  printf '\r%60s\r' ''
fi
wait $job || fail "installation failed ($(grep -v '^ *$' $log | tail -n 1)); see $log"

# --- Check the installed versions -----------------------------------------------------------------
$PY - $wanted <<'CHECK' >$log.check 2>&1 ||
import sys
from importlib.metadata import version

from packaging.requirements import Requirement

for line in open(sys.argv[1], encoding="utf-8"):
    requirement = Requirement(line.split(" --hash")[0]) if "==" in line else None
    if requirement and (not requirement.marker or requirement.marker.evaluate()):
        installed = version(requirement.name)
        if installed not in requirement.specifier:
            sys.exit(f"{requirement.name} is {installed}")
import pomology
CHECK
  fail "installed packages differ from the lock ($(tail -n 1 $log.check));" \
    "check 'pip config list' and $log"
rm -rf "$TMPDIR" $log.check $wanted $wanted.wheels $wanted.source
printf '%s\n%s\n%s\n' "$lock" "$project" "$extras" >$ENV/.ready
if [ "$system" = Darwin ] && [ "$($PY -c 'import sys; print(sys.version_info[1])')" = 13 ]; then
  echo "TensorFlow has no Metal plug-in for Python 3.13 and runs on the CPU; try PYTHON=python3.12"
fi
