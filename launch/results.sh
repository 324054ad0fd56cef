#!/usr/bin/env bash
# The whole results page of a run: probes with controls, moved electrodes and fewer leads on the
# first data set, leads derived from leads on every one. Embeddings that are there already are used
# again.
#
#   bash launch/results.sh docs/results.md runs/ptbxl_cpu data/ptbxl data/ptb data/cpsc2018
#
# All shards are prepared as the run wants them. The first data set is scored on its test split, the
# others, which the model never saw, on all records. ALSO=runs/other puts that run into the tables
# of derived leads; its own shards are then data/ptbxl-other and so on.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
page=$1 run=$2 first=$3
shift 2
figures=$(dirname "$page")/figures
lvcg=("$python" -m lvcg_jax)
"${lvcg[@]}" results --checkpoint="$run" --data="$first" --out="$page"
split="test"
for data in "$@"; do
  flags=(--checkpoint="$run" --data="$data" --split="$split" "--visible=II,V2,V5" "--k=3,5")
  [ -z "${ALSO:-}" ] || flags+=(--also="$ALSO:$data-$(basename "$ALSO")")
  "${lvcg[@]}" reconstruct "${flags[@]}" --out="$run/leads-$(basename "$data")" --page="$page"
  split="all"
done
embeddings=""
for file in "$run"/eval/trained-*.npz; do
  if [ "$file" -nt "$embeddings" ]; then embeddings=$file; fi
done
flags=(--checkpoint="$run" --data="$first" --limit=800 --embeddings="$embeddings")
"${lvcg[@]}" robustness "${flags[@]}" --out="$figures/robustness" --page="$page"
mv "$figures"/robustness/{robustness.json,table.md} "$run"/  # only its pictures belong to the page
