"""The numbers of a run: as JSON lines and as events that TensorBoard reads, also after a resume."""

import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from data_prep.base.errors import InputError
from lvcg_jax.runs.history import lowest_validation, noted_data, read_versions
from lvcg_jax.runs.metrics_log import MetricsLog, read_metrics


def events(workdir):
    """The events of the newest file: a length of 8 bytes, its checksum, the event, its checksum."""
    (file,) = (workdir / "tensorboard").glob("events.out.tfevents.*")
    data, found = file.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return found


def test_events_hold_every_number_and_a_resumed_run_hides_what_it_makes_again(tmp_path):
    log = MetricsLog(tmp_path, resume_step=4)
    log.write(5, "train", {"loss": 2.5, "ecg": 1.0})
    log.write(5, "validation", {"loss": 3.0})
    log.close()
    version, start, *rest = events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert start.step == 5 and start.session_log.status == SessionLog.START
    points = [(event.step, v.tag, v.simple_value) for event in rest for v in event.summary.value]
    assert points == [(5, "train/loss", 2.5), (5, "train/ecg", 1.0), (5, "validation/loss", 3.0)]
    assert [row["loss"] for row in read_metrics(tmp_path)] == [2.5, 3.0]


def test_a_full_disk_is_told_at_once(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, resume_step=0)

    def fail():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log._events, "flush", fail)
    with pytest.raises(InputError, match=r"step 1 could not be written .*No space.*disk full\?"):
        log.write(1, "train", {"loss": 2.5})
    log.close()


def test_rows_and_notes_that_are_damaged_are_left_out(tmp_path):
    lines = [
        '{"step": 1, "kind": "train", "loss": 2.0}',
        '{"step": 2, "kind": "validation"}',
        '{"kind": "train", "loss": 2.0}',
        "[1, 2]",
        "[" * 100_000,
        '{"step": "x", "kind": "train"}',
        '{"step": 3, "kind": "validation", "loss": 1.5}',
        '{"step": 4, "ki',
    ]
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xff")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    assert lowest_validation(tmp_path)["step"] == 3
    for text in ("{", "[]", "[" * 100_000):
        (tmp_path / "versions.json").write_text(text)
        assert read_versions(tmp_path) == {} and noted_data(tmp_path) == ""
