#!/usr/bin/env bash
# One run of several processes on this machine, as on a cluster: each process has its own devices and reads its own part
# of every batch. The losses are those of a single process. If one dies, the others are stopped, and the same command
# continues from the last checkpoint.
#
#   PROCESSES=2 DEVICES=4 bash launch/local_multihost.sh --config=configs/pretrain.py:smoke --workdir=runs/two
#
# Status: run on CPU by tests/train/test_resume.py.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
processes=${PROCESSES:-2}
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=${DEVICES:-1}"
port=${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')}
pids=()
asked_to_stop=""
for ((k = 0; k < processes; k++)); do
  "$python" -m lvcg_jax.train --coordinator="localhost:$port" --processes="$processes" --process="$k" "$@" &
  pids+=($!)
done
trap 'asked_to_stop=yes; kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT

# Waits for each in turn of ending; a signal to this script interrupts the wait, not the saving.
status=0
running=$processes
while ((running > 0)); do
  code=0
  wait -n "${pids[@]}" || code=$?
  if [ -n "$asked_to_stop" ] && ((code > 128)); then
    asked_to_stop=""
    continue
  fi
  running=$((running - 1))
  if ((code != 0 && status == 0)); then
    status=$code
    kill -KILL "${pids[@]}" 2>/dev/null || true # the others would wait for it
  fi
done
exit "$status"
