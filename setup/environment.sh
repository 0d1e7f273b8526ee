#!/bin/sh
# Install or update the environment in .venv: sh setup/environment.sh [extra ...]
#
# The Makefile calls this before every command; without changes it takes a few milliseconds.
#
# An active conda or virtual environment that has the packages of requirements.txt is used: .venv is
# then a link to it. Otherwise .venv is made with an installed Python 3.11 to 3.13, or with one that
# uv downloads. uv installs the packages, since it takes a fifth of pip's time. Where uv is not on
# PATH, pip installs it into .venv-uv, at the version and hashes of setup/uv.txt. pip installs the
# packages only where uv cannot be had. TORCH=cpu selects PyTorch's build without CUDA on Linux.
set -u
cd "$(dirname "$0")/.." || exit 2

ENV=.venv
PY=$ENV/bin/python
NEEDED_GB=11  # on Linux, while CUDA's packages are unpacked
SIZE="8.6 GB" # measured, with the test tools
PYTHON=${POMOLOGY_PYTHON:-}
TORCH=${POMOLOGY_TORCH:-}
active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}

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
export PYTHONNOUSERSITE=1

# Programs start with -I: without the folder of the checkout in their path, where a `random.py` or a
# `token.py` of somebody would take the place of Python's own. (-P is new in Python 3.11.)

fail() {
  rm -rf .venv-tmp
  printf 'pomology: %s\n' "$*" >&2
  exit 2
}

# Succeed if version $1 is at least $2, both MAJOR.MINOR.
at_least() {
  [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" = "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }
}

# --- Exit if the environment is up to date --------------------------------------------------------
# .ready in the environment has three lines: the folder with the lock's checksum and TORCH, the
# checksum of pyproject.toml, and the installed extras.
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

# --- The pins of this system ----------------------------------------------------------------------
torch_cpu=
if [ "${lock##* }" = cpu ] && [ "$system" = Linux ]; then
  torch_cpu=yes
fi
# Large wheels are unpacked here, since /tmp may be small.
TMPDIR=$here/.venv-tmp
export TMPDIR
rm -rf "$TMPDIR"
mkdir "$TMPDIR" || fail "$here cannot be written"
pins=$TMPDIR/pins.txt

edit_pins() {
  sed "$1" "$pins" >"$pins.new" && mv "$pins.new" "$pins"
}

# Write the pins of this system and of some extras: write_pins [extra ...]
write_pins() {
  cp requirements.txt "$pins"
  # The markers of an extra's packages have `extra == 'name'`: replace it by true for the wanted
  # extras, by false for the others.
  for extra in "$@"; do
    edit_pins "s/extra == '$extra'/python_version > '3'/g"
  done
  edit_pins "s/extra == '[a-z]*'/python_version < '3'/g"
  if [ -n "$glibc" ] && ! at_least "$glibc" 2.35; then
    edit_pins '/^mlx/d'
  fi
  case " $* " in
    *" cuda "*) edit_pins '/^mlx-cpu==/d' ;; # its library and mlx-cuda's have the same file name
  esac
  # The registry has no PyTorch without CUDA for Linux: uv installs that from PyTorch's own index.
  if [ -n "$torch_cpu" ]; then
    edit_pins '/^torch==/d; /^torchvision==/d; /^triton==/d; /^cuda-/d; /^nvidia-ml-py/!{/^nvidia-/d;}'
  fi
}

# --- Choose a Python ------------------------------------------------------------------------------
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

# Print why the environment $1 cannot be used, or succeed. Missing extras can be added to it.
objection() {
  case $("$1/bin/python" -c "$probe" "$wanted_machine" 2>/dev/null) in
    ok | venv*) ;;
    *)
      echo "has no Python 3.11 to 3.13 for $wanted_machine"
      return 1
      ;;
  esac
  write_pins
  missing_package=$("$1/bin/python" setup/installed.py "$pins" 2>&1) && return 0
  echo "lacks packages of requirements.txt: $(printf '%s\n' "$missing_package" | tail -n 1)"
  return 1
}

# .venv is a link if an earlier call has accepted the environment that was active then.
linked=
candidate=
if [ -n "$PYTHON" ]; then
  candidate=
elif [ -L $ENV ]; then
  candidate=$(cd $ENV 2>/dev/null && pwd -P)
elif [ "$ready_lock" != "$lock" ] && [ -n "$active" ]; then
  candidate=$(cd "$active" 2>/dev/null && pwd -P)
  [ "$candidate" != "$here/$ENV" ] || candidate=
fi
if [ -n "$candidate" ]; then
  if why=$(objection "$candidate"); then
    linked=$candidate
  else
    echo "the environment $candidate $why; installing into $ENV"
  fi
fi

uv=$(command -v uv 2>/dev/null)
python=
found=
refused=
usual=
[ -n "$PYTHON" ] || usual="python3 python3.12 python3.11 python3.13"
for candidate in ${PYTHON:+"$PYTHON"} $usual; do
  [ -z "$linked" ] || break
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
if [ -z "$python$linked" ]; then
  [ -z "$refused" ] || fail "$refused"
  [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON:${found%,}; expected Python 3.11, 3.12 or 3.13"
fi

if [ -n "$torch_cpu" ]; then
  NEEDED_GB=5
  SIZE="8.6 GB less CUDA's packages"
elif [ "$system" = Darwin ]; then
  NEEDED_GB=5
  SIZE="2.8 GB"
fi
free_gb() {
  df -Pk . | awk 'NR == 2 { printf "%.1f", $4 / 1048576 }'
}
free_before=$(free_gb)
if [ -z "$linked" ] && [ ! -d $ENV ] && [ "${free_before%.*}" -lt $NEEDED_GB ]; then
  fail "the installation needs $NEEDED_GB GB of disk; ${free_before%.*} GB are free in $here"
fi

# --- Get uv ---------------------------------------------------------------------------------------
# Print a setting of pip, from its variable $2 or else from its configuration files.
pip_setting() {
  if [ -n "$2" ]; then
    echo "$2"
  else
    "${python:-python3}" -I -m pip config get "global.$1" 2>/dev/null
  fi
}

# uv reads none of pip's settings; a company's registry and certificate are often there only.
pass_pip_settings() {
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    UV_DEFAULT_INDEX=$(pip_setting index-url "${PIP_INDEX_URL:-}")
    [ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
  fi
  if [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then
    UV_INDEX=$(pip_setting extra-index-url "${PIP_EXTRA_INDEX_URL:-}")
    if [ -n "$UV_INDEX" ]; then
      # As pip does, uv shall look into all of them; the lock's hashes refuse other files.
      UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
      export UV_INDEX UV_INDEX_STRATEGY
    fi
  fi
  if [ -z "${SSL_CERT_FILE:-}" ]; then
    SSL_CERT_FILE=$(pip_setting cert "${PIP_CERT:-}")
    [ -z "$SSL_CERT_FILE" ] || export SSL_CERT_FILE
  fi
}

# Print the line of a log that says best why a program failed.
last_reason() {
  grep -v -e '^ *$' -e '^ *hint' "$1" | tail -n 1 | sed 's/^ *//'
}

# Go on with pip, for the reason $1. Fails where only uv can go on.
without_uv() {
  [ -z "$torch_cpu" ] || fail "TORCH=cpu needs uv to find these builds; uv failed ($1)"
  echo "uv failed ($1): using pip, which takes some minutes"
  uv=
}

how_to_get_python() {
  case $system in
    Darwin) echo "brew install python@3.12, or: brew install uv" ;;
    *) echo "apt install python3.12 python3.12-venv, or: pipx install uv" ;;
  esac
}

# Install the pinned uv into .venv-uv with any python3, unless it is there.
bootstrap_uv() {
  uv=.venv-uv/bin/uv
  uv_version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' setup/uv.txt)
  case $($uv --version 2>/dev/null) in
    "uv $uv_version"*) return 0 ;;
  esac
  rm -rf .venv-uv
  {
    "${python:-python3}" -I -m venv .venv-uv &&
      .venv-uv/bin/python -I -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
        --require-hashes --only-binary :all: -r setup/uv.txt &&
      $uv --version
  } >"$TMPDIR/uv.log" 2>&1 && return 0
  rm -rf .venv-uv
  uv=
  return 1
}

[ -z "$linked" ] || python=$linked/bin/python
if [ -z "$python" ]; then
  if [ -z "$uv" ]; then
    found=${found# }
    echo "no Python 3.11 to 3.13 (${found:-no python3 found,}" |
      sed 's/,$/): installing uv into .venv-uv to download one/'
    bootstrap_uv || fail "no Python 3.11 to 3.13, and uv could not be installed to download one;" \
      "try: $(how_to_get_python)"
  fi
  python=$uv_python
elif [ -z "$uv" ] && ! bootstrap_uv; then
  without_uv "$(last_reason "$TMPDIR/uv.log")"
fi
[ -z "$uv" ] || pass_pip_settings

# --- Install --------------------------------------------------------------------------------------
[ ! -L $ENV ] || rm -f $ENV
if [ -n "$linked" ]; then
  rm -rf $ENV # of an older lock
  ln -s "$linked" $ENV || exit 2
elif [ "$ready_lock" != "$lock" ] || [ ! -d $ENV ]; then
  rm -rf $ENV # incomplete, moved, or of an older lock
  if [ -n "$uv" ] && ! "$uv" venv --quiet --seed --no-project --python "$python" $ENV \
    >"$TMPDIR/uv.log" 2>&1; then
    rm -rf $ENV
    why=$(last_reason "$TMPDIR/uv.log")
    [ "$python" != "$uv_python" ] ||
      fail "uv could not use Python $python ($why); try: $(how_to_get_python)"
    without_uv "$why"
  fi
  [ -n "$uv" ] || "$python" -I -m venv $ENV || fail "$python -m venv failed"
fi
rm -f $ENV/.ready
if [ -z "$uv" ]; then
  elsewhere=$($PY -I -m pip config list 2>/dev/null | grep -E "^[^.]*\.(target|prefix|root)=")
  [ -z "$elsewhere" ] || fail "pip is configured to install elsewhere ($elsewhere);" \
    "remove that: pip config unset ${elsewhere%%=*}"
fi
extras="$ready_extras$missing"
extras=${extras# }
write_pins $extras
if [ -n "$glibc" ] && ! at_least "$glibc" 2.35; then
  echo "MLX needs glibc 2.35; this system has $glibc, so MLX is not installed"
fi
torch=
if [ -n "$torch_cpu" ]; then
  torch=$(sed -n 's/^\(torch\(vision\)\{0,1\}==[^ ]*\).*/\1/p' requirements.txt)
fi

install() {
  if [ -n "$uv" ]; then
    "$uv" pip install --python $PY "$@"
  else
    $PY -I -m pip install --disable-pip-version-check --no-input --no-user "$@"
  fi
}

packages() {
  install --no-deps --require-hashes --only-binary :all: -r "$pins" &&
    { [ -z "$torch" ] || "$uv" pip install --python $PY --no-deps --torch-backend cpu $torch; } &&
    install --no-deps --no-build-isolation --editable .
}

log=$ENV/install.log
version=$("$PY" -P -c 'import platform; print("Python " + platform.python_version())')
if [ -n "$linked" ]; then
  echo "using the environment $linked ($version): adding pomology${extras:+, and packages of $extras}"
  other=${ready_lock% * * *} # the folder that used this environment before
  if [ -n "$other" ] && [ "$other" != "$here" ] && [ -d "$other" ]; then
    echo "its program pomology was that of $other, and is now that of $here"
  fi
else
  installer=$([ -n "$uv" ] && echo uv || echo pip)
  echo "installing into $ENV with $installer: $SIZE; $version"
fi

# Install all packages, and show the progress: a terminal has one line that changes each second, a
# file gets a line every ten seconds.
install_packages() {
  packages >$log 2>&1 &
  job=$!
  trap 'kill $job 2>/dev/null; rm -rf "$TMPDIR"; exit 130' INT TERM
  elapsed=0
  while kill -0 $job 2>/dev/null; do
    sleep 1
    elapsed=$((elapsed + 1))
    written=$(awk "BEGIN { gb = $free_before - $(free_gb); print (gb > 0 ? gb : 0) }")
    progress="  $elapsed s, $written GB written: $(tail -n 1 $log | sed 's/^ *//')"
    if [ -t 1 ]; then
      printf '\r%-78.78s' "$progress"
    elif [ $((elapsed % 10)) = 0 ]; then
      printf '%.100s\n' "$progress"
    fi
  done
  [ ! -t 1 ] || printf '\r%78s\r' ''
  wait $job
}

if ! install_packages; then
  [ -n "$uv" ] || fail "installation failed ($(last_reason $log)); see $log"
  without_uv "$(last_reason $log)"
  install_packages || fail "installation failed ($(last_reason $log)); see $log"
fi

# --- Check the installed versions -----------------------------------------------------------------
said=$({ "$PY" setup/installed.py "$pins" && "$PY" -P -c 'import pomology'; } 2>&1) ||
  fail "installed packages differ from the lock ($(printf '%s\n' "$said" | tail -n 1));" \
    "check 'pip config list' and $log"
rm -rf "$TMPDIR"
printf '%s\n%s\n%s\n' "$lock" "$project" "$extras" >$ENV/.ready
if [ "$system" = Darwin ] && [ "$($PY -P -c 'import sys; print(sys.version_info[1])')" = 13 ]; then
  echo "TensorFlow has no Metal plug-in for Python 3.13 and runs on the CPU; try PYTHON=python3.12"
fi
