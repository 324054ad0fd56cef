"""What the columns of a file are called: other spellings of the twelve leads, and names that the
user gives."""

import re
from collections.abc import Sequence

from data_prep.base.errors import InputError
from data_prep.base.words import list_some
from data_prep.ecg.leads import canonical, parse_leads

# 'ECG I', 'EKG Lead II', 'MDC_ECG_LEAD_AVR', 'MDC_ECG_ELEC_POTL_V1'
_PREFIX = re.compile(r"^(mdc_ecg_(lead|elec_potl)_|(ecg|ekg)[\s_:\-]*)", re.IGNORECASE)
# 'Lead I (Einthoven)', 'V1 [mV]'; 'V1 (derived)' is something else than V1
_REMARK = re.compile(
    r"[(\[]\s*(einthoven|goldberger|wilson|[mun\u00b5\u03bc]?v)\s*[)\]]\s*$", re.IGNORECASE
)
# Leads of Holter recorders, from electrodes on the trunk, and of Romance languages.
_SIMILAR = {"mli": "I", "mlii": "II", "mliii": "III"}
_SAME = {"di": "I", "dii": "II", "diii": "III"}


def spelled(name: str) -> str | None:
    """The spelling in LEADS of a name as devices write it ('ECG I', 'MDC_ECG_LEAD_AVR', 'Lead I
    (Einthoven)'), or None. 'MLII' is none of them: see Naming."""
    plain = _REMARK.sub("", _PREFIX.sub("", name.strip()))
    return canonical(plain) or _SAME.get(plain.strip().lower())


class Naming:
    """The names of one file's columns, and the leads that the user gave for them.

    `given` is a list of leads in the order of the columns, or of pairs 'CH1=I'. `notes` says which
    columns count as a lead that they are not quite.
    """

    def __init__(self, given: Sequence[str] | None, record_id: str):
        given = [str(word).strip() for word in given or ()]
        pairs = [word.rpartition("=") for word in given if "=" in word]
        if pairs and len(pairs) != len(given):
            raise InputError(
                f"record {record_id}: lead names {', '.join(given)[:80]}: write all of them as"
                " NAME=LEAD, or all as leads in the order of the columns"
            )
        self.by_place = None if pairs else given or None
        self.by_name = {name.strip().lower(): parse_leads(lead)[0] for name, _, lead in pairs}
        self.record_id, self.notes = record_id, []

    def rename(self, names: list[str]) -> list[str]:
        """The columns' names, with those of the twelve leads in a spelling that `canonical` knows.

        A modified limb lead stands in for the lead it resembles if the file does not have that.
        Leads that are given in order count only where the file names no lead itself.
        """
        lower = [name.strip().lower() for name in names]
        given = [self.by_name.get(name) for name in lower]
        renamed = [lead or self._spell(name) for lead, name in zip(given, names, strict=True)]
        there = {canonical(name) for name in renamed} - {None}
        absent = [name for name in self.by_name if name not in lower]
        if absent and (any(given) or not there):
            raise InputError(
                f"record {self.record_id}: it has no column {absent[0][:40]!r} to rename"
                f" (found: {list_some(names, 16)})"
            )
        if absent:
            self.notes.append(f"it has no column {list_some(absent)}, and its leads are named")
        if not there and self.by_place and len(self.by_place) == len(names):
            there, renamed, self.by_place = set(self.by_place), self.by_place, None
        for place, name in enumerate(renamed):
            lead = _SIMILAR.get(re.sub(r"[\s_\-]+", "", name).lower())
            if lead and lead not in there:
                renamed[place] = lead
                there.add(lead)
                self.notes.append(
                    f"{name} is read as lead {lead}: a modified lead, with electrodes on the trunk"
                )
        return renamed

    def _spell(self, name: str) -> str:
        if name.strip().startswith("-") and canonical(name):
            self.notes.append(f"{name.strip()} is upside down and not used")
            return f"inverted {canonical(name)}"
        return name if canonical(name) else spelled(name) or name
