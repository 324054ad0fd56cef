"""The training loop: data, model, checkpoint or fresh start, steps, validation, end."""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, plain_address, require_local, run_place
from data_prep.base.lock import only_one
from data_prep.base.memory import KeptRoom, peak_memory
from data_prep.base.progress import progress_bar
from data_prep.base.words import list_some
from data_prep.dataset.fetch import fetch_dataset
from data_prep.dataset.packed import open_packed
from data_prep.dataset.shards import ALL_SPLITS, ShardSet
from lvcg_jax.config.build import make_model
from lvcg_jax.config.fields import check_positive
from lvcg_jax.config.folders import Folder, read_folders
from lvcg_jax.config.inputs import as_geometry, make_preprocess, make_subsets
from lvcg_jax.data.batches import BatchMaker, ordered_batches, train_batches
from lvcg_jax.data.mixture import Mixture, describe_sets, shared_signals
from lvcg_jax.data.order import BatchOrder
from lvcg_jax.data.out_of_memory import fits_in_memory
from lvcg_jax.data.packed_source import PackedSource
from lvcg_jax.model.record_token import NAME as RECORD_TOKEN
from lvcg_jax.runs.checkpoint import (
    LOCK,
    Checkpoints,
    data_identity,
    mixed_identity,
    note_data,
    open_run,
)
from lvcg_jax.runs.metrics_log import MetricsLog
from lvcg_jax.runs.state import TrainState, create_state, make_optimizer, take_weights
from lvcg_jax.runs.trained import load_trained
from lvcg_jax.runs.weights import weights_hash
from lvcg_jax.train.compiled import CompiledStep
from lvcg_jax.train.fitted import fit_parts
from lvcg_jax.train.sharding import (
    group_devices,
    local_groups,
    make_mesh,
    put_batch,
    replicated,
    state_sharding,
)
from lvcg_jax.train.steps import (
    Numbers,
    Watch,
    make_train_step,
    make_validation_step,
    summarise_validation,
)
from lvcg_jax.train.teacher import Targets, keep_targets

NO_RECORD_TOKEN = (
    "it is not trained with the beats: set model.record_token to 0, train one by"
    " configs/record_token.py and add it with lvcg add_parts"
)
MESSAGE_BYTES = 2048  # of a refusal that process 0 tells the others
COLLAPSED = 0.01  # a spread of the embeddings (see lvcg_jax/peers/peer.py) under which a run warns


def say(message: str) -> None:
    """One line for the user, from the first process only."""
    if jax.process_index() == 0:
        tqdm.write(message, file=sys.stderr)


def on_first_process(work: Callable[[], object]) -> None:
    """Does the work on process 0 alone. If that refuses with an InputError, every process does,
    with the same words: else the others would wait for it."""
    refused = b""
    if jax.process_index() == 0:
        try:
            work()
        except InputError as error:
            refused = str(error).encode()[:MESSAGE_BYTES]
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        message = np.frombuffer(refused.ljust(MESSAGE_BYTES, b"\0"), np.uint8)
        refused = bytes(multihost_utils.broadcast_one_to_all(message)).rstrip(b"\0")
    if refused:
        raise InputError(refused.decode(errors="replace"))


def open_data(config: ConfigDict, workdir: Path) -> tuple[ShardSet | Mixture, ShardSet | None]:
    """Training shards, a Mixture if there are several folders or weights, and the validation shards
    of the first folder; without data.dir a synthetic data set is made in the run directory."""
    folders = read_folders(config.data.dir) or [Folder(make_synthetic(config, workdir))]
    folders = [
        Folder(fetch_dataset(folder.path, config.data.cache), folder.weight)
        if is_remote(folder.path)
        else folder
        for folder in folders
    ]
    preprocess = make_preprocess(config)
    sets = [ShardSet(folder.path, config.data.splits) for folder in folders]
    for shards in sets:
        shards.require_preprocess(preprocess)
    train, directory, weights = sets[0], sets[0].directory, [folder.weight for folder in folders]
    if weights != [1]:
        train = Mixture(sets, weights)
        say(
            f"training on {describe_sets(sets, weights)}: {sum(train.shares):,} records an epoch;"
            f" validation on {train.names[0]}"
        )
        for line in shared_signals(sets) if jax.process_index() == 0 else ():
            say(f"warning: {line}")
    if "validation" not in sets[0].metadata["splits"]:
        say(f"{directory} has no validation split: training continues without validation")
        return train, None
    if config.data.splits == ALL_SPLITS:
        say(f"training on all splits of {directory}: its validation records are not unseen ones")
    return train, ShardSet(directory, "validation")


def check_places(config: ConfigDict) -> None:
    """An InputError for data that cannot be read from where it is."""
    require_local(config.data.cache)
    for folder in read_folders(config.data.dir):
        if is_remote(folder.path) and not config.data.cache:
            raise InputError(
                f"{plain_address(folder.path)}: only ordinary files are trained on: name a folder"
                " of a local disk in data.cache, and it is copied there"
            )


def make_synthetic(config: ConfigDict, workdir: Path) -> Path:
    """A synthetic data set in the run directory, made by the first process.

    If the run directory is on object storage, each process makes the same set in a scratch folder
    of its own.
    """
    from data_prep.corpora.corpus import open_corpus
    from data_prep.dataset.builder import build
    from data_prep.synthetic_heart.records import write_corpus

    folder = workdir
    if is_remote(workdir):
        folder = Path(tempfile.mkdtemp(prefix="lvcg_synthetic_"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    raw, shards = folder / "synthetic", folder / "data"
    if (jax.process_index() == 0 or is_remote(workdir)) and not (shards / "dataset.json").exists():
        patients = config.data.synthetic_patients
        say(f"no data.dir given: making a synthetic data set of {patients} patients in {shards}")
        write_corpus(raw, patients=config.data.synthetic_patients, seed=config.seed)
        corpus, whole = open_corpus("synthetic", raw), "peer" in config
        build(corpus, shards, make_preprocess(config), store_signal=whole)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("synthetic data")
    return shards


class Preemption:
    """Whether the run was asked to stop: by SIGTERM to any of its processes, or by Ctrl-C."""

    def __init__(self):
        self._asked = self._interrupted = False
        # with several, JAX's own notifier catches the signal, and all agree on a step
        if jax.process_count() == 1:
            self._previous = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_):
        self._asked = True

    def asked(self, step: int) -> bool:
        if jax.process_count() == 1:
            return self._asked
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)

    def close(self) -> None:
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._previous)

    @contextlib.contextmanager
    def interrupted_between_steps(self) -> Iterator[None]:
        """Within this block Ctrl-C is noted, for check_interrupt, and a second one ends the process
        at once, as a kill does.

        Python would raise KeyboardInterrupt wherever it is: inside Orbax, which then waits for ever
        for a save that nobody does any more, or in a callback, where it is lost. A command that has
        a handler of its own keeps it.
        """
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, *_):
        # print() may be what was interrupted, and cannot be entered again
        if self._interrupted:
            os.write(2, b"\ninterrupted\n")
            os._exit(130)
        self._interrupted = True
        os.write(2, b"\ninterrupted: ending after this step; again ends it at once\n")

    def check_interrupt(self) -> None:
        """KeyboardInterrupt if there was a Ctrl-C: called where nothing is half done."""
        if self._interrupted:
            raise KeyboardInterrupt


def sets_of(train: ShardSet | Mixture) -> tuple[list[ShardSet], list[float]]:
    """The data sets that are trained on, and their weights."""
    return (train.sets, train.weights) if isinstance(train, Mixture) else ([train], [1.0])


def packed_source(train: ShardSet | Mixture, cache: str, signal: bool) -> PackedSource:
    """The training records from packed files, which are made first if they are not there."""
    sets, _ = sets_of(train)
    names = train.names if isinstance(train, Mixture) else None
    return PackedSource([open_packed(shards, cache, signal) for shards in sets], names)


def check_data(model, sets: Sequence[ShardSet]) -> None:
    """An InputError if the data sets do not have what the model learns from."""
    patients = 0
    for shards in sets:
        if model.signal_samples:
            shards.require_signal()
        splits = shards.metadata["splits"]
        trained = splits if shards.split == ALL_SPLITS else [shards.split]
        patients += sum(splits[name]["patients"] for name in trained)
    if patients < model.least_patients:
        raise InputError(
            f"{sets[0].directory} has records of {patients} patient only: {type(model).__name__}"
            f" learns to tell patients apart, give records of {model.least_patients} or more"
        )


def read_targets(
    config: ConfigDict, workdir: Path, train: ShardSet | Mixture, validation: ShardSet | None
) -> Targets | None:
    """What the teacher of a student says of its records; None for a model without one."""
    checkpoint = config.peer.get("teacher", "") if "peer" in config else ""
    if not checkpoint:
        return None
    count = config.peer.targets
    on_first_process(lambda: keep_targets(workdir, checkpoint, count, train, validation))
    return Targets(workdir)


def in_words(values: Mapping[str, float]) -> str:
    """The numbers of a step or a validation that are shown while a run goes on."""
    words = f"loss {values['loss']:.4g}"
    if "ecg_r2" in values:
        words += f", hidden leads R2 {values['ecg_r2']:.3f}"
    if "embedding_std" in values:
        words += f", spread of embeddings {values['embedding_std']:.3f}"
    return words


def check_finite(
    numbers: Mapping[str, float], watch: Watch, shards: ShardSet | Mixture, order: BatchOrder
) -> None:
    """An InputError if the numbers of a step say that it or a step before had a loss that is not
    finite: with the first such step and its records, which the watch of this or a later step
    holds."""
    if numbers["finite"]:
        return
    step, losses = int(watch.step), jax.device_get(watch.losses)
    bad = np.flatnonzero(~np.isfinite(losses.reshape(-1)))  # in the order of the batch
    names = [example["record_id"] for example in shards.read(order[step - 1][bad[:5]])]
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    raise InputError(
        f"the loss of step {step} is not finite, from record {', '.join(names)}{more}: look at"
        " these records, or lower optim.learning_rate; the last checkpoint is intact"
    )


def start_from(run: str, state: TrainState, shardings) -> TrainState:
    """A fresh state with the weights of another run, or packaged ones, wherever names and shapes
    agree."""
    given = load_trained(run)
    state, new = take_weights(state, given.variables)
    if any(name.startswith(RECORD_TOKEN) for name in new):
        raise InputError(f"{given.name} has no record token of these sizes: {NO_RECORD_TOKEN}")
    say(
        f"starting with the weights of {given.name}#{weights_hash(given.variables)}"
        + (f"; new are {list_some(new)}" if new else "")
    )
    return jax.device_put(state, shardings)


@contextlib.contextmanager
def everything_closed() -> Iterator[list[Callable[[], object]]]:
    """Yields a list for what must be closed; at the end of the block all of it is, last first.

    The first error, of the block or of closing, is the one that is raised; later ones are noted on
    it.
    """
    closers: list[Callable[[], object]] = []
    first: BaseException | None = None
    try:
        yield closers
    except BaseException as error:
        first = error
    for close in reversed(closers):
        try:
            close()
        except Exception as error:
            if first is None:
                first = error
            elif error is not first:
                first.add_note(f"while closing: {type(error).__name__}: {error}")
    if first is not None:
        raise first


def train_and_evaluate(config: ConfigDict, workdir: Path | str) -> str:
    """Trains until the last step, or until asked to stop; continues what is in `workdir`.

    Args:
      config: as in configs/pretrain.py.
      workdir: the run directory, a folder or gs://BUCKET/FOLDER.

    Returns:
      'finished' or 'preempted'.
    """
    check_positive(config)
    workdir = run_place(workdir)
    check_places(config)
    with contextlib.ExitStack() as stack:
        if not is_remote(workdir):  # object storage has no locks
            what = "another training writes into this run directory"
            on_first_process(lambda: stack.enter_context(only_one(workdir / LOCK, what)))
        preemption = Preemption()
        stack.callback(preemption.close)
        return _train(config, workdir, preemption)


def _train(config: ConfigDict, workdir: Path, preemption: Preemption) -> str:
    with config.ignore_type():  # a run keeps the numbers of a geometry file, not its name
        config.geometry.matrix = as_geometry(config.geometry.matrix)

    # ---- Run directory and data ----
    on_first_process(lambda: open_run(workdir, config))
    train_shards, validation_shards = open_data(config, workdir)
    sets, weights = sets_of(train_shards)
    if jax.process_index() == 0:
        note_data(workdir, describe_sets(sets, weights))
    max_beats = train_shards.preprocess.max_beats

    # ---- Mesh, model and optimiser ----
    mesh = make_mesh(config)
    groups, mine = mesh.shape["data"], local_groups(mesh)
    model, tx, subsets = make_model(config), make_optimizer(config), make_subsets(config)
    check_data(model, sets)
    make_batches = partial(BatchMaker, signal=model.signal_samples)
    taught = read_targets(config, workdir, train_shards, validation_shards)
    devices, source = group_devices(mesh), None
    if config.data.cache:
        source = packed_source(train_shards, config.data.cache, model.signal_samples > 0)
    maker = make_batches(
        train_shards,
        config.optim.accumulate,
        groups,
        mine,
        config.data.pack,
        devices=devices,
        source=source,
        targets=taught and taught.train,
    )
    order = maker.order(config.data.batch_size, config.seed)
    batches = train_batches(maker, order, config.data.prefetch, config.data.threads)
    sample = jax.tree.map(
        lambda x: x[0, :1], make_batches(train_shards, 1, 1, [0], True)(np.zeros(1, int))
    )
    init = partial(create_state, config, model, tx, sample, max_beats)
    abstract = jax.eval_shape(init, 0)
    shardings = state_sharding(mesh, abstract, config)

    memory = fits_in_memory(
        f"a step of {config.data.batch_size} records in {config.optim.accumulate} parts",
        "set model.remat=True, with which this run may go on, or start another one with a larger"
        " optim.accumulate or a lower data.batch_size; the last checkpoint is intact",
    )
    with preemption.interrupted_between_steps(), everything_closed() as closers, memory:
        # ---- Checkpoint or fresh start: parameters are made on the devices where they live ----
        identities = [data_identity(shards.metadata, config.data.splits) for shards in sets]
        identity = mixed_identity(identities, weights)
        checkpoints = Checkpoints(workdir, config, config.train.keep_checkpoints, identity)
        closers += [checkpoints.close, checkpoints.wait]
        placed = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
        )
        restored = checkpoints.restore_latest(placed)
        if restored is None:
            state, start = jax.jit(init, out_shardings=shardings)(config.seed), 0
            if fitted := fit_parts(config, sets[0]):
                state, _ = take_weights(state, {"params": fitted})
                state = jax.device_put(state, shardings)
            if config.train.start_from:
                state = start_from(config.train.start_from, state, shardings)
            elif RECORD_TOKEN in state.params:
                number = config.model.record_token
                raise InputError(f"model.record_token={number}: {NO_RECORD_TOKEN}")
        else:
            state, position = restored
            batches.set_state(position)
            start = int(state.step)
            say(f"resuming {workdir} at step {start}")

        # ---- Steps ----
        room = KeptRoom()
        closers.append(room.give_up)
        train_step = CompiledStep(
            make_train_step(model, tx, config, subsets, max_beats, mesh, shardings), room
        )
        validation_step = CompiledStep(
            make_validation_step(model, config, subsets, max_beats, mesh, shardings), room
        )

        def validate(state) -> dict[str, float]:
            maker = make_batches(
                validation_shards,
                1,
                groups,
                mine,
                config.data.pack,
                devices=devices,
                targets=taught and taught.validation,
            )
            size = -(-config.data.batch_size // (groups * devices)) * groups * devices
            sums = []
            for batch in ordered_batches(maker, size, config.train.validate_records):
                preemption.check_interrupt()
                sums.append(jax.device_get(validation_step(state, put_batch(batch, mesh))))
            return summarise_validation(sums)

        # ---- Log and progress ----
        log = MetricsLog(workdir, start) if jax.process_index() == 0 else None
        if log:
            closers.append(log.close)
        bar = progress_bar(
            total=config.train.steps, initial=start, unit="step", disable=jax.process_index() != 0
        )
        closers.append(bar.close)
        window = (start, time.monotonic())  # since the numbers were last logged
        collapsed = False

        def is_logged(step: int) -> bool:
            return step % config.train.log_every == 0 or step == 1

        def settle(step: int, numbers: Numbers, moment: float) -> None:
            """Fetches the numbers of a step, checks the losses up to it, and logs it if it is
            due."""
            nonlocal window, collapsed
            metrics = numbers.fetch()
            check_finite(metrics, watch, train_shards, order)
            del metrics["finite"]
            if is_logged(step):
                elapsed = max(moment - window[1], 1e-9)
                records = (step - window[0]) * config.data.batch_size
                metrics["records_per_second"] = records / elapsed
                metrics["memory_gib"] = peak_memory()
                window = (step, moment)
                speed = f"{metrics['records_per_second']:.0f} records/s"
                bar.set_postfix_str(f"{in_words(metrics)}, {speed}", refresh=False)
                if metrics.get("embedding_std", 1.0) < COLLAPSED and not collapsed:
                    collapsed = True
                    say(
                        f"warning: at step {step} the embeddings of all records are nearly the same"
                        f" (spread {metrics['embedding_std']:.1g} of 1): the model has collapsed"
                    )
                if log:
                    log.write(step, "train", metrics)

        # ---- Loop: the numbers of a step are fetched if it is logged, and after the next one is
        # under way, so that the device never waits for the host ----
        new_watch = partial(Watch.new, order.columns.shape)
        watch = jax.jit(new_watch, out_shardings=replicated(mesh))()
        pending, outcome = None, "finished"
        for step in range(start + 1, config.train.steps + 1):
            preemption.check_interrupt()
            batch = put_batch(next(batches), mesh)
            (state, watch), numbers = train_step((state, watch), batch)
            this = (step, numbers, time.monotonic())
            if pending:
                settle(*pending)
            pending = this if is_logged(step) else None
            bar.update()

            # what is due after this step
            last = step == config.train.steps
            stop = preemption.asked(step)
            saving = stop or last or step % config.train.checkpoint_every == 0
            validating = validation_shards is not None and (
                step % config.train.validate_every == 0 or last
            )
            if validating or saving:
                settle(*this)
                pending = None
            if validating:
                values = validate(state)
                if log:
                    log.write(step, "validation", values)
                say(f"step {step}: validation {in_words(values)}")
                if model.lowest_is_best:
                    checkpoints.save_if_lowest(step, state, values["loss"])
                window = (step, time.monotonic())
            if saving:
                if log:
                    log.upload()
                checkpoints.save(step, state)
            if stop and not last:
                outcome = "preempted"
                break
    say(f"{outcome} at step {int(state.step)} of {config.train.steps}: {workdir}")
    return outcome
