"""Pre-training.

    lvcg train --config=configs/pretrain.py [--workdir=DIR] [--config.data.dir=SHARDS]

Several data sets are named with commas, each with a weight if you like: SHARDS,MORE:0.5 takes half
of the records of MORE, another half in every epoch.

The same command continues a run that was stopped or killed. SIGTERM saves a checkpoint and ends
with exit code 0. Ctrl-C ends it after the step under way and a checkpoint that is being written,
and a second Ctrl-C at once. Without --workdir the run goes to a folder of `runs` that is named
after the config.
"""

import sys

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from data_prep.base.command import run_command
from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from lvcg_jax.config.files import find_config
from lvcg_jax.train.loop import train_and_evaluate

_CONFIG = config_flags.DEFINE_config_file(
    "config",
    help_string="Config file, e.g. configs/pretrain.py or configs/pretrain.py:demo.",
    lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Run directory, a folder or gs://BUCKET/FOLDER; default: a folder of runs/ named after the"
    " config.",
)
_CLUSTER = flags.DEFINE_boolean(
    "cluster",
    False,
    "One of several processes that Slurm, MPI, GKE or a TPU pod started: JAX finds the others"
    " itself.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of process 0, for a run of several processes."
)
_PROCESSES = flags.DEFINE_integer(
    "processes", None, "Number of processes of the run (with --coordinator).", lower_bound=1
)
_PROCESS = flags.DEFINE_integer(
    "process", None, "Number of this process, from 0 (with --coordinator).", lower_bound=0
)


def join_processes() -> None:
    """Meets the other processes of the run, if there are any; must come before any other call of
    JAX."""
    named = [_COORDINATOR.value, _PROCESSES.value, _PROCESS.value]
    if _CLUSTER.value and any(value is not None for value in named):
        raise InputError(
            "--cluster finds the processes itself: leave out --coordinator, --processes and"
            " --process"
        )
    if any(value is not None for value in named):
        if None in named:
            raise InputError("--coordinator=HOST:PORT, --processes=N and --process=K go together")
        jax.distributed.initialize(*named)
    elif _CLUSTER.value:
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise InputError(
                f"--cluster: no cluster environment found ({first_line(error)}): start the"
                " processes with srun, mpirun or on a TPU pod, or name them with --coordinator,"
                " --processes and --process"
            ) from None


def default_workdir(config: str) -> str:
    """The run directory of a config without --workdir: 'configs/pretrain.py:demo' ->
    'runs/pretrain-demo'."""
    file, variant = find_config(config)
    return f"runs/{file.stem}-{variant}" if variant else f"runs/{file.stem}"


def start(argv: list[str]) -> int:
    """Trains; absl calls it with the words of the command line that are no flags."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument '{argv[1]}': flags are written --name=value")
    if _CONFIG.value is None:
        raise InputError("--config is needed, e.g. --config=configs/pretrain.py")
    workdir = _WORKDIR.value
    if workdir is None:
        workdir = default_workdir(flags.FLAGS["config"].config_filename)
        print(f"no --workdir given: the run goes to {workdir}", file=sys.stderr)
    logging.set_verbosity(logging.WARNING)  # below that Orbax reports every stage of a save
    join_processes()
    train_and_evaluate(_CONFIG.value, workdir)
    return 0


def parse_flags(argv: list[str]) -> list[str]:
    """Reads absl's flags; an InputError for a mistake in a flag, a config or a field."""
    try:
        rest = flags.FLAGS([_with_found_config(word) for word in argv])
        if _CONFIG.value is not None:
            # a config file that could not be read says so when it is first touched
            _CONFIG.value.lock()
        return rest
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        text = str(error.args[0]) if error.args else str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if "Traceback" in text:  # raised inside the config file: its last line says what is wrong
            lines = [lines[-1].removeprefix("ValueError: ")]
        raise InputError(" ".join(lines)) from None


def _with_found_config(word: str) -> str:
    """--config=NAME:VARIANT with the file that find_config finds; any other word as it is."""
    if not word.startswith("--config="):
        return word
    file, variant = find_config(word.removeprefix("--config="))
    return f"--config={file}:{variant}" if variant else f"--config={file}"


def help_text() -> str:
    """Flags of this command; absl's own help lists those of whatever module was started."""
    ours = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    lines = [f"  --{flag.name:13}{' '.join(flag.help.split())}" for flag in ours]
    fields = "  --config.FIELD=VALUE changes a field, e.g. --config.optim.learning_rate=1e-3"
    return "\n".join([__doc__.strip(), "", "flags:", *lines, fields])


def main(argv: list[str] | None = None) -> int | None:
    words = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(words):
        print(help_text())
        return 0
    app.run(start, argv=["lvcg train", *words], flags_parser=parse_flags)


if __name__ == "__main__":
    run_command(main)
