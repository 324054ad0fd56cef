"""Programs that JAX has compiled, kept for the next start of a command.

Compiling takes most of the time of a command that embeds one file. So commands keep what they
compile in the user's cache folder, `~/.cache/lvcg_jax` (`~/Library/Caches` on macOS), in a folder
for each kind of processor: programs for one may not run on another. `LVCG_COMPILE_CACHE=off` turns
that off, `LVCG_COMPILE_CACHE=FOLDER` chooses another place; JAX_COMPILATION_CACHE_DIR, if set, goes
first. The folder may be deleted at any time.
"""

import hashlib
import os
import platform
import re
import sys
import warnings
from pathlib import Path

SWITCH, OF_JAX = "LVCG_COMPILE_CACHE", "JAX_COMPILATION_CACHE_DIR"
CPU_FACTS = Path("/proc/cpuinfo")  # Linux only


def keep_compiled_programs() -> None:
    """Makes JAX in this process, and in those that it starts, keep what it compiles.

    For commands; JAX may have been imported already or not.
    """
    chosen = os.environ.get(SWITCH, "")
    if OF_JAX in os.environ or chosen.lower() in ("off", "0", "no"):
        return
    folder = (Path(chosen) if chosen else _cache_home() / "lvcg_jax") / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that is read-only, or none at all
        return
    if not os.access(folder, os.W_OK):
        return
    os.environ[OF_JAX] = str(folder)
    # another process may be writing the entry that is read: it is compiled again, without a word
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _cache_home() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    return Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache").expanduser()


def _processor() -> str:
    """A name for the instructions that this machine's processor has."""
    facts = f"{platform.machine()} {platform.processor()}"
    if CPU_FACTS.exists():
        found = re.search(r"^(flags|Features)\s*:.*$", CPU_FACTS.read_text(), re.MULTILINE)
        facts += found[0] if found else ""
    return f"{platform.machine()}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"
