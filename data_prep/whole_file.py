"""Files that are there whole or not at all: written under another name, and renamed when they are finished."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import InputError
from data_prep.storage import is_remote, write_object


@contextlib.contextmanager
def whole_file(path: str | Path, folder: Path | None = None) -> Iterator[Path]:
    """A name to write to, beside the file or in `folder` (of the same disk), that becomes `path` at the end.

    A killed process leaves at most NAME.tmp, an error nothing.
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
    """Writes a file, text as UTF-8, in whole or not at all; an InputError if it cannot be done."""
    content = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        return write_object(path, content)
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: str | Path, error: OSError) -> InputError:
    """What the user is told."""
    return InputError(f"{path}: cannot be written ({error.strerror or error}); make room, or choose another place")
