"""Reads what torch.save wrote, with numpy alone, and never runs what a pickle asks for.

A checkpoint file is a zip: one pickle with the structure, and the raw bytes of every tensor. The
pickle is interpreted with a fixed list of harmless names (ordered dictionaries, tensors, storages);
any other name, and so every function that could do something, is refused before it is called. Files
of the older kind, which are not zips, need PyTorch (extra `torch`), whose own tensors-only reader
is used.
"""

import collections
import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import first_line

LARGEST_BYTES = 2**33  # of all tensors of a file
LARGEST_GAIN = 20  # by which a zip may be smaller than what it holds
MOST_SHARED = (
    4  # tensors may share their bytes; in all they may have so many times those of the file
)
_STORAGE_TYPES = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class _StorageName(str):
    """Stands for torch.FloatStorage and the like, which a file only names."""


class _Function:
    """A function that a file may call. A pickle can also set the attributes of what it names: this
    has none."""

    __slots__ = ("_call",)

    def __init__(self, call):
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments):
        return self._call(*arguments)

    def __setattr__(self, name, value):
        raise pickle.UnpicklingError("it changes the reader")

    def __reduce_ex__(self, protocol):
        raise pickle.UnpicklingError("it copies the reader")


def _rebuild_tensor(storage, offset, size, stride, *unused) -> np.ndarray:
    """A strided part of a storage, as an array of its own."""
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise pickle.UnpicklingError("it has a tensor without storage")
    size, stride, offset = tuple(map(int, size)), tuple(map(int, stride)), int(offset)
    if min((offset, *size, *stride)) < 0:
        raise pickle.UnpicklingError("it has a tensor of negative size")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) > len(storage) or (0 not in size and last >= len(storage)):
        raise pickle.UnpicklingError("it has a tensor that reaches beyond its storage")
    if 0 in size:
        return np.zeros(size, storage.dtype)
    strides = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, strides).copy()


def _rebuild_parameter(data, *unused) -> np.ndarray:
    return data


class _Reader(pickle._Unpickler):
    """An unpickler that knows a handful of names. It is Python's own, as the one in C reserves
    memory for as many objects as a file claims to have.

    `left` is the number of bytes that its tensors may have.
    """

    def __init__(self, file, read_storage, left: int):
        super().__init__(file)
        self._read_storage, self._left = read_storage, left

    def _rebuild(self, storage, *more) -> np.ndarray:
        tensor = _rebuild_tensor(storage, *more)
        self._left -= tensor.nbytes
        if self._left < 0:
            raise pickle.UnpicklingError("its tensors are far larger than the file")
        return tensor

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGE_TYPES:
            return _StorageName(name)
        known = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _Function(self._rebuild),
            ("torch._utils", "_rebuild_parameter"): _Function(_rebuild_parameter),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no checkpoint of tensors needs"
            )
        return known[module, name]

    def persistent_load(self, pid) -> np.ndarray:
        kind, storage, key, _, count = pid
        if kind != "storage" or not isinstance(storage, _StorageName) or not isinstance(key, str):
            raise pickle.UnpicklingError("it has a tensor of an unknown kind")
        return self._read_storage(key, _STORAGE_TYPES[storage], int(count))


def read_torch_file(path: str | Path) -> Any:
    """What torch.save wrote, with numpy arrays in place of tensors; an InputError for anything
    else."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint file {path}")
    if not zipfile.is_zipfile(path):
        return _read_with_torch(path)
    try:
        with zipfile.ZipFile(path) as file:
            return _read_zip(file)
    except Exception as error:  # a pickle, and a zip, can be wrong in any way
        what = first_line(error)[:150]
        raise InputError(f"{path} was refused: {what}; nothing of it was run") from None


def _read_zip(file: zipfile.ZipFile) -> Any:
    names = [name for name in file.namelist() if name.split("/")[1:] == ["data.pkl"]]
    if len(names) != 1:
        raise ValueError("it is a zip, but not one that torch.save wrote")
    size = sum(entry.file_size for entry in file.infolist())
    packed = sum(entry.compress_size for entry in file.infolist())
    if size > LARGEST_BYTES or size > LARGEST_GAIN * packed + 2**20:  # torch does not compress
        raise ValueError(f"it unpacks to {size / 2**30:.1f} GiB")
    folder = names[0].rsplit("/", 1)[0]
    if f"{folder}/byteorder" in file.namelist() and file.read(f"{folder}/byteorder") != b"little":
        raise ValueError("its numbers are big-endian; save it again on an ordinary machine")
    storages: dict[tuple[str, np.dtype], np.ndarray] = {}

    def read_storage(key: str, dtype: np.dtype, count: int) -> np.ndarray:
        if (key, dtype) not in storages:
            storages[key, dtype] = np.frombuffer(file.read(f"{folder}/data/{key}"), dtype, count)
        return storages[key, dtype]

    return _Reader(io.BytesIO(file.read(names[0])), read_storage, MOST_SHARED * size).load()


def _read_with_torch(path: Path) -> Any:
    """A file of the kind before torch 1.6, by PyTorch's reader that accepts nothing but tensors."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path} is not in the zip format of torch.save: save it again with PyTorch 1.6 or"
            " newer, or let PyTorch read it here (pip install 'lvcg-jax[torch]')"
        ) from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        what = first_line(error)[:150]
        raise InputError(f"{path} was refused by PyTorch's tensors-only reader: {what}") from None
    return _as_numpy(content)


def _as_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_numpy(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_numpy(one) for one in value]
    return np.asarray(value.detach().numpy()) if hasattr(value, "detach") else value
