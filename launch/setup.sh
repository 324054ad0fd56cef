# shellcheck shell=bash
# Sourced by the other scripts: a virtual environment in .venv with lvcg_jax and the extras named in $EXTRAS; its
# interpreter is $python. Needs Python >= 3.11 with pip and venv; PYTHON names another interpreter to make it with.
# LVCG_PYTHON names an interpreter that has everything already (a container image, say): then nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${LVCG_PYTHON:-.venv/bin/python}
if [ -z "${LVCG_PYTHON:-}" ]; then
  PYTHON=${PYTHON:-python3}
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: Python 3.11 or newer is needed, $("$PYTHON" --version) was found: set PYTHON=/path/to/python3.11" >&2
    exit 2
  }
  [ -x "$python" ] || "$PYTHON" -m venv .venv
  stamp=.venv/installed-${EXTRAS:-none}
  if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "installing lvcg_jax into .venv (about a minute)"
    "$python" -m pip install --quiet --disable-pip-version-check --editable ".${EXTRAS:+[$EXTRAS]}"
    touch "$stamp"
  fi
fi
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.jax_cache}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# Large arrays on huge pages, where the C library can: some percent off a CPU training step.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
