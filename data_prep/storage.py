"""Places that are not folders of this machine: run directories may be on Google Cloud Storage, datasets may not.

    gs://BUCKET/runs/paper

Small files go there through etils, checkpoints through Orbax. Other stores (s3://, ...) are refused: Orbax cannot write
checkpoints to them.
"""

import importlib.util
import logging
import re
from pathlib import Path

from data_prep.errors import InputError

_ADDRESS = re.compile(r"([a-z][a-z0-9]+):/+(.*)")  # one slash too: pathlib makes gs:/bucket of gs://bucket
_MOUNT = "mount the bucket as a folder (gcsfuse, mountpoint-s3), or copy it to a disk first"


def is_remote(path) -> bool:
    """Is it scheme://... rather than a folder or file of this machine?"""
    return _ADDRESS.match(str(path)) is not None


def require_local(path) -> None:
    """An InputError for scheme://...: what is not a run directory is read and written as ordinary files."""
    if is_remote(path):
        raise InputError(f"{_address(path)}: only ordinary files will do here: {_MOUNT}")


def run_place(path):
    """A run directory as a Path, or for gs://BUCKET/... as an etils path, which has the same methods."""
    if not is_remote(path):
        return Path(path)
    address = _address(path)
    if not re.match("gs://[^/]", address):
        raise InputError(f"{address}: a run directory is a folder or gs://BUCKET/FOLDER; else {_MOUNT}")
    if importlib.util.find_spec("gcsfs") is None:
        raise InputError(f"{address}: Google Cloud Storage needs `pip install lvcg-jax[gcs]`; or {_MOUNT}")
    from etils import epath  # late: most commands do without

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs what it also raises, with traces
    place = epath.Path(address)
    try:
        (place / "config.json").exists()
    except Exception as error:  # gcsfs, aiohttp and google.auth each have their own
        raise _unreachable(place, error) from None
    return place


def write_object(path, content: bytes) -> None:
    """Writes an object of a run_place: it appears when it is whole."""
    try:
        path.write_bytes(content)
    except Exception as error:
        raise _unreachable(path, error) from None


def _address(path) -> str:
    scheme, rest = _ADDRESS.match(str(path)).groups()
    return f"{scheme}://{rest}"


def _unreachable(path, error: Exception) -> InputError:
    what = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
    return InputError(
        f"{path} cannot be reached ({what}): is the bucket there, and may you write to it (gcloud auth"
        " application-default login, or the service account of the machine)?"
    )
