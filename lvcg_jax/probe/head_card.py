"""The card of a head: what it answers, how well, for whom, and what it is not."""

from pathlib import Path

from lvcg_jax.probe.heads import FEWEST
from lvcg_jax.runs.heads import UNLIKE, Head, folder
from lvcg_jax.text.tables import markdown_table, percent, points

LIMITS = """\
- Not a medical device, not validated clinically: not for diagnosis, not for decisions about a
  patient.
- It answers only for embeddings of the weights and the preprocessing named above; others are
  refused.
- Probabilities are calibrated for patients like those of its validation split. Where a class is
  rarer or more common they are off, even if the ranking is right.
- A record that is flagged as unlike the training records has an answer that nothing was measured
  for. A record that is not flagged may still be outside of what the head knows.
- Classes with few positives have wide intervals; read them before the score."""


def head_card(head: Head, path: Path, command: str) -> str:
    """Markdown of a head that is kept in a file, and the command that made it."""
    name = path.stem if path.parent.resolve() == folder().resolve() else path.name
    facts, cell = head.facts, head.facts["scores"]
    training, splits = facts["training"], facts["training"]["splits"]
    sizes = ", ".join(f"{s} {n['rows']:,} ({n['patients']:,} patients)" for s, n in splits.items())
    weights = facts["checkpoint"].partition("#")[0]
    kind, of_beats = "linear classifier", ""
    if head.attention is not None:
        kind, of_beats = "linear classifier with attention over beats", " and beat tokens"
    sections = [
        f"# Head `{name}`: task `{head.task}`",
        f"A {kind} of {len(head.classes)} classes on embeddings{of_beats} of the weights"
        f" `{facts['checkpoint']}`. **Not a medical device.**",
        f"""## How to use it

```bash
lvcg predict --head={name} --record=FILE
```

```python
from lvcg_jax import LVCG

model = LVCG.load("{weights}")
model.predict(signal, fs=500, leads=["I", "II", "V2"], head="{name}").probabilities
```""",
        f"## Data\n\n{facts.get('about') or 'Not said when it was made.'}\n\nRows: {sizes}.",
        f"## Training\n\nProtocol `{training['protocol']}`, setting {training['setting']}, all"
        f" training labels. Thresholds: {facts['chosen_by']['thresholds']}. Calibration:"
        f" {facts['chosen_by']['calibration']}. Preprocessing `{facts['preprocess_hash']}`. Leads"
        f" of the training records: {', '.join(facts['leads']) or 'not known'}.\n\n"
        f"```bash\n{command}\n```",
        "## Scores\n\n" + _scores(head),
        "## Calibration\n\n" + _calibration(cell["calibration"]),
        "## By group\n\n" + _groups(facts.get("groups", [])),
        "## Fewer leads\n\n" + _fewer(head),
        "## Records unlike the training records\n\nThe flag is set for a record whose embedding is"
        f" {facts['chosen_by']['unlike']}; so"
        f" {100 * (1 - UNLIKE):.0f}% of the training records carry it themselves.",
        f"## Limits\n\n{LIMITS}",
    ]
    notes = [f"- {note}" for note in facts["notes"]]
    return "\n\n".join([*sections, *(["## Notes\n\n" + "\n".join(notes)] if notes else [])]) + "\n"


def number_card(head: Head, path: Path, command: str) -> str:
    """Markdown of a head of a number."""
    facts, cell, constant = head.facts, head.facts["scores"], head.facts["constant"]
    splits = facts["training"]["splits"]
    sizes = ", ".join(f"{s} {n['rows']:,} ({n['patients']:,} patients)" for s, n in splits.items())
    sections = [
        f"# Head `{path.name}`: the number `{head.task}`",
        f"A linear layer on embeddings of the weights `{facts['checkpoint']}`. **Not a medical"
        " device.**",
        f"## Data\n\n{facts.get('about') or 'Not said when it was made.'}\n\nRows: {sizes}.",
        f"## Training\n\nRidge regression, strength {facts['training']['setting']}; calibration:"
        f" {facts['chosen_by']['calibration']}; interval: {facts['chosen_by']['interval']}"
        f" ({head.thresholds[0]:.4g}). Preprocessing `{facts['preprocess_hash']}`."
        f"\n\n```bash\n{command}\n```",
        f"## Scores\n\nTest split, with 95% intervals over patients: mean absolute error"
        f" {cell['mae']:.4g} [{cell['mae_low']:.4g}, {cell['mae_high']:.4g}] (median of the"
        f" training rows: {constant['mae']:.4g}), R2 {cell['r2']:.3f} [{cell['r2_low']:.3f},"
        f" {cell['r2_high']:.3f}].",
        "## Limits\n\nNot a medical device, not validated clinically. It answers only for"
        " embeddings of the weights and the preprocessing named above, for patients like those it"
        " learned from; far from the usual values it errs towards them.",
    ]
    return "\n\n".join(sections) + "\n"


def _scores(head: Head) -> str:
    cell = head.facts["scores"]
    macro = (
        f"Test split, x 100, with 95% intervals over patients: macro AUROC"
        f" {points(cell['macro_auroc'], cell['low'], cell['high'])}, macro AUPRC"
        f" {points(cell['macro_auprc'], cell['auprc_low'], cell['auprc_high'])}, macro F1"
        f" {points(cell['macro_f1'], cell['f1_low'], cell['f1_high'])}."
    )
    thresholds = dict(zip(head.classes, head.thresholds.tolist(), strict=True))
    rows = []
    for name in head.classes:
        entry = cell["per_class"].get(name)
        if entry is None:
            rows.append([name, "not scored", *["-"] * 7])
            continue
        rows.append(
            [
                name,
                f"{entry['train_positives'][0]} / {entry['test_positives']}",
                f"{100 * entry['prevalence']:.1f}",
                points(entry["auroc"], entry["low"], entry["high"]),
                points(entry["auprc"], entry["auprc_low"], entry["auprc_high"]),
                points(entry["f1"]),
                f"{entry['brier']:.4f}",
                f"{entry['ece']:.4f}",
                f"{thresholds[name]:.3f}",
            ]
        )
    columns = [
        "class", "positives: training / test", "prevalence (%)", "AUROC", "AUPRC", "F1", "Brier",
        "ECE", "threshold",
    ]  # fmt: skip
    return "\n".join([macro, "", *markdown_table(columns, rows)]).strip()


def _calibration(found: dict) -> str:
    words = (
        f"Brier score {found['brier']:.4f} (of the share of positives:"
        f" {found['brier_prevalence']:.4f}). Expected calibration error, all classes pooled, 15"
        f" bins of equal width: {found['ece']:.4f} (before calibration"
        f" {found['ece_uncalibrated']:.4f}). Reliability on the test split:"
    )
    rows = [
        [f"{b['probability']:.3f}", f"{b['share']:.3f}", f"{b['count']:,}"]
        for b in found["reliability"]
    ]
    columns = ["mean probability", "share of positives", "answers"]
    return "\n".join([words, "", *markdown_table(columns, rows)]).strip()


def _groups(groups: list[dict]) -> str:
    rows = [
        [
            f"{g['column']} {g['group']}".strip(),
            f"{g['records']:,} ({g['patients']:,})",
            points(g["macro_auroc"], g["low"], g["high"]),
            g["classes"],
            f"{g['brier']:.4f}",
            f"{g['ece']:.4f}",
            f"{100 * g['unlike']:.1f}",
        ]
        for g in groups
    ]
    columns = [
        "test records", "records (patients)", "macro AUROC", "of classes", "Brier", "ECE",
        "flagged as unlike (%)",
    ]  # fmt: skip
    words = (
        f"The macro AUROC of a row is over classes that {FEWEST} patients of the group have, so"
        " rows are of different classes."
    )
    unknown = "" if len(groups) > 1 else " Groups were not given when it was made."
    return "\n".join([words + unknown, "", *markdown_table(columns, rows)]).strip()


def _fewer(head: Head) -> str:
    """What fewer leads cost: of the head as it is, and of its parts for few leads."""
    lines, views = [], head.facts.get("views", [])
    if views:
        rows = [
            [
                ", ".join(v["leads"]),
                points(v["macro_auroc"]),
                f"{100 * (v['macro_auroc'] - v['all_leads']):+.1f}",
                f"{v['ece']:.4f}",
                percent(round(v["unlike"], 3)),
            ]
            for v in views
        ]
        columns = ["visible leads", "macro AUROC", "change", "ECE", "flagged as unlike"]
        lines += [
            "The layer for all leads as it is, on embeddings of the test records that show these"
            " leads only (beats are found with all leads):",
            "",
            *markdown_table(columns, rows),
        ]
    if head.few:
        full = head.facts["scores"]["macro_auroc"]
        rows = [
            [
                ", ".join(few.facts["leads"]),
                points(*(few.facts["scores"][name] for name in ("macro_auroc", "low", "high"))),
                f"{100 * (few.facts['scores']['macro_auroc'] - full):+.1f}",
                f"{few.facts['scores']['calibration']['ece']:.4f}",
            ]
            for few in head.few
        ]
        lines += [
            "Layers of their own, which learnt from embeddings of the training records that show"
            " these leads only (beats are found with all leads). A record is answered by the layer"
            " whose leads are most like those that it has, the limb leads that follow from others"
            " included:",
            "",
            *markdown_table(["leads", "macro AUROC", "change", "ECE"], rows),
        ]
    return "\n".join(lines).strip() or "Not measured."
