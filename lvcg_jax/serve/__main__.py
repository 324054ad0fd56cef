"""A small HTTP service: a file of any format in, numbers or a report out.

    lvcg serve                                   then open http://127.0.0.1:8000 and drop a file
    lvcg serve --checkpoint=runs/mine --head=runs/mine/head.safetensors --port=9000
    curl -F file=@ecg.dcm http://127.0.0.1:8000/ecg
    curl -F file=@r.hea -F file=@r.dat 'http://127.0.0.1:8000/ecg?leads=I,II,V2'
    curl -F file=@ecg.dcm 'http://127.0.0.1:8000/ecg?answer=report' > report.html

It listens on this machine alone unless --host says otherwise; it has no password and no encryption
of its own. Uploads lie in a private folder while they are read and are then deleted. It ends on
Ctrl-C or SIGTERM, after the requests that it holds. Needs the extra `serve`. Not a medical device.
"""

import argparse
import importlib.util
import ipaddress
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, natural_int, positive_float, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.runs import heads, weights
from lvcg_jax.serve.answers import Answers
from lvcg_jax.serve.asked import Asked

SHUTDOWN_SECONDS = 30  # for the requests that are held
MOST_CONNECTIONS = 256


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("serve", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    head = "file of lvcg probe --save, or a packaged head by name; may be repeated"
    add("--head", action="append", metavar="HEAD", help=f"{head} (default: all of these weights)")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=natural_int, default=8000, help="default %(default)s; 0 takes a free one")
    largest = "largest upload in MiB (default %(default)s)"
    add("--max_mib", type=positive_float, default=16, metavar="N", help=largest)
    longest = "longest record in minutes (default %(default)s)"
    add("--max_minutes", type=positive_float, default=60, metavar="N", help=longest)
    held = "requests that may hold a file at a time; others are told to wait (default %(default)s)"
    add("--at_once", type=positive_int, default=32, metavar="N", help=held)
    args = parser.parse_args(argv)
    if args.port > 65535:
        raise InputError(f"--port={args.port}: a port is a number up to 65535")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    find_spec = importlib.util.find_spec
    if None in (find_spec("starlette"), find_spec("uvicorn"), find_spec("python_multipart")):
        raise InputError("lvcg serve needs `pip install lvcg-jax[serve]`")
    import uvicorn

    from lvcg_jax.serve.service import Limits, Service

    # the address first: a port that is taken is told before anything is loaded
    listener = open_socket(args.host, args.port)
    answers = load_answers(args.checkpoint, args.head, args.max_minutes)
    limits = Limits(round(args.max_mib * 2**20), args.at_once)
    service = Service(answers.answer, answers.model.checkpoint, limits)
    config = uvicorn.Config(
        service.app,
        log_level="warning",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port} answers, with {service.checkpoint}; Ctrl-C ends it")
    if not ipaddress.ip_address(host).is_loopback:
        print("warning: others can reach it, and it has neither a password nor encryption")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; an InputError if that is not possible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"cannot listen on {host}, port {port} ({first_line(error, 80)}): give another --port"
            " or --host"
        ) from None


def load_answers(checkpoint: str | None, names: list[str] | None, minutes: float) -> Answers:
    """The model and its heads, compiled."""
    chosen = weights.choose(checkpoint)
    model = LVCG.load(chosen)
    model.require_heart_vector("lvcg serve")
    if names is None:
        mine = weights.is_packaged(chosen)
        names = [name for name in heads.names() if mine and name.startswith(f"{chosen}-")]
    loaded = [heads.load_head(name, str(chosen)) for name in names]
    loaded.sort(key=lambda head: len(head.classes))  # coarse questions first
    for head in loaded:
        head.require(model.checkpoint, model.preprocess.hash())
    answers = Answers(model, chosen, loaded, minutes)
    # both answers for a record of our own, so that no client waits for a compilation
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm_up.npz"
        np.savez(path, signal=make_record(rate=500)[0], rate=500, unit="mV", leads=LEADS)
        for asked in (Asked(), Asked("report", leads="I,II,V2")):
            answers.answer(path, asked)
    return answers


if __name__ == "__main__":
    run_command(main)
