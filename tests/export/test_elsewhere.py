"""A model away from its run: as ONNX without JAX, and as a folder that reads back bit for bit."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from helpers.commands import ROOT
from helpers.raw_files import ecg

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from lvcg_jax import LVCG
from lvcg_jax.export import __main__ as door
from lvcg_jax.export.onnx_graph import make_onnx
from lvcg_jax.export.onnx_model import OnnxModel
from lvcg_jax.runs import weights

VIEWS = (None, ["I", "II", "V2"], ["II"], ["V1", "V2", "V3"])
WITH_THREE_LIBRARIES = """
import sys
allowed = {"numpy", "scipy", "onnxruntime", "data_prep", "lvcg_jax", *sys.stdlib_module_names}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed and not name.startswith("_"):
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
import numpy as np
from lvcg_jax.export.onnx_model import OnnxModel
with np.load(sys.argv[2]) as record:
    signal, leads = record["signal"], record["leads"].tolist()
np.savez(sys.argv[2], **OnnxModel(sys.argv[1]).embed(signal, 500, leads))
"""


@pytest.fixture(scope="module")
def onnx_file(with_shape, tmp_path_factory):
    """NAME.onnx and NAME.json, as the command writes them."""
    folder = tmp_path_factory.mktemp("onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door.LVCG, "load", lambda *_: with_shape)
        flags = ["--checkpoint=shaped", "--format=onnx", f"--out={folder / 'model.onnx'}"]
        assert door.main(flags) == 0
    return folder / "model.onnx"


def test_onnx_gives_the_embeddings_of_jax_whatever_leads_are_seen(onnx_file, with_shape):
    exported = OnnxModel(onnx_file)
    signal = ecg(3, seconds=20)  # two windows
    for visible in VIEWS:
        expected = with_shape.embed(signal, 500, LEADS, visible=visible)
        found = exported.embed(signal, 500, LEADS, visible)
        assert list(found) == list(expected.parts)
        for name, part in expected.parts.items():
            assert part.shape[0] == 2 and np.abs(part).max() > 1e-2
            np.testing.assert_allclose(found[name], part, atol=1e-5, rtol=1e-5)


def test_onnx_needs_numpy_scipy_and_onnxruntime_alone(onnx_file, with_shape, tmp_path):
    np.savez(tmp_path / "x.npz", signal=ecg(4), leads=LEADS)
    done = subprocess.run(
        [sys.executable, "-c", WITH_THREE_LIBRARIES, onnx_file, tmp_path / "x.npz"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = with_shape.embed(ecg(4), 500, LEADS)
    with np.load(tmp_path / "x.npz") as found:
        np.testing.assert_allclose(found["structure"], expected.parts["structure"], atol=1e-5)


def test_a_damaged_onnx_file_is_refused(onnx_file, tmp_path):
    for name in ("model.onnx", "model.json"):
        shutil.copy(onnx_file.with_name(name), tmp_path)
    with pytest.raises(InputError, match="cannot be read with its JSON file"):
        OnnxModel(tmp_path / "other.onnx")
    data = bytearray(onnx_file.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(InputError, match="its checksum is not that"):
        OnnxModel(tmp_path / "model.onnx")


def test_loops_and_indices_mean_in_onnx_what_they_mean_in_jax():
    """The parts of the conversion where a mistake is easy, on numbers of which each differs."""
    import jax
    import jax.numpy as jnp

    def function(x, at):
        halved = jax.lax.while_loop(lambda s: (s > 1).any(), lambda s: s / 2, x.astype(jnp.float16))
        total, steps = jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True)
        cut = jax.lax.dynamic_slice_in_dim
        places = jnp.arange(5) - 1  # some of them beyond the ends
        return {
            "pieces": jax.lax.map(lambda i: cut(x, i, 2), places),
            "of_rows": jax.lax.map(lambda i: jax.vmap(lambda row: cut(row, i, 2))(x), places),
            "halved": halved.astype(jnp.float32),
            "total": total,
            "steps": steps,
            "along": jnp.take_along_axis(x, at[:, None], axis=1),
            "columns": x[:, at],
            "each": jax.vmap(lambda row, i: row[i])(x, at),
            "outer": jnp.einsum("ab,cb->ca", x, x[::2]),
        }

    x, at = np.arange(12, dtype=np.float32).reshape(4, 3) / 7, np.array([2, 0, 1, 2], np.int32)
    given = {"x": x, "at": at}
    shapes = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in given.items()}
    made = make_onnx(function, shapes)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for name, expected in function(x, at).items():
        (found,) = session.run([name], given)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)
    with pytest.raises(InputError, match="'sort' of this model has no counterpart"):
        make_onnx(lambda x: {"y": jnp.sort(x)}, {"x": shapes["x"]})
    halve = jax.vmap(lambda row: jax.lax.while_loop(lambda s: s[0] > 1, lambda s: s / 2, row))
    with pytest.raises(InputError, match="a loop that ends row by row"):
        make_onnx(lambda x: {"y": halve(x)}, {"x": shapes["x"]})
    with pytest.raises(InputError, match="a piece from a place that is not fixed"):
        make_onnx(lambda x, at: {"y": jax.lax.dynamic_slice_in_dim(x, at[0], 2)}, shapes)
    assert onnx.checker.check_model(made) is None


def test_a_folder_for_the_hub_reads_back_bit_for_bit(trained_run, model, tmp_path, capsys):
    folder = tmp_path / "hub"
    flags = [f"--checkpoint={trained_run}", "--format=huggingface", f"--out={folder}"]
    assert door.main(flags) == 0 and "README.md" in capsys.readouterr().out
    again = LVCG.load(folder)
    assert again.checkpoint == model.checkpoint
    assert again.preprocess.hash() == model.preprocess.hash()
    signal = ecg(5)
    expected = model.embed(signal, 500, LEADS).embedding
    np.testing.assert_array_equal(again.embed(signal, 500, LEADS).embedding, expected)
    assert weights.config_of(folder).model.token_dim == model.config.model.token_dim
    # the header of the card is YAML, and the card has what every card has
    _, header, card = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "lvcg-jax"
    for words in ("LVCG.load", "## Data", "## Training", "Not a medical device", "0.67-40 Hz"):
        assert words in card, words
    assert str(trained_run.parent) not in card

    with pytest.raises(InputError, match="is not an empty folder"):
        door.main(flags)
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"step": 7}))
    with pytest.raises(InputError, match="its checksum is not the one in it"):
        LVCG.load(folder)
    (folder / "config.json").write_text(json.dumps(facts))
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="export or download it again"):
        LVCG.load(folder)


def test_packaged_weights_keep_their_scores_in_a_folder(packaged, monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "PACKAGED", packaged)
    flags = ["--checkpoint=paper", "--format=huggingface", f"--out={tmp_path / 'hub'}"]
    assert door.main(flags) == 0
    assert LVCG.load(tmp_path / "hub").checkpoint == LVCG.load("paper").checkpoint
    card = (tmp_path / "hub" / "README.md").read_text()
    assert card.count("## Scores") == 1 and card.count("## Preprocessing") == 1


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--format=onnx", "--out=model.stablehlo"], "must end in .onnx"),
        (["--format=onnx", "--out=m.onnx", "--platforms=cpu"], "--platforms is for"),
        (["--format=onnx", "--out=m.onnx"], "pip install lvcg-jax"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(flags, words, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=words.replace("[", "\\[")):
        door.main(["--checkpoint=nowhere", *flags])
