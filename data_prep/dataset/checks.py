"""The checks behind `lvcg verify`: a data set is what its dataset.json says, and nothing leaks
between its splits."""

import array
import collections
import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep.base.csv_cells import original
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.base.words import first_line
from data_prep.dataset import shards
from data_prep.dataset.finish import LEDGER_COLUMNS
from data_prep.dataset.shards import ShardSet
from data_prep.ecg import quality
from data_prep.ecg.leads import mask_leads
from data_prep.ecg.preprocess import Preprocess

SAMPLE = 8  # examples per split that Grain and tfds read as well
BATCH = 64
SHOWN = 3  # names in a message
WINDOW = 1 << 32


class Findings:
    """What was checked and what failed, in order."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []

    def check(self, name: str, wrong: list[str]) -> None:
        """Adds one line to the page; `wrong` lists what is not as it should be."""
        if wrong:
            more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
            self.failed.append(f"{name}: {'; '.join(wrong[:SHOWN])}{more}")
        else:
            self.passed.append(name)


class Facts:
    """What the shards of one split hold, counted from the examples themselves."""

    def __init__(self, tasks: dict[str, list[str]]):
        self.examples = self.beats = 0
        # record -> its windows * WINDOW + its beats: one small number, as there may be a million
        self.records: dict[str, int] = {}
        self.patients: set[str] = set()
        self.uids = array.array("q")
        self.names: list[str] = []  # record of each example
        self.contents = array.array("Q")  # hash of the stored numbers of each example
        self.labelled: collections.Counter = collections.Counter()
        self.classes = {task: collections.Counter() for task in tasks}
        self.wrong: list[str] = []

    def add(self, example: dict, count: int, max_beats: int) -> None:
        """Counts one example; `count` is its number of beats according to beat_counts."""
        name, beats = example["record_id"], len(example["start"])
        self.examples += 1
        self.beats += beats
        self.uids.append(example["uid"])
        self.patients.add(example["patient_id"])
        if name not in self.records:
            labels = json.loads(example["labels"])
            self.labelled.update(task for task in labels if task in self.classes)
            for task, of_task in self.classes.items():
                of_task.update(set(labels.get(task, ())))
        self.records[name] = self.records.get(name, 0) + WINDOW + beats
        self.names.append(name)
        self.contents.append(stored_hash(example))
        self.wrong += [
            f"record {name} window {example['window']}: {text}"
            for text in unsound(example, max_beats)
        ]
        if beats != count:
            self.wrong.append(f"record {name}: {beats} beats, beat_counts says {count}")


def stored_hash(example: dict) -> int:
    """A hash of the stored numbers alone: the same signal has the same hash under any name."""
    digest = hashlib.blake2b(digest_size=8)
    for name in ("beats", "start", "length", "offset", "scale"):
        digest.update(np.ascontiguousarray(example[name]))
    return int.from_bytes(digest.digest(), "big")


def unsound(example: dict, max_beats: int) -> Iterator[str]:
    """Whatever is in an example that no build would have written."""
    beats, start, length = example["beats"], example["start"], example["length"]
    present = mask_leads(example["lead_mask"])
    if not 1 <= len(beats) <= max_beats or not len(beats) == len(start) == len(length) == len(
        example["complete"]
    ):
        yield f"{len(beats)} beats, {len(start)} starts, {len(length)} lengths"
        return
    ends = np.append(start[1:], example["num_samples"])
    if start[0] != 0 or (length < 1).any() or (start + length != ends).any():
        yield "its intervals do not tile the window"
    if not all(np.isfinite(example[name]).all() for name in ("beats", "offset", "scale")):
        yield "values that are not finite"
    if (example["scale"] <= 0).any() or not present.any() or beats[:, ~present].any():
        yield "a scale that is not positive, no lead, or values in a missing lead"


def verify(directory: str | os.PathLike, progress: bool = False) -> tuple[str, list[str]]:
    """The page, and the failures (none if all is well); an InputError if the directory cannot be
    opened at all."""
    directory, findings = Path(directory), Findings()
    metadata = shards.read_metadata(directory)
    for key in ("duplicates", "ledger_sha256"):
        if key not in metadata:
            raise InputError(
                f"{directory}: built by an older version (no {key});"
                " build it again into a new folder"
            )
    preprocess = Preprocess.from_dict(metadata["preprocess"])
    current = preprocess.hash() == metadata["preprocess_hash"]
    findings.check(
        "preprocessing hash",
        [] if current else [f"{metadata['preprocess_hash']} is not of this code"],
    )
    facts, sets = {}, {}
    for split in metadata["splits"]:
        try:
            sets[split] = ShardSet(directory, split)
            sets[split].verify()
            facts[split] = _read_split(sets[split], metadata, preprocess, progress)
        except InputError as error:
            findings.failed.append(f"{split}: {error}")
    if findings.failed:  # shards that cannot be read cannot be counted
        return shards.describe(metadata), findings.failed
    for split, found in facts.items():
        _check_split(split, found, metadata, directory, findings)
    _check_across(facts, findings)
    _check_ledger(directory, metadata, facts, findings)
    _check_readers(directory, sets, findings)
    lines = [shards.describe(metadata), ""] + [f"ok            {name}" for name in findings.passed]
    return "\n".join(lines), findings.failed


def _read_split(
    shard_set: ShardSet, metadata: dict, preprocess: Preprocess, progress: bool
) -> Facts:
    """Reads every example of a split."""
    facts = Facts(metadata["tasks"])
    with progress_bar(
        total=len(shard_set), unit="ex", desc=shard_set.split, disable=not progress
    ) as bar:
        for first in range(0, len(shard_set), BATCH):
            indices = range(first, min(first + BATCH, len(shard_set)))
            for i, example in zip(indices, shard_set.read(indices), strict=True):
                facts.add(example, int(shard_set.counts[i]), preprocess.max_beats)
            bar.update(len(indices))
    return facts


def _check_split(
    split: str, found: Facts, metadata: dict, directory: Path, findings: Findings
) -> None:
    """Counts, checksums, values and labels of one split."""
    # numbers and files
    expected = metadata["splits"][split]
    sizes = {
        "examples": found.examples,
        "records": len(found.records),
        "patients": len(found.patients),
    }
    sizes["beats"] = found.beats
    wrong = [
        f"{value} {name}, dataset.json says {expected[name]}"
        for name, value in sizes.items()
        if value != expected[name]
    ]
    path = directory / shards.counts_file(split)
    if shards.file_sha256(path) != expected["beat_counts_sha256"]:
        wrong.append(f"{path.name}: its checksum is not the one in dataset.json")
    findings.check(
        f"{split}: files, checksums, {found.examples} examples, {found.beats} beats", wrong
    )
    findings.check(f"{split}: sound values", found.wrong)
    # labels
    wrong = []
    for task, classes in metadata["tasks"].items():
        if found.labelled[task] != expected["labelled"][task]:
            wrong.append(
                f"{found.labelled[task]} records labelled for {task},"
                f" not {expected['labelled'][task]}"
            )
        counted = {name: found.classes[task][name] for name in classes}
        wrong += [
            f"{task} {name}: {counted[name]} records, dataset.json says {n}"
            for name, n in expected["label_counts"][task].items()
            if counted.get(name) != n
        ]
        wrong += [
            f"{task} {name}: not a class of dataset.json"
            for name in found.classes[task]
            if name not in counted
        ]
    findings.check(f"{split}: label counts", wrong)


def _check_across(facts: dict[str, Facts], findings: Findings) -> None:
    """No patient, record or signal is in two splits, and every uid is unique."""
    for what in ("patient", "record"):
        wrong = []
        for one, other in itertools.combinations(facts, 2):
            sets = [
                facts[split].patients if what == "patient" else facts[split].records.keys()
                for split in (one, other)
            ]
            wrong += [f"{name} of {one} is in {other}" for name in sorted(sets[0] & sets[1])]
        findings.check(f"no {what} in two splits", wrong)
    wrong = []
    contents = {split: np.array(found.contents, np.uint64) for split, found in facts.items()}
    for one, other in itertools.combinations(facts, 2):
        for value in np.intersect1d(contents[one], contents[other]):
            first, second = (
                facts[s].names[int(np.argmax(contents[s] == value))] for s in (one, other)
            )
            wrong.append(f"{first} of {one} is in {other} as {second}")
    findings.check("no identical signal in two splits", wrong)
    uids = np.concatenate([np.array(found.uids, np.int64) for found in facts.values()])
    values, times = np.unique(uids, return_counts=True)
    wrong = [
        f"uid {value} occurs {n} times"
        for value, n in zip(values[times > 1], times[times > 1], strict=True)
    ]
    findings.check(f"{len(uids)} different uids", wrong)


def read_ledger(directory: str | os.PathLike) -> Iterator[dict[str, str]]:
    """The rows of ledger.csv, one by one."""
    path = Path(directory) / shards.LEDGER_FILE
    csv.field_size_limit(2**24)  # the defects of a day's windows are one cell
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != LEDGER_COLUMNS:
                raise InputError(
                    f"{path}: not the ledger of this version;"
                    " build the dataset again into a new folder"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise csv.Error(f"line {reader.line_num} has another number of cells")
                yield {name: original(cell) for name, cell in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: cannot be read ({first_line(error)});"
            " run the build command of this dataset again"
        ) from None


def _check_ledger(
    directory: Path, metadata: dict, facts: dict[str, Facts], findings: Findings
) -> None:
    """Every listed record is in the ledger once, kept ones as in the shards, and no signal is in
    two splits."""
    wrong, listed, kept, kinds = [], 0, 0, collections.Counter()
    path = directory / shards.LEDGER_FILE
    hashes = collections.defaultdict(lambda: array.array("Q"))
    if path.is_file() and shards.file_sha256(path) != metadata["ledger_sha256"]:
        wrong.append("its checksum is not the one in dataset.json: run the build command again")
    try:
        for row in read_ledger(directory):
            listed += 1
            kinds.update(quality.kinds(row["defects"]))
            name, split = row["record_id"], row["split"]
            if row["kept"] == "no":
                wrong += [] if row["reason"] else [f"record {name} was dropped without a reason"]
                continue
            kept += 1
            stored = facts[split].records.get(name, 0) if split in facts else 0
            if int(row["windows"]) * WINDOW + int(row["beats"]) != stored:
                held = f"{stored // WINDOW} windows and {stored % WINDOW} beats"
                wrong.append(
                    f"record {name} of {split}:"
                    f" the shards hold {held}, not {row['windows']}, {row['beats']}"
                )
            if row["signal_hash"]:
                hashes[split].append(int(row["signal_hash"], 16))
    except (InputError, ValueError) as error:
        wrong.append(str(error))
    if (listed, kept) != (metadata["records"]["listed"], metadata["records"]["kept"]):
        wrong.append(f"{listed} rows and {kept} kept, dataset.json says {metadata['records']}")
    if dict(kinds) != metadata["defects"]:
        wrong.append("its defects are not those counted in dataset.json")
    findings.check(f"ledger: {listed} records, {kept} kept as stored", wrong)
    leaks = []
    for one, other in itertools.combinations(hashes, 2):
        both = np.intersect1d(*(np.array(hashes[split], np.uint64) for split in (one, other)))
        leaks += [f"signal_hash {value:016x} is in {one} and in {other}" for value in both.tolist()]
    findings.check("no identical raw signal in two splits", leaks)


def _check_readers(directory: Path, sets: dict[str, ShardSet], findings: Findings) -> None:
    """Grain and tfds read the same values as we do, in a sample."""
    import grain
    import tensorflow_datasets as tfds

    for split, shard_set in sets.items():
        wrong = {"Grain": [], "tfds": []}
        sample = np.unique(np.linspace(0, len(shard_set) - 1, SAMPLE).astype(int)).tolist()
        try:
            source = grain.sources.ArrayRecordDataSource([str(path) for path in shard_set.paths])
            theirs = tfds.builder_from_directory(directory).as_data_source(split=split)
            for name, other in (("Grain", source), ("tfds", theirs)):
                if len(other) != len(shard_set):
                    wrong[name].append(f"{len(other)} examples instead of {len(shard_set)}")
            spec = theirs.dataset_info.features
            for i, example in zip(sample, shard_set.read(sample), strict=True):
                parsed = spec.deserialize_example_np(source[i])
                wrong["Grain"] += [
                    f"example {i}: {name} differs" for name in _different(example, parsed)
                ]
                wrong["tfds"] += [
                    f"example {i}: {name} differs" for name in _different(example, theirs[i])
                ]
        except Exception as error:  # whatever they raise, they cannot read the files
            wrong["tfds"].append(f"{type(error).__name__}: {first_line(error, 160)}")
        findings.check(f"{split}: Grain reads the same", wrong["Grain"])
        findings.check(f"{split}: tfds reads the same", wrong["tfds"])


def _different(ours: dict, theirs: dict) -> Iterator[str]:
    """The names of the features in which two examples differ."""
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(name), theirs.get(name)
        other = other.decode() if isinstance(other, bytes) else other
        if one is None or other is None or not np.array_equal(one, other):
            yield name
