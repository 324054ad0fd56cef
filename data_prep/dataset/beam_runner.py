"""Builds shards as an Apache Beam pipeline, for corpora beyond one machine; an element is a shard.

The pipeline runs the same function as local builds, so the files are the same. All workers must see
the folders of raw data and shards under the same path (a shared or mounted file system). Beam is an
extra: pip install 'lvcg-jax[beam]'.
"""

import re
from collections.abc import Callable, Sequence

from data_prep.base.errors import InputError

# as it appears in a trace within a runner's message
NAME = re.escape(f"{InputError.__module__}.{InputError.__qualname__}")


def run(task: Callable, state: tuple, items: Sequence, options: list[str]) -> None:
    """Calls task(*state, item, tick) for every item; `options` are Beam's pipeline options."""
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise InputError("--runner=beam needs Apache Beam: pip install 'lvcg-jax[beam]'") from None
    try:
        with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
            shards = pipeline | "shards" >> beam.Create(list(items))
            # otherwise a runner may build all shards in one worker
            spread = shards | "spread" >> beam.Reshuffle()
            # the expression itself adds this step to the pipeline
            spread | "build" >> beam.Map(_build, task, state)
    except Exception as error:
        raise _users_error(error) or error from None


def _build(item: object, task: Callable, state: tuple) -> None:
    task(*state, item, _no_tick)


def _no_tick() -> None:
    """Beam shows its own progress."""


def _users_error(error: BaseException | None) -> InputError | None:
    """The InputError that a runner wrapped in its own errors, or of which it kept only the text."""
    while error is not None:
        if isinstance(error, InputError):
            return InputError(str(error).split(" [while running")[0])
        told = re.search(rf"{NAME}: (.+?)(?: \[while running|$)", str(error), re.MULTILINE)
        if told:
            return InputError(told[1])
        error = error.__cause__ or error.__context__
    return None
