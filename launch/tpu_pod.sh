#!/usr/bin/env bash
# Pre-training on a Cloud TPU pod slice: installs on every host, then starts the same command on all of them.
#
#   TPU=my-pod ZONE=us-central2-b bash launch/tpu_pod.sh --workdir=gs://bucket/runs/paper --config.data.dir=/data/shards
#
# The run directory may be on gs://, with the service account of the TPU VM; shards are read from a disk or a bucket
# that every host mounts at the same place (for example with Cloud Storage FUSE).
# A preempted slice saves on SIGTERM; the same command on the new slice continues from the last checkpoint.
# Status: checked with shellcheck; not yet run on hardware.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TPU:?name of the TPU VM}" "${ZONE:?its zone}"
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
on_all_hosts() { gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"; }
gcloud compute tpus tpu-vm scp "$archive" "$TPU:lvcg_jax.tar.gz" --zone="$ZONE" --worker=all
on_all_hosts "mkdir -p lvcg_jax && tar -xzf lvcg_jax.tar.gz -C lvcg_jax && cd lvcg_jax &&
  EXTRAS=tpu,gcs bash -c 'source launch/setup.sh'"
flags=$(printf ' %q' "$@")
on_all_hosts "cd lvcg_jax && JAX_PLATFORMS=tpu .venv/bin/python -m lvcg_jax.train --cluster \
  --config=${CONFIG:-configs/pretrain.py}$flags"
