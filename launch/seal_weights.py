"""Writes the checksums of packaged weights' descriptions again, after a field was added to one by
hand.

    python launch/seal_weights.py
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, run_command  # noqa: E402
from data_prep.base.files import write_whole  # noqa: E402
from lvcg_jax.runs import weights  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    Parser("seal_weights", __doc__, prog="python launch/seal_weights.py").parse_args(argv)
    for name in weights.names():
        path = weights.PACKAGED / f"{name}.json"
        facts = json.loads(path.read_text())
        facts[weights.FACTS_HASH] = weights.facts_hash(facts)
        write_whole(path, json.dumps(facts, indent=1) + "\n")
        weights.load(name)
        print(f"{path.name}: {facts[weights.FACTS_HASH]}")
    return 0


if __name__ == "__main__":
    run_command(main)
