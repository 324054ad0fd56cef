"""The most memory that this process has held."""

import re
import resource
from pathlib import Path


def peak_memory() -> float:
    """GiB. On Linux of this program alone: getrusage also counts what the process held before it was this program."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return (int(found.group(1)) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 2**20
