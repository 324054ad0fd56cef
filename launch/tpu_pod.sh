#!/usr/bin/env bash
# Pre-training on a Cloud TPU pod slice: installs on every host, then starts the same command on all of them and follows
# the log of one.
#
#   TPU=my-pod ZONE=us-central2-b bash launch/tpu_pod.sh --workdir=gs://bucket/runs/paper --config.data.dir=/data/shards
#
# The run goes on when this shell ends: the log is lvcg_jax/train.log on each host. PYTHON names an interpreter of the
# hosts; without it, setup.sh finds or installs one, as images come with Python 3.10.
# The run directory may be on gs://, with the service account of the TPU VM; so may shards, with a folder of each host to
# copy them to (--config.data.cache=/data/cache). Else they are read from a disk or a bucket that every host mounts at the
# same place (for example with Cloud Storage FUSE).
# A preempted slice saves on SIGTERM; the same command on the new slice continues from the last checkpoint.
# Status: run against a stand-in for gcloud by tests/whole/test_launch.py; not yet run on hardware.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TPU:?name of the TPU VM}" "${ZONE:?its zone}"
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
on_hosts() { gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker="$1" --command="$2"; }
gcloud compute tpus tpu-vm scp "$archive" "$TPU:lvcg_jax.tar.gz" --zone="$ZONE" --worker=all
on_hosts all "mkdir -p lvcg_jax && tar -xzf lvcg_jax.tar.gz -C lvcg_jax && cd lvcg_jax &&
  PYTHON=$(printf %q "${PYTHON:-}") EXTRAS=tpu,gcs bash -c 'source launch/setup.sh'"
flags=$(printf ' %q' "$@")
on_hosts all "cd lvcg_jax && { JAX_PLATFORMS=tpu setsid nohup .venv/bin/python -m lvcg_jax.train --cluster \
  --config=${CONFIG:-configs/pretrain.py:accelerator}$flags > train.log 2>&1 < /dev/null & echo \$! > train.pid; }"
ssh="gcloud compute tpus tpu-vm ssh $TPU --zone=$ZONE"
echo "started. To stop, saving first: $ssh --worker=all --command='kill -TERM \$(cat lvcg_jax/train.pid)'"
on_hosts 0 "tail --pid=\$(cat lvcg_jax/train.pid) -n +1 -F lvcg_jax/train.log"
