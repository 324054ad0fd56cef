#!/usr/bin/env bash
# All results of a run, each on a page of its own: probes with controls (docs/results-NAME.md), leads derived from leads
# on every data set (docs/results-NAME-leads.md), moved electrodes and fewer leads (docs/results-NAME-robustness.md).
# Embeddings that were computed before are used again.
#
#   bash launch/results.sh docs/results-paper.md runs/ptbxl_cpu data/ptbxl data/ptb data/cpsc2018
#
# All shards are prepared as the run wants them. The first data set is scored on its test split; the others, which the
# model never saw, on all records. ALSO=runs/other puts that run into the tables of derived leads; its own shards are
# then data/ptbxl-other and so on.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
pages=${1%.md} run=$2 first=$3
shift 2
figures=$(dirname "$pages")/figures
"$python" -m lvcg_jax results --checkpoint="$run" --data="$first" --out="$pages.md"
split="test"
for data in "$@"; do
  flags=(--checkpoint="$run" --data="$data" --split="$split" "--visible=II,V2,V5" "--k=3,5")
  [ -z "${ALSO:-}" ] || flags+=(--also="$ALSO:$data-$(basename "$ALSO")")
  "$python" -m lvcg_jax reconstruct "${flags[@]}" --out="$run/leads-$(basename "$data")" --page="$pages-leads.md"
  split="all"
done
embeddings=""
for file in "$run"/eval/trained-*.npz; do
  if [ "$file" -nt "$embeddings" ]; then embeddings=$file; fi
done
flags=(--checkpoint="$run" --data="$first" --limit=800 --embeddings="$embeddings")
"$python" -m lvcg_jax robustness "${flags[@]}" --out="$figures/robustness" --page="$pages-robustness.md"
mv "$figures"/robustness/{robustness.json,table.md} "$run"/  # only its pictures belong to the page
