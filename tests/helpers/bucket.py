"""A bucket in memory, for tests of small files."""

import pytest

from data_prep.base import files


@pytest.fixture
def bucket_in_memory(monkeypatch):
    """gs:// as fsspec's file system in memory: small files only, as tensorstore knows nothing of
    it."""
    import fsspec
    from etils.epath import backend
    from fsspec.implementations.memory import MemoryFileSystem

    class Bucket(MemoryFileSystem):
        protocol = ("gcs", "gs")
        store, pseudo_dirs, cachable = {}, [""], False

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(str(path).replace("gs://", "memory://"))

    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: name == "gcsfs" or None)
    monkeypatch.setattr(fsspec, "filesystem", lambda name, **_: Bucket())
    backend.fsspec_backend._get_filesystem.cache_clear()
    yield Bucket
    backend.fsspec_backend._get_filesystem.cache_clear()
