"""A corpus under pseudonyms: other ids, and nothing else of what its files say about a person."""

import dataclasses
from collections.abc import Callable

from data_prep.base.errors import InputError, NotSaid
from data_prep.base.lottery import SPLIT_RULE, split_of_patient
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.corpora.corpus import Corpus
from data_prep.ecg.record import RecordRef, Waveform


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads a signal; what else the file says (age, names, comments) is left out, and so is the
    text of an error, which may quote it."""

    read: Callable[[RecordRef], Waveform]

    def __call__(self, ref: RecordRef) -> Waveform:
        try:
            wave = self.read(ref)
        except Exception as error:
            kind = (
                "it does not say rate, unit or leads" if isinstance(error, NotSaid) else "damaged"
            )
            raise InputError(
                f"the file cannot be used ({kind}); the same command without --pseudonyms says more"
            ) from None
        return dataclasses.replace(wave, info={}, notes=[])


def pseudonymise(corpus: Corpus, names: Pseudonyms | None) -> Corpus:
    """The corpus with pseudonyms in the place of ids; as it is without `names`.

    Patients of a labelled corpus stay in the splits that they have without pseudonyms.
    """
    if names is None:
        return corpus

    def renamed(ref: RecordRef) -> RecordRef:
        patient = ref.patient_id or ref.record_id
        return dataclasses.replace(
            ref,
            record_id=names.of(ref.record_id),
            patient_id=names.of(patient),
            split=ref.split or (split_of_patient(patient) if corpus.tasks else None),
        )

    drawn = corpus.tasks and not any(ref.split for ref in corpus.refs)
    return dataclasses.replace(
        corpus,
        refs=[renamed(ref) for ref in corpus.refs],
        split_rule=SPLIT_RULE if drawn else corpus.split_rule,
        read=_Reader(corpus.read),
        duplicates={names.of(a): names.of(b) for a, b in corpus.duplicates.items()},
        notes=[],  # they name records
    )
