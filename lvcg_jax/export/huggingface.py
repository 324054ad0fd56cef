"""A model as a folder in the layout of Hugging Face, which LVCG.load reads back bit for bit.

FOLDER/model.safetensors   weights and norm statistics, in half precision where it is exact
       config.json         config, preprocessing, checksums, facts of the training run
       README.md           the model card, with a YAML header
"""

import hashlib
import json
import math
from pathlib import Path

import jax

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.export.card import last_sections, preprocessing_words, run_words
from lvcg_jax.runs import weights

# facts of packaged weights that stay with them
KEPT = ("corpora", "lead_sizes_mv", "lead_sizes_covariance", "run", "card")


def export_folder(model: LVCG, checkpoint: str | Path, folder: Path) -> str:
    """Writes the folder; what was written, in words."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--out={folder} is not an empty folder: give a new one")
    data = weights.to_bytes(model.variables, weights.halve_exactly, format="np")
    facts = {
        "model_type": "lvcg",
        "library_name": "lvcg-jax",
        "format": weights.FORMAT,
        "name": model.checkpoint.rpartition("#")[0],
        "sha256": hashlib.sha256(data).hexdigest(),
        "checkpoint": model.checkpoint,
        "step": model.step,
        "parameters": sum(math.prod(x.shape) for x in jax.tree.leaves(model.variables["params"])),
        "parts": model.part_sizes,
        **{name: model.facts[name] for name in KEPT if name in model.facts},
        "preprocess": model.preprocess.to_dict(),
        "preprocess_hash": model.preprocess.hash(),
        "config": json.loads(model.config.to_json()),
    }
    facts.setdefault("card", run_words(facts, model.config, Path(checkpoint)))
    facts[weights.FACTS_HASH] = weights.facts_hash(json.loads(json.dumps(facts)))
    write_whole(folder / "model.safetensors", data)
    write_whole(folder / "config.json", json.dumps(facts, indent=1) + "\n")
    write_whole(folder / "README.md", readme(facts, checkpoint))
    size = f"{len(data) / 2**20:.1f} MiB"
    return f"{model.checkpoint}: {folder} (model.safetensors {size}, config.json, README.md)"


def readme(facts: dict, checkpoint: str | Path) -> str:
    """The model card, behind the header that the hub reads."""
    header = {
        "license": "mit",
        "library_name": facts["library_name"],
        "pipeline_tag": "feature-extraction",
        "tags": ["ecg", "electrocardiography", "vectorcardiography", "jax", "flax"],
    }
    # JSON is YAML
    lines = [f"{name}: {json.dumps(value)}" for name, value in header.items()]
    sections = [
        "\n".join(["---", *lines, "---"]),
        f"# LVCG weights `{facts['name']}`",
        f"ECG representations learned in the latent vectorcardiogram space, {facts['parameters']:,}"
        f" parameters, {sum(facts['parts'].values())} numbers per record. Weights"
        f" `{facts['checkpoint']}`.",
        """## How to use them

```python
from lvcg_jax import LVCG

model = LVCG.load("FOLDER")  # where this file lies
# signal [samples, leads] in mV; any leads, rate and length
e = model.embed(signal, fs=500, leads=["I", "II", "V2"])
e.mean  # one vector for the record
```""",
        *(f"## {title}\n\n{text}" for title, text in facts["card"].items()),
        *_scores(checkpoint),
        "## Preprocessing\n\n" + preprocessing_words(facts),
        *last_sections(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _scores(checkpoint: str | Path) -> list[str]:
    """The section of scores of the card of packaged weights."""
    if not weights.is_packaged(checkpoint):
        return []
    card = (weights.PACKAGED / f"{checkpoint}.md").read_text(encoding="utf-8")
    _, found, rest = card.partition("## Scores\n\n")
    return [f"## Scores\n\n{rest.partition(chr(10) + '## ')[0].strip()}"] if found else []
