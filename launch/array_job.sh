#!/usr/bin/env bash
# One job of a Slurm array does its share of a build or of an embedding, without a word to the others:
#   sbatch --array=1-32 --cpus-per-task=8 launch/array_job.sh build --corpus=mimic --raw=... --out=... --workers=8
#   sbatch --array=1-8 --gpus=1 launch/array_job.sh embed --data=... --out=/shared/embeddings
# Outside an array it runs the command whole: after a build in shares, this checks and finishes it.
# PYTHON names the interpreter (default: python).
# Status: run in the tests without Slurm, not yet on a cluster.
set -euo pipefail

command=${1:-}
case "$command" in
  build) share=shard ;;
  embed) share=part ;;
  *)
    echo "error: launch/array_job.sh takes build or embed, and its flags" >&2
    exit 2
    ;;
esac
shift
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
  set -- "$@" "--$share=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
fi
exec "${PYTHON:-python}" -m lvcg_jax "$command" "$@"
