"""Embeddings by ONNX Runtime: a file of `lvcg export --format=onnx`, for machines without JAX.

    model = OnnxModel("model.onnx")  # model.json lies beside it
    parts = model.embed(signal, 500, ["I", "II", "V2"])  # [samples, leads] in mV
    parts["structure"]  # [w,.], a row for every window of at most ten seconds

Beats are found and normalised by data_prep. Nothing here needs JAX: numpy, scipy and onnxruntime
are enough.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, lead_mask, parse_leads
from data_prep.ecg.preprocess import Preprocess, Window


class OnnxModel:
    """An exported model.

    Attributes:
      facts: the content of the JSON file: inputs, outputs, preprocessing, checkpoint.
      preprocess: what every signal goes through.
    """

    def __init__(self, path: str | Path):
        """Reads NAME.onnx and NAME.json; an InputError unless they belong together."""
        import onnxruntime

        path = Path(path)
        try:
            data, self.facts = path.read_bytes(), json.loads(path.with_suffix(".json").read_text())
            matches = hashlib.sha256(data).hexdigest() == self.facts["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read with its JSON file ({error})") from None
        if not matches:
            raise InputError(f"{path} is damaged: its checksum is not that in its JSON file")
        self.preprocess = Preprocess.from_dict(self.facts["preprocess"])
        if self.preprocess.hash() != self.facts["preprocess_hash"]:
            raise InputError(
                f"{path} needs the preprocessing {self.facts['preprocess_hash']}, which this"
                " version does not do: install the version that it was exported with"
            )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )

    def embed(
        self,
        signal: np.ndarray,
        fs: float,
        leads: Sequence[str],
        visible: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """The parts of the embedding of a record [samples, leads] in mV by name, [w,.] each; of
        `leads` the model sees those that are `visible`, or all."""
        windows = self.preprocess.for_use().prepare(np.asarray(signal), fs, list(leads))
        shown = lead_mask(np.isin(LEADS, parse_leads(",".join(visible or LEADS))))
        rows = [self.embed_window(window, window.lead_mask & shown) for window in windows]
        return {name: np.concatenate([row[name] for row in rows]) for name in self.facts["parts"]}

    def embed_window(self, window: Window, visible: int) -> dict[str, np.ndarray]:
        """The parts [1,.] of one window; bit i of `visible` says that LEADS[i] may be seen."""
        if not visible:
            raise InputError(f"none of the leads can be seen in window {window.window}")
        slots = self.facts["inputs"]["beats"]["shape"][1]

        def fill(x: np.ndarray, dtype: str) -> np.ndarray:
            return np.pad(x, [(0, slots - len(x))] + [(0, 0)] * (x.ndim - 1)).astype(dtype)[None]

        given = {
            "beats": fill(window.beats, "float32"),
            "length": fill(window.length, "int32"),
            "complete": fill(window.complete, "bool"),
            "num_beats": np.array([len(window.length)], np.int32),
            "lead_mask": np.array([visible], np.int32),
            "scale": np.asarray(window.scale, np.float32)[None],
        }
        names = list(self.facts["parts"])
        read = {input.name for input in self._session.get_inputs()}
        found = self._session.run(names, {k: x for k, x in given.items() if k in read})
        return dict(zip(names, found, strict=True))
