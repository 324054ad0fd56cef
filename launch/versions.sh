#!/usr/bin/env bash
# Does it work with the oldest packages that pyproject.toml allows, and with the newest, on every
# Python that it names? Once per release: an environment each, and a small set of tests in it, which
# builds shards, trains, resumes, saves, loads, embeds and reads tables back.
#   bash launch/versions.sh [FOLDER]      (default build/versions; 1.3 GB for each environment)
# It needs uv (pip install uv), which brings the interpreters that are not there. ONLY="3.12 highest"
# takes one of the environments.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/versions}
export JAX_PLATFORMS=cpu PYTHONPATH=$PWD
tests=(
  tests/ecg/test_preprocess.py
  tests/data/test_packing.py
  tests/dataset/test_shards.py
  tests/runs/test_checkpoint.py
  tests/embed/test_embed_model.py
  tests/embed/test_service.py
  tests/embed/test_table.py
)
failed=0
for pair in "3.11 lowest-direct" "3.11 highest" "3.12 highest" "3.13 highest"; do
  [[ -z "${ONLY:-}" || "$ONLY" == "$pair" ]] || continue
  read -r version resolution <<< "$pair"
  place="$folder/$version-$resolution"
  echo "== Python $version, packages: $resolution"
  [[ -x "$place/bin/python" ]] || uv venv --quiet --python "$version" "$place"
  uv pip install --quiet --python "$place/bin/python" --resolution "$resolution" \
    --editable . "pytest>=8.4" "pytest-timeout>=2.3" "pandas>=2.2"
  uv pip list --quiet --python "$place/bin/python" --format freeze |
    grep -E '^(jax|flax|orbax-checkpoint|grain|numpy|scipy|scikit-learn|pyarrow|wfdb)==' |
    paste -sd ' '
  "$place/bin/python" -m pytest -q "${tests[@]}" || failed=1
done
exit "$failed"
