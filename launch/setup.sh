# shellcheck shell=bash
# Sourced by the other scripts: a virtual environment in .venv with lvcg_jax and the extras named in $EXTRAS; its
# interpreter is $python. Needs Python >= 3.11 with pip and venv; PYTHON names another interpreter to make it with. Where
# there is none, uv fetches one, if it is there or can be installed.
# LVCG_PYTHON names an interpreter that has everything already (a container image, say): then nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${LVCG_PYTHON:-.venv/bin/python}
if [ -z "${LVCG_PYTHON:-}" ]; then
  new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }
  if [ ! -x "$python" ]; then
    found=""
    names=(python3 python3.13 python3.12 python3.11)
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for name in "${names[@]}"; do
      if new_enough "$name"; then found=$name && break; fi
    done
    if [ -z "$found" ] && [ -z "${PYTHON:-}" ]; then
      export PATH="$PATH:$HOME/.local/bin"
      command -v uv > /dev/null || python3 -m pip install --quiet --user uv || true
      found=$(uv python install --quiet 3.11 && uv python find 3.11) || found=""
    fi
    new_enough "${found:-false}" || {
      name=${PYTHON:-python3}
      echo "error: Python 3.11 or newer is needed, $("$name" --version) was found: set PYTHON=/path/to/python3.11" >&2
      exit 2
    }
    "$found" -m venv .venv
  fi
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
