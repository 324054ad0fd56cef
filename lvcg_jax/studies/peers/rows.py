"""What is compared: the methods, what pages call them, and a row for each."""

from dataclasses import dataclass, field

from lvcg_jax.studies.kept import Features

OWN = "lvcg"
TITLES = {
    OWN: "LVCG", "simclr": "SimCLR", "byol": "BYOL", "barlow_twins": "Barlow Twins",
    "moco_v3": "MoCo v3", "simsiam": "SimSiam", "ts_tcc": "TS-TCC", "clocs": "CLOCS",
    "astcl": "ASTCL", "crt": "CRT", "st_mem": "ST-MEM", "heartlang": "HeartLang",
    "ecg_jepa": "ECG-JEPA",
}  # fmt: skip
FEW_LEADS = {"3 leads": ("I", "II", "V2"), "1 lead": ("I",)}


@dataclass
class Row:
    """A row of the tables: what it is, how its embeddings are made, and what became of it."""

    title: str
    kind: str  # 'method', 'control' or 'packaged'
    encoder: str = ""  # LVCG, ResNet or transformer
    method: str = ""
    steps: int = 0
    reason: str = ""  # why it has no scores
    facts: dict = field(default_factory=dict)
    full: dict[str, Features] = field(default_factory=dict)  # by data set, all leads
    few: dict[str, Features] = field(default_factory=dict)  # by set of leads
    moved: dict[str, list[Features]] = field(default_factory=dict)  # by kind of move

    def to_dict(self) -> dict:
        names = ("title", "kind", "encoder", "method", "steps", "reason", "facts")
        return {name: getattr(self, name) for name in names}
