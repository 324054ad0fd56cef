"""Files of clients: how they are received, and where they lie while they are read.

A name that a client gives is never a path. Of a single file it gives the ending alone. Of several
(a WFDB header and its signals, which name each other) plain names are kept, in a folder that only
this process can look into and that is deleted with everything in it.
"""

import re
import shutil
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from data_prep.base.errors import InputError

MOST_FILES, MOST_FIELDS, LARGEST_FIELD = 16, 16, 4096  # of a request; bytes
LARGEST_UNPACKED = 2**26  # bytes of the arrays of an .npz
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}$")


async def receive(request: Request, largest: int) -> FormData:
    """The parts of a multipart request; an HTTPException of one line for anything else, or for more
    bytes than `largest`."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "send the file as multipart/form-data: curl -F file=@ecg.dcm")
    too_large = HTTPException(413, f"the upload has more than {largest / 2**20:g} MiB")
    if _declared(request) > largest and "expect" in request.headers:
        raise too_large  # the client waits for a word before it sends
    stream = _bounded(request.stream(), largest, too_large)
    limits = {"max_files": MOST_FILES, "max_fields": MOST_FIELDS, "max_part_size": LARGEST_FIELD}
    try:
        return await MultiPartParser(request.headers, stream, **limits).parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the upload cannot be read: {error.message}") from None


def _declared(request: Request) -> int:
    """The size that the client states, 0 if it states none."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0


async def _bounded(
    stream: AsyncGenerator[bytes, None], largest: int, too_large: HTTPException
) -> AsyncGenerator[bytes, None]:
    """The stream up to `largest` bytes. What goes beyond is read and thrown away, as a client that
    is still sending does not see the answer."""
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size <= largest:
            yield chunk
    if size > largest:
        raise too_large


def fields_of(form: FormData) -> dict[str, str]:
    """The parts that are no files."""
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}


def store(form: FormData, folder: Path) -> Path:
    """Writes the files of a request into a folder; the path of the one that is to be read."""
    files = [part for _, part in form.multi_items() if isinstance(part, UploadFile) and part.size]
    if not files:
        raise InputError("no file was sent: give it as the part 'file'")
    names = [_alone(files[0].filename)] if len(files) == 1 else _together(files)
    for part, name in zip(files, names, strict=True):
        with open(folder / name, "xb") as file:
            shutil.copyfileobj(part.file, file)
    chosen = next((name for name in names if name.lower().endswith(".hea")), names[0])
    if chosen.lower().endswith(".npz"):
        _check_unpacked(folder / chosen)
    return folder / chosen


def _alone(name: str | None) -> str:
    ending = ENDING.search(name or "")
    return f"upload{ending[0].lower() if ending else ''}"


def _together(files: list[UploadFile]) -> list[str]:
    """The names of several files, of which one is a WFDB header."""
    names = [part.filename or "" for part in files]
    for name in names:
        if not NAME.fullmatch(name):
            raise InputError(
                f"file name {name[:60]!r}: of several files each needs a plain name of letters,"
                " digits, '_', '-' and '.'"
            )
    if len({name.lower() for name in names}) < len(names):
        raise InputError("two of the files have the same name")
    if sum(name.lower().endswith(".hea") for name in names) != 1:
        raise InputError(
            "several files are taken as one WFDB record: send one .hea and its signals"
        )
    return names


def _check_unpacked(path: Path) -> None:
    """An InputError for an .npz that unpacks to more than the service has memory for."""
    try:
        with zipfile.ZipFile(path) as file:
            size = sum(entry.file_size for entry in file.infolist())
    except Exception:  # a broken archive, which its reader refuses with the reason
        return
    if size > LARGEST_UNPACKED:
        raise InputError(
            f"the arrays of the .npz have {size / 2**20:.0f} MiB, more than"
            f" {LARGEST_UNPACKED / 2**20:g}: cut the record"
        )
