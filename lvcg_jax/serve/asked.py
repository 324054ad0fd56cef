"""What a client may say beside the file."""

from dataclasses import asdict, dataclass, fields

from data_prep.base.errors import InputError
from data_prep.ecg.leads import parse_leads
from data_prep.formats.any_file import read_rate

ANSWERS = ("json", "report")


@dataclass(frozen=True)
class Asked:
    """The answer that is wanted, and the flags of `lvcg report` of the same names."""

    answer: str = ANSWERS[0]
    leads: str | None = None
    rate: float | None = None
    unit: str | None = None
    lead_names: str | None = None

    @classmethod
    def from_fields(cls, given: dict[str, str]) -> "Asked":
        """From the fields of a request; empty ones count as not given."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise InputError(f"unknown field '{name[:40]}': there are file, {', '.join(names)}")
        kept: dict = {name: value.strip() for name, value in given.items() if value.strip()}
        if kept.get("answer", ANSWERS[0]) not in ANSWERS:
            raise InputError(f"answer={kept['answer'][:40]}: choose {' or '.join(ANSWERS)}")
        if "rate" in kept:
            kept["rate"] = read_rate(kept["rate"], "upload")
        if "leads" in kept:
            parse_leads(kept["leads"])
        return cls(**kept)

    def command(self, name: str) -> str:
        """The command that makes the same report of a file of this name."""
        flags = {"record": name} | {k: v for k, v in asdict(self).items() if k != "answer"}
        return " ".join(["lvcg report", *(f"--{k}={v}" for k, v in flags.items() if v is not None)])
