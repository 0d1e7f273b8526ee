#!/bin/sh
# Make the environment in .venv, or bring it up to date: sh setup/environment.sh [extra ...]
#
# The Makefile calls this before every command; where nothing has changed it takes a few milliseconds. It takes a Python
# from 3.11 to 3.13 that is here, else lets uv fetch one, else installs uv from the package registry to do so. uv
# installs the packages where it is on PATH, pip elsewhere. TORCH=cpu takes PyTorch's build without CUDA on Linux.
set -u
cd "$(dirname "$0")/.." || exit 2

ENV=.venv
PY=$ENV/bin/python
UV_VERSION=0.13.9
NEEDED_GB=11   # on Linux, while CUDA's packages are unpacked
SIZE="8.6 GB" # measured, with the test tools
PYTHON=${POMOLOGY_PYTHON:-}
TORCH=${POMOLOGY_TORCH:-}

# Only what says how to reach a registry is taken from the user's environment: nothing else may change what is installed.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX
unset UV_SYSTEM_PYTHON UV_CONSTRAINT UV_OVERRIDE UV_NO_BINARY UV_NO_BUILD UV_TORCH_BACKEND UV_PYTHON UV_TARGET UV_PREFIX
export PYTHONNOUSERSITE=1
for name in $(env | sed -n 's/^\(PIP_[A-Z0-9_]*\)=.*/\1/p'); do
  case $name in
    PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_FIND_LINKS | PIP_NO_INDEX | PIP_CONFIG_FILE | PIP_KEYRING_PROVIDER) ;;
    PIP_CERT | PIP_CLIENT_CERT | PIP_TRUSTED_HOST | PIP_PROXY | PIP_TIMEOUT | PIP_DEFAULT_TIMEOUT | PIP_RETRIES) ;;
    PIP_CACHE_DIR | PIP_NO_CACHE_DIR) ;;
    *) unset "$name" ;;
  esac
done

fail() {
  printf 'pomology: %s\n' "$*" >&2
  exit 2
}

# Is version $1 at least $2? Both are MAJOR.MINOR.
at_least() {
  [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" = "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }
}

# --- Is there anything to do? -----------------------------------------------------------------------------------------
# .venv/.ready has three lines: where and from what the environment was made, the project's own file, the extras in it.
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
  lock=$ready_lock # an environment made with TORCH=cpu stays that
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

# --- Can this machine run it? -----------------------------------------------------------------------------------------
for extra in "$@"; do
  grep -q "^$extra = \[" pyproject.toml || fail "there is no extra '$extra'; pyproject.toml has dev, fleet, store and cuda"
done
case $TORCH in
  "" | cpu) ;;
  *) fail "TORCH=$TORCH: must be cpu, or left out" ;;
esac
system=$(uname -s)
machine=$(uname -m)
glibc=
case $system in
  Linux)
    [ "$machine" = x86_64 ] ||
      fail "nothing is locked for Linux on $machine: pomology runs on Linux x86-64, and on macOS with an Apple chip"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/glibc \([0-9]*\.[0-9]*\).*/\1/')
    [ -n "$glibc" ] || fail "PyTorch's builds for Linux need glibc, which this system does not have"
    at_least "$glibc" 2.28 || fail "PyTorch needs glibc 2.28 or later; this system has $glibc"
    wanted_machine=x86_64
    uv_python=3.12
    ;;
  Darwin)
    # Under Rosetta `uname -m` says x86_64 on an Apple chip too; these two do not.
    if [ "$machine" != arm64 ] && [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" != 1 ] &&
      [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" != 1 ]; then
      fail "PyTorch has no build for Intel Macs: pomology runs on macOS with an Apple chip, and on Linux x86-64"
    fi
    macos=$(sw_vers -productVersion 2>/dev/null)
    [ -z "$macos" ] || [ "${macos%%.*}" -ge 14 ] || fail "PyTorch needs macOS 14 or later; this is macOS $macos"
    wanted_machine=arm64
    uv_python=cpython-3.12-macos-aarch64-none
    ;;
  *) fail "pomology runs on Linux x86-64 and on macOS with an Apple chip; this is $system. On Windows, use WSL" ;;
esac

# --- Which Python? ----------------------------------------------------------------------------------------------------
# Prints one word or two: ok, version X.Y, machine NAME, venv X.Y.
probe='
import platform, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if not ((3, 11) <= sys.version_info[:2] <= (3, 13)) or sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("version " + version)
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
for candidate in ${PYTHON:+"$PYTHON"} $([ -n "$PYTHON" ] || echo python3 python3.12 python3.11 python3.13); do
  path=$(command -v "$candidate" 2>/dev/null) || {
    [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON: there is no such program"
    continue
  }
  answer=$("$path" -c "$probe" "$wanted_machine" 2>/dev/null) || answer="version unknown"
  case $answer in
    ok) python=$path ;;
    venv*) # uv makes an environment without them
      if [ -n "$uv" ]; then
        python=$path
      else
        refused="$path lacks venv and ensurepip: install them (apt install python${answer#venv }-venv), or say PYTHON=another"
      fi
      ;;
    machine*)
      if [ "$system" = Darwin ]; then
        refused="$path is an ${answer#machine } Python, which Rosetta translates: install one for arm64 (brew install python@3.12 in a terminal that does not run under Rosetta), or say PYTHON=another"
      else
        refused="$path is a Python for ${answer#machine }; this machine is $machine: say PYTHON=another"
      fi
      ;;
    *) found="$found $candidate is ${answer#version }," ;;
  esac
  [ -z "$python" ] || break
done
if [ -z "$python" ]; then
  [ -z "$refused" ] || fail "$refused"
  [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON:${found%,}; pomology needs Python 3.11, 3.12 or 3.13"
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
  fail "the environment needs $NEEDED_GB GB of disk while it is made; $free_gb GB are free in $here"
fi

how_to_get_python() {
  case $system in
    Darwin) echo "brew install python@3.12, or: brew install uv" ;;
    *) echo "apt install python3.12 python3.12-venv, or: pipx install uv" ;;
  esac
}

# Install uv with whatever python3 there is, since uv brings a Python of its own.
bootstrap_uv() {
  uv=.venv-uv/bin/uv
  [ ! -x $uv ] || return 0
  rm -rf .venv-uv
  "${python:-python3}" -m venv .venv-uv >/dev/null 2>&1 &&
    .venv-uv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" >.venv-uv/log 2>&1
}

if [ -z "$python" ]; then
  if [ -z "$uv" ]; then
    echo "no Python 3.11 to 3.13 here (${found:-no python3 at all,}" | sed 's/,$/): uv comes into .venv-uv, to fetch one/; s/( /(/'
    bootstrap_uv ||
      fail "needs Python 3.11, 3.12 or 3.13, and uv could not be installed to fetch one; get it with: $(how_to_get_python)"
  fi
  python=$uv_python
elif [ -z "$uv" ] && [ -n "$torch_cpu" ]; then
  bootstrap_uv || fail "TORCH=cpu: needs uv, which knows where those builds are, and which could not be installed"
fi

# --- Make it ----------------------------------------------------------------------------------------------------------
if [ "$ready_lock" != "$lock" ]; then
  rm -rf $ENV # half made, moved, or of an older lock
  if [ -n "$uv" ]; then
    said=$("$uv" venv --quiet --seed --no-project --python "$python" $ENV 2>&1) || {
      rm -rf $ENV
      fail "uv could not make an environment with Python $python ($(printf '%s\n' "$said" | tail -n 1 | sed 's/^ *//')); get Python with: $(how_to_get_python)"
    }
  else
    "$python" -m venv $ENV || fail "$python -m venv failed"
  fi
fi
rm -f $ENV/.ready
extras="$ready_extras$missing"
extras=${extras# }

# pip and uv unpack large wheels here: /tmp may be small.
TMPDIR=$here/$ENV/tmp
export TMPDIR
mkdir -p "$TMPDIR"
wanted=$ENV/wanted.txt
cp requirements.txt $wanted
# What an extra needs carries `extra == 'name'`, which is false until it is replaced by something that is true.
for extra in $extras; do
  sed "s/extra == '$extra'/python_version > '3'/g" $wanted >$wanted.new && mv $wanted.new $wanted
done
sed "s/extra == '[a-z]*'/python_version < '3'/g" $wanted >$wanted.new && mv $wanted.new $wanted
if [ -n "$glibc" ] && ! at_least "$glibc" 2.35; then
  echo "MLX needs glibc 2.35; this system has $glibc, so MLX and its notebooks are left out"
  sed '/^mlx/d' $wanted >$wanted.new && mv $wanted.new $wanted
fi
case " $extras " in
  *" cuda "*) sed '/^mlx-cpu==/d' $wanted >$wanted.new && mv $wanted.new $wanted ;; # both bring the same library file
esac
torch=
if [ -n "$torch_cpu" ]; then
  torch=$(sed -n 's/^\(torch\(vision\)\{0,1\}==[^ ]*\).*/\1/p' $wanted)
  sed '/^torch==/d; /^torchvision==/d; /^triton==/d; /^cuda-/d; /^nvidia-ml-py/!{/^nvidia-/d;}' $wanted >$wanted.new
  mv $wanted.new $wanted
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
echo "installing the environment in $ENV with $([ -n "$uv" ] && echo uv || echo pip): some minutes, $SIZE; $("$PY" -c 'import platform; print("Python " + platform.python_version())')"
packages >$log 2>&1 &
job=$!
trap 'kill $job 2>/dev/null; exit 130' INT TERM
if [ -t 1 ]; then
  while kill -0 $job 2>/dev/null; do
    printf '\r  %s of at most %s packages fetched ' "$(grep -c '^Collecting' $log)" "$total"
    sleep 1
  done
  printf '\r%60s\r' ''
fi
wait $job || fail "the packages could not be installed ($(grep -v '^ *$' $log | tail -n 1)); all of it is in $log"

# --- Is all of it there? ----------------------------------------------------------------------------------------------
$PY - $wanted <<'CHECK' >$log.check 2>&1 || fail "what was installed is not what is locked ($(tail -n 1 $log.check)): see pip config list, and $log"
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
rm -rf "$TMPDIR" $log.check $wanted $wanted.wheels $wanted.source
printf '%s\n%s\n%s\n' "$lock" "$project" "$extras" >$ENV/.ready
if [ "$system" = Darwin ] && [ "$($PY -c 'import sys; print(sys.version_info[1])')" = 13 ]; then
  echo "Python 3.13: TensorFlow has no Metal plug-in here, so its notebooks run on the CPU; PYTHON=python3.12 has it"
fi
