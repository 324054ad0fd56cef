"""--runner=beam: the same files as a local build, whatever the runner; without Beam a stand-in
runs the pipeline."""

import importlib.util
import pickle
import sys
import traceback
import types

import pytest
from helpers.builds import files_of, quiet_build

from data_prep.base.errors import InputError
from data_prep.build import main
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import beam_runner
from data_prep.synthetic_heart.records import write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "synthetic"
    write_corpus(folder, patients=6, records_per_patient=2, rate=100)
    return open_corpus("synthetic", folder)


@pytest.fixture
def stand_in(monkeypatch):
    """A module with the parts of apache_beam that the runner uses; elements and functions go
    through pickle."""
    beam = types.ModuleType("apache_beam")
    seen = {"labels": []}

    class Step:
        def __init__(self, function):
            self.function, self.label = function, ""

        def __rrshift__(self, label):
            self.label = label
            return self

    class Values:
        def __init__(self, pipeline, values):
            self.pipeline, self.values = pipeline, values

        def __or__(self, step):
            seen["labels"].append(step.label)
            result = Values(self.pipeline, None)
            self.pipeline.steps.append(
                lambda: setattr(result, "values", step.function(self.values))
            )
            return result

    class Pipeline(Values):
        def __init__(self, options):
            super().__init__(self, [])
            self.steps, seen["options"] = [], options

        def __enter__(self):
            return self

        def __exit__(self, kind, *_):
            for step in () if kind else self.steps:
                step()

    def map_step(function, *arguments):
        sent = pickle.dumps((function, arguments))

        def each(values):
            function, arguments = pickle.loads(sent)
            return [function(pickle.loads(pickle.dumps(value)), *arguments) for value in values]

        return Step(each)

    beam.Pipeline, beam.Map = Pipeline, map_step
    beam.Create = lambda values: Step(lambda _: values)
    beam.Reshuffle = lambda: Step(lambda values: values[::-1])  # the order must not matter
    options = types.ModuleType("apache_beam.options.pipeline_options")
    options.PipelineOptions = lambda flags: flags
    monkeypatch.setitem(sys.modules, "apache_beam", beam)
    monkeypatch.setitem(sys.modules, "apache_beam.options", types.ModuleType("apache_beam.options"))
    monkeypatch.setitem(sys.modules, "apache_beam.options.pipeline_options", options)
    return seen


def test_pipeline_writes_the_bytes_of_a_local_build(corpus, stand_in, tmp_path):
    quiet_build(corpus, tmp_path / "local", shard_records=3)
    quiet_build(corpus, tmp_path / "beam", shard_records=3, beam_options=["--runner=DirectRunner"])
    assert files_of(tmp_path / "beam") == files_of(tmp_path / "local")
    assert stand_in["labels"] == ["shards", "spread", "build"] and stand_in["options"] == [
        "--runner=DirectRunner"
    ]


def test_unknown_flags_go_to_the_pipeline_only_with_beam(corpus, stand_in, tmp_path):
    flags = [
        "--corpus=synthetic",
        f"--raw={corpus.raw_dir}",
        f"--out={tmp_path / 'out'}",
        "--limit=3",
    ]
    with pytest.raises(InputError, match="^unknown flag --flink_master"):
        main([*flags, "--flink_master=host:8081"])
    assert (
        main([*flags, "--runner=beam", "--beam_runner=FlinkRunner", "--flink_master=host:8081"])
        == 0
    )
    assert stand_in["options"] == ["--runner=FlinkRunner", "--flink_master=host:8081"]


def test_finished_shards_are_not_sent_again(corpus, stand_in, tmp_path, monkeypatch):
    quiet_build(corpus, tmp_path, shard_records=3, beam_options=[])
    monkeypatch.setattr(
        beam_runner, "run", lambda *_: pytest.fail("a finished shard was sent to Beam")
    )
    quiet_build(corpus, tmp_path, shard_records=3, beam_options=[])


def disk_is_full(item, tick):
    try:
        raise InputError(f"/out/{item}: disk full")
    except InputError as error:
        raise RuntimeError("while running step build") from error


def only_text(item, tick):
    error = InputError(f"/out/{item}: disk full")
    (told,) = traceback.format_exception_only(error)
    raise RuntimeError(f"  File x\n    raise\n{told.rstrip()} [while running 'build']")


@pytest.mark.parametrize("task", [disk_is_full, only_text])
def test_a_users_error_inside_a_worker_stays_one_line(stand_in, task):
    with pytest.raises(InputError) as error:
        beam_runner.run(task, (), ["shard"], [])
    assert str(error.value) == "/out/shard: disk full"


def test_other_errors_are_not_hidden(stand_in):
    with pytest.raises(TypeError):
        beam_runner.run(len, (), ["shard"], [])


def test_missing_beam_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install 'lvcg-jax\[beam\]'"):
        beam_runner.run(print, (), [1], [])


@pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None,
    reason="LVCG_BEAM: needs Apache Beam (pip install 'lvcg-jax[beam]');"
    " the stand-in above runs the same pipeline",
)
@pytest.mark.filterwarnings("default")  # Beam's own warnings are not ours to mend
def test_direct_runner_writes_the_bytes_of_a_local_build(corpus, tmp_path):
    quiet_build(corpus, tmp_path / "local", shard_records=3)
    quiet_build(corpus, tmp_path / "beam", shard_records=3, beam_options=["--runner=DirectRunner"])
    assert files_of(tmp_path / "beam") == files_of(tmp_path / "local")
