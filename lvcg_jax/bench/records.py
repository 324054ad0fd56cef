"""Made-up records with the beat counts of real ones, for measurements without a data set."""

import numpy as np

from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess

# PTB-XL's training records with 6, 7, ... 20 intervals (peaks=vcg), in thousandths, and their mean.
BEAT_COUNT_SHARES = (1, 1, 6, 26, 82, 141, 174, 164, 129, 91, 66, 42, 27, 17, 33)
MEAN_BEATS = 13.3


class RandomRecords:
    """Stands in for a ShardSet: records with PTB-XL's beat counts and random beats."""

    def __init__(self, preprocess: Preprocess, records: int = 4096):
        self.preprocess = preprocess
        shares, counts = np.array(BEAT_COUNT_SHARES), np.arange(6, 21)
        drawn = np.random.default_rng(0).choice(counts, records, p=shares / shares.sum())
        self.counts = np.minimum(drawn, preprocess.max_beats)

    def __len__(self) -> int:
        return len(self.counts)

    def read(self, numbers) -> list[dict]:
        return [self._example(int(number)) for number in numbers]

    def _example(self, number: int) -> dict:
        rng, n = np.random.default_rng(number), self.counts[number]
        shape = (n, len(LEADS), self.preprocess.beat_samples)
        samples = round(self.preprocess.seconds * self.preprocess.rate)
        return {
            "beats": rng.normal(size=shape).astype(np.float16),
            "complete": np.arange(n) % (n - 1) > 0,
            "length": rng.integers(60, 120, n),
            "lead_mask": 2 ** len(LEADS) - 1,
            "scale": np.full(len(LEADS), 0.2, np.float32),
            "uid": number,
            "patient_id": str(number),
            "signal": rng.normal(size=(len(LEADS), samples)).astype(np.float16),
        }
