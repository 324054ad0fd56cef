"""Memory that is not there, told in one line with what to lower."""

import contextlib
import re
from collections.abc import Iterator

from jax.errors import JaxRuntimeError

from data_prep.base.errors import InputError


@contextlib.contextmanager
def fits_in_memory(what: str, remedy: str) -> Iterator[None]:
    """Within this context, an allocation that fails is an InputError: `what` does not fit.

    XLA's own is a JaxRuntimeError like many others, known by its first word; numpy's is a
    MemoryError.
    """
    try:
        yield
    except (MemoryError, JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = re.search(r"allocat\w+ (\d[\d.]*) ?(\w+)?", str(error))
        asked = f" (asked for {found[1]} {found[2] or 'bytes'})" if found else ""
        raise InputError(f"out of memory: {what} does not fit{asked}; {remedy}") from None
