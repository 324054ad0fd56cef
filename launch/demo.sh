#!/usr/bin/env bash
# Everything once, on a laptop: install, synthetic ECG, pre-training, embeddings, probe with controls, pictures.
# Under ten minutes on two cores. Flags go to launch/demo.py (--help lists them).
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$python" launch/demo.py "$@"
