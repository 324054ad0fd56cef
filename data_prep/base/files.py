"""Files that appear whole or not at all, and run directories on a disk or on object storage."""

import contextlib
import errno
import hashlib
import importlib.util
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.words import first_line

LONGEST_NAME = 200  # bytes of a record id in a file name; most disks allow 255 in all


def ordinary(path: str | Path) -> str | Path:
    """The path of a file to read; an OSError if it is something else, such as a pipe, for which
    opening would wait for ever."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "no ordinary file")
    except ValueError:  # a name with a null character
        raise OSError(errno.EINVAL, "bad name") from None
    return path


def file_name(text: str) -> str:
    """A record id as part of a file name: only letters, digits, '-', '_' and '.', and of a long one
    the start and a hash."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
    if len(safe.encode()) <= LONGEST_NAME:
        return safe
    return f"{safe[: LONGEST_NAME // 8]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@contextlib.contextmanager
def whole_file(path: str | Path, folder: Path | None = None) -> Iterator[Path]:
    """A temporary name to write to, which is renamed to `path` at the end.

    It lies beside the file, or in `folder` on the same disk. A killed process leaves at most
    NAME.tmp behind, an error nothing.
    """
    path = Path(path)
    temporary = (folder or path.parent) / f"{path.name}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file (text as UTF-8) whole or not at all; an InputError if that is not possible."""
    content = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        return write_object(path, content)
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: str | Path, error: OSError) -> InputError:
    """The InputError for a file that cannot be written."""
    return InputError(
        f"{path}: cannot be written ({first_line(error)}); make room, or choose another place"
    )


# with one slash as well: pathlib turns gs://bucket into gs:/bucket
_ADDRESS = re.compile(r"([a-z][a-z0-9]+):/+(.*)")
_MOUNT = "mount the bucket as a folder (gcsfuse, mountpoint-s3), or copy it to a disk first"


def is_remote(path) -> bool:
    """Whether a path is an address (scheme://...) rather than a file or folder of this machine."""
    return _ADDRESS.match(str(path)) is not None


def require_local(path) -> None:
    """Raises an InputError for an address: all but run directories, and data sets to train on, is
    read and written as ordinary files."""
    if is_remote(path):
        raise InputError(f"{plain_address(path)}: only ordinary files will do here: {_MOUNT}")


def run_place(path):
    """A run directory as a Path or, for gs://BUCKET/..., as an etils path, which has the same
    methods."""
    if not is_remote(path):
        return Path(path)
    address = plain_address(path)
    if not re.match("gs://[^/]", address):
        raise InputError(
            f"{address}: a run directory is a folder or gs://BUCKET/FOLDER; else {_MOUNT}"
        )
    if importlib.util.find_spec("gcsfs") is None:
        raise InputError(
            f"{address}: Google Cloud Storage needs `pip install lvcg-jax[gcs]`; or {_MOUNT}"
        )
    from etils import epath  # imported here: most commands do not need it

    # gcsfs also logs the errors that it raises, with their traces
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    place = epath.Path(address)
    try:
        (place / "config.json").exists()
    except Exception as error:  # gcsfs, aiohttp and google.auth have errors of their own
        raise unreachable(place, error) from None
    return place


def write_object(path, content: bytes) -> None:
    """Writes an object of a run_place; it appears once it is complete."""
    try:
        path.write_bytes(content)
    except Exception as error:
        raise unreachable(path, error) from None


def plain_address(path) -> str:
    """An address as it is written, also where pathlib took a slash."""
    scheme, rest = _ADDRESS.match(str(path)).groups()
    return f"{scheme}://{rest}"


def unreachable(path, error: Exception) -> InputError:
    """The InputError for an object, or a place, that cannot be read or written."""
    what = first_line(error, 120)
    return InputError(
        f"{path} cannot be reached ({what}): is the bucket there, and may you use it"
        " (gcloud auth application-default login, or the service account of the machine)?"
    )
