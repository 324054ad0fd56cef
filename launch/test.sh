#!/usr/bin/env bash
# Installs what the tests need, then checks style and runs every test, in two processes. Arguments go to pytest.
# Tests on real recordings run when LVCG_REAL_DATA names a folder with ptbxl, ptb, cpsc2018, csn and ludb in it.
EXTRAS="test"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
bash launch/find_chromium.sh || true  # it says what is missing; only the tests of the HTML reports fail without it
"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@"
