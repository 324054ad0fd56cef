"""Progress bars: redrawn often in a terminal, seldom in a log file."""

import sys

from tqdm import tqdm


def progress_bar(*args, **options) -> tqdm:
    """tqdm, redrawn at most every ten seconds if stderr is not a terminal."""
    lively = sys.stderr.isatty()
    return tqdm(
        *args,
        **{
            "mininterval": 0.2 if lively else 10.0,
            "maxinterval": 60.0,
            "dynamic_ncols": lively,
            **options,
        },
    )
