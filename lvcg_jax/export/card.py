"""Model cards of exported models and of packaged weights: a call that works, the preprocessing in
words, data, training, intended use, limits."""

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from lvcg_jax.config.folders import times
from lvcg_jax.runs.history import lowest_validation, noted_data, trained_sets
from lvcg_jax.text.tables import markdown_table


def model_card(facts: dict, words: dict[str, str]) -> str:
    """Markdown from the facts of export.describe and the words of run_words."""
    total = sum(facts["parts"].values())
    parts = ", ".join(f"{name} {size}" for name, size in facts["parts"].items())
    onnx = facts["file"].endswith(".onnx")
    kind = (
        "The file is an ONNX model of one record at a time."
        if onnx
        else "The file is a StableHLO program with its weights,"
        f" for {', '.join(facts['platforms'])} and any number of records at once."
    )
    sections = [
        f"# ECG embedding model {facts['checkpoint']}",
        f"`{facts['file']}` turns the beats of an ECG into {total} numbers a record ({parts}):"
        " LVCG, representations learned in the latent vectorcardiogram space,"
        f" {facts['parameters']:,} parameters. {kind}",
        "## How to call it\n\n" + (onnx_call(facts) if onnx else example_call(facts)),
        "## Preprocessing\n\n" + preprocessing_words(facts),
        *(f"## {title}\n\n{text}" for title, text in words.items()),
        *last_sections(facts),
    ]
    return "\n\n".join(sections) + "\n"


def weights_card(facts: dict, scores: str, half: str) -> str:
    """Markdown of packaged weights, from NAME.json and words on scores and on half precision."""
    name = facts["name"]
    sections = [
        f"# LVCG weights `{name}`",
        f"ECG representations learned in the latent vectorcardiogram space, {facts['parameters']:,}"
        f" parameters, from checkpoint {facts['checkpoint']}. {half}",
        f"SHA-256 of `{name}.safetensors`, compared whenever the weights are loaded:"
        f" `{facts['sha256']}`.",
        f"""## How to use them

```python
from lvcg_jax import LVCG

model = LVCG.load("{name}")
# signal [samples, leads] in mV; any leads, rate and length
e = model.embed(signal, fs=500, leads=["I", "II", "V2"])
e.mean  # one vector for the record
```""",
        *(f"## {title}\n\n{text}" for title, text in facts["card"].items()),
        f"## Scores\n\n{scores}",
        "## Preprocessing\n\n" + preprocessing_words(facts),
        *last_sections(facts),
    ]
    return "\n\n".join(sections) + "\n"


def run_words(facts: dict, config: ConfigDict, run: Path) -> dict[str, str]:
    """Data and training, from the run's config and what the run directory still knows."""
    return {"Data": data_words(config, run), "Training": training_words(facts, config, run)}


def last_sections(facts: dict) -> list[str]:
    """How every card ends."""
    return [
        f"## Intended use\n\n{INTENDED_USE}",
        "## Limits\n\n" + LIMITS.format(max_beats=facts["preprocess"]["max_beats"]).strip(),
        f"## Licence\n\n{LICENCE}",
    ]


# Name, licence and source of the corpora, as their own pages state them.
LICENCES = {
    "ptbxl": ("PTB-XL 1.0.3", "CC BY 4.0", "Wagner et al., Scientific Data 7:154, 2020"),
    "cpsc2018": (
        "CPSC 2018",
        "CC BY 4.0",
        "Liu et al., J. Med. Imaging Health Inform. 8:1368, 2018",
    ),
    "csn": (
        "Chapman-Shaoxing-Ningbo 1.0.0",
        "CC BY 4.0",
        "Zheng et al., Scientific Data 7:48, 2020, and PhysioNet 2022",
    ),
    "mimic": ("MIMIC-IV-ECG 1.0", "ODbL 1.0", "Gow et al., PhysioNet 2023"),
    "ptb": (
        "PTB Diagnostic 1.0.0",
        "ODC-By 1.0",
        "Bousseljot et al., Biomed. Tech. 40 (S1):317, 1995",
    ),
    "ludb": ("LUDB 1.0.1", "ODC-By 1.0", "Kalyakulina et al., IEEE Access 8:186181, 2020"),
    "synthetic": (
        "synthetic ECGs of this program",
        "none needed",
        "made up, not recorded from people",
    ),
}


def licence_words(corpora: Sequence[str]) -> str:
    """A table of the corpora with their licences and whom to name."""
    table = markdown_table(["data", "licence", "source"], [LICENCES[name] for name in corpora])
    return "\n".join(
        ["Licences of the data; the weights were derived from it by training:", "", *table]
    ).strip()


INTENDED_USE = (
    "Features of ECG records for research: linear probes, search, clustering, as input of other"
    " models, with any subset of the twelve leads."
)
LICENCE = (
    "The program that made this model is under the MIT licence. The weights are derived from the"
    " data named above, whose own terms hold as well."
)
LIMITS = """\
- Not a medical device, not validated clinically: not for diagnosis, not for decisions about a
  patient.
- An embedding means something only after the preprocessing above, done exactly so; nothing in the
  file can check that.
- It describes records like those of its training data; other devices, ages or conditions may fare
  worse, unnoticed.
- Leads that do not span three dimensions (one or two leads, limb leads only) leave a part of the
  heart's vector unseen.
- Beats are cut at R peaks: where these are not found (ventricular fibrillation, strong noise), the
  embedding means nothing.
- At most the first {max_beats} intervals of a window stay apart; the rest is merged into the last.
"""


def example_call(facts: dict) -> str:
    """A call from Python that works as it stands, given `signal_mv` [samples, leads], `rate` and
    `leads`."""
    stem, n = facts["file"].removesuffix(".stablehlo"), facts["inputs"]["beats"]["shape"][1]
    total = sum(facts["parts"].values())
    return f'''```python
import json
from pathlib import Path
import numpy as np
from jax import export
from data_prep.ecg.preprocess import Preprocess  # of lvcg-jax; or your own code that does the same

facts = json.loads(Path("{stem}.json").read_text())
embed = export.deserialize(Path("{stem}.stablehlo").read_bytes()).call
windows = Preprocess.from_dict(facts["preprocess"]).for_use().prepare(signal_mv, rate, leads)
fill = lambda x: np.pad(x, [(0, {n} - len(x))] + [(0, 0)] * (x.ndim - 1))
arrays = [np.stack([fill(getattr(w, k)) for w in windows]) for k in ("beats", "length", "complete")]
counts = np.array([len(w.length) for w in windows], np.int32)
masks = np.array([w.lead_mask for w in windows], np.int32)
parts = embed(*arrays, counts, masks, np.stack([w.scale for w in windows]).astype(np.float32))
embedding = np.concatenate([parts[name] for name in facts["parts"]], axis=-1)  # [windows, {total}]
```

Inputs, in this order, for b records of at most {n} beats (unused slots may hold anything):

{_arrays_words(facts)}'''


def onnx_call(facts: dict) -> str:
    """The same for an ONNX model."""
    total, n = sum(facts["parts"].values()), facts["inputs"]["beats"]["shape"][1]
    return f'''```python
import numpy as np
from lvcg_jax.export.onnx_model import OnnxModel  # needs numpy, scipy and onnxruntime, no JAX

model = OnnxModel("{facts["file"]}")
parts = model.embed(signal_mv, rate, leads)
embedding = np.concatenate(list(parts.values()), axis=-1)  # [windows, {total}]
```

Inputs, for one record of at most {n} beats (unused slots may hold any finite number):

{_arrays_words(facts)}'''


def _arrays_words(facts: dict) -> str:
    return f"""| argument | shape | type |
|---|---|---|
{_table_of(facts["inputs"])}

Bit i of `lead_mask` says that lead i may be seen, in the order {", ".join(facts["leads"])};
`scale` is the mV of one normalised unit of each lead, which some models read. The call gives a
dict:

| part | shape | type |
|---|---|---|
{_table_of(facts["outputs"])}"""


def _table_of(arrays: dict) -> str:
    return "\n".join(
        f"| `{name}` | [{', '.join(str(size) for size in array['shape'])}] | {array['dtype']} |"
        for name, array in arrays.items()
    )


def preprocessing_words(facts: dict) -> str:
    """Every step with its numbers."""
    p = facts["preprocess"]
    scale = {
        "lead": "each lead is z-scored",
        "record": "all leads are centred and divided by one common scale",
    }
    height = (
        f"{p['peak_height']:g} standard deviations (tried again with {p['peak_retry_height']:g} if"
        " under three)"
    )
    peaks = {
        "lead_ii": f"R peaks on lead II: higher than {height}, at least {p['peak_distance']:g} s"
        " apart; without a usable lead II, from all leads",
        "vcg": "R peaks from all its leads: peaks of the speed (5-25 Hz) of the heart vector"
        f" lifted with the {p['geometry']} geometry, at least {p['peak_distance']:g} s apart",
    }
    recover = (
        "; limb leads that follow exactly from others are recovered"
        if p["recover_limb_leads"]
        else ""
    )
    steps = [
        "Leads by name, in mV; absent ones are missing, never filled with zeros.",
        f"Gaps up to {p['max_gap_seconds']:g} s (and samples over {p['max_mv']:g} mV from their"
        " lead's median) are interpolated; a lead with a longer gap is missing, as is one that"
        f" spans less than {p['flat_mv']:g} mV, stands still for {p['flat_share']:.0%} of the"
        f" window or has {p['rail_share']:.0%} of its samples at a rail.",
        f"Anti-aliased resampling to {p['rate']:g} Hz, zero-phase Butterworth band-pass"
        f" {p['band_low']:g}-{p['band_high']:g} Hz of order {p['filter_order']}, windows of"
        f" {p['seconds']:g} s{recover}; {scale[p['normalise']]}.",
        f"{peaks[p['peaks']]}; peaks nearer than {p['rr_min']:g} s merge.",
        "Intervals from peak to peak and the two partial ones at the ends tile the window, at most"
        f" {p['max_beats']}; each is linearly resampled to {p['beat_samples']} samples.",
    ]
    numbered = "\n".join(f"{k}. {step}" for k, step in enumerate(steps, start=1))
    return f"{numbered}\n\nHash of all fields: `{facts['preprocess_hash']}`."


def data_words(config: ConfigDict, run: Path) -> str:
    """What the model was trained on, if the data sets are still where the run found them."""
    try:
        sets = trained_sets(config, run)
    except InputError:
        noted = noted_data(run)
        return "The data set of the training run is not at hand any more" + (
            f"; it was {noted}." if noted else "; the checkpoint does not hold its description."
        )
    words = [_set_words(metadata, weight) for metadata, weight in sets]
    if [weight for _, weight in sets] == [1]:
        return words[0]
    return (
        f"A mixture of {len(sets)} data sets. An epoch shows the training records of each as often"
        " as the factor behind its name says (x 0.5: half of them, drawn anew), once without a"
        " factor. Validation during training was on the first."
        "\n\n" + "\n\n".join(words)
    )


def _set_words(metadata: dict, weight: float) -> str:
    """One data set: its corpus, weight and splits."""
    splits = [
        f"{name}: {split['examples']:,} windows of {split['patients']:,} patients,"
        f" {split['beats']:,} intervals"
        for name, split in metadata["splits"].items()
    ]
    lines = "\n".join(f"- {line}" for line in splits)
    made_up = (
        " (made up by a program, not recorded from people)"
        if metadata["corpus"] == "synthetic"
        else ""
    )
    return (
        f"Corpus `{metadata['corpus']}`{times(weight)}{made_up}; splits by patient"
        f" ({metadata['split_rule']}):\n\n{lines}"
    )


def training_words(facts: dict, config: ConfigDict, run: Path) -> str:
    """The objective, the sizes, the optimiser, and how far this checkpoint got."""
    g, m, loss, o = config.geometry, config.model, config.loss, config.optim
    matrix = g.matrix if isinstance(g.matrix, str) else f"own {len(g.matrix[0])}-mode"
    rows = {
        "views": f"{g.num_visible} visible leads a record and step, {matrix} geometry, eps"
        f" {g.eps:g}" + (", learnable" if g.learnable else ""),
        "loss": f"hidden leads {loss.lambda_ecg:g}, heart vector {loss.lambda_vcg:g}, dynamics"
        f" {loss.lambda_temp:g}, rhythm {loss.lambda_rhythm:g}, anchor beat {loss.lambda_base:g};"
        f" {loss.reduction} over elements",
        "encoder": f"stem {m.stem_features}, stages {list(m.stage_features)}, blocks"
        f" {list(m.stage_blocks)}, kernel {m.encoder_width}, {m.norm} norm, dropout {m.dropout:g}",
        "temporal module": {
            "complete": "starts at the first complete beat",
            "first": "starts at the first slot",
            "each": "starts at the first complete beat, for the embedding at each of them",
        }[m.dynamics_start],
        "optimiser": f"AdamW, learning rate {o.learning_rate:g} ({o.schedule}, warm-up"
        f" {o.warmup_steps}), weight decay {o.weight_decay:g}, clip {o.clip_norm:g}",
        "batch": f"{config.data.batch_size} records",
        "steps": f"{config.train.steps:,} planned, checkpoint {facts['checkpoint']}"
        + (
            f"; started with the weights of {Path(config.train.start_from).name}"
            if config.train.start_from
            else ""
        ),
        "leads' sizes": "a part of the structure: a wrong unit or gain moves the embedding"
        if m.lead_sizes
        else "not read",
        "shape of beats in mV": f"{sum(m.beat_modes)} numbers of the structure"
        if any(m.beat_modes)
        else "not read",
        "patterns": f"{m.patterns} numbers of the structure" if m.patterns else "not read",
        "levels of the median beat": f"{m.beat_levels} numbers of the structure"
        if m.beat_levels
        else "not read",
        "record token": f"{m.record_token} numbers of the structure, trained by itself"
        " (configs/record_token.py)"
        if m.record_token
        else "not read",
        "compute type": m.dtype,
        "seed": config.seed,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    text = (
        "Self-supervised: hidden leads are predicted from visible ones, no label is used."
        f"\n\n| | |\n|---|---|\n{table}"
    )
    if best := lowest_validation(run):
        text += (
            f"\n\nBest validation at step {best['step']:,}: loss {best['loss']:.4g}, R2 of hidden"
            f" leads {best['ecg_r2']:.3f}, of the heart vector {best['vcg_r2']:.3f}."
        )
    return text
