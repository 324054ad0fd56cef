"""The authors' checkpoints: read without PyTorch, never executed, converted, and used like any
other run."""

import collections
import os
import pickle
import sys
import types
import zipfile
from unittest import mock

import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run
from helpers.golden import CHECKPOINT

from data_prep.base.errors import InputError
from lvcg_jax import LVCG
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.export.import_torch import import_checkpoint, main
from lvcg_jax.export.torch_file import read_torch_file
from lvcg_jax.probe.study import probe_task
from lvcg_jax.reconstruct.__main__ import main as reconstruct


def _named(module, *names):
    """A module with these names in it, for a pickle to refer to."""
    made = types.ModuleType(module)
    for name in names:
        setattr(made, name, type(name, (), {"__module__": module}))
    return made


TORCH = _named("torch", "FloatStorage", "HalfStorage")
UTILS = _named("torch._utils", "_rebuild_tensor_v2")


class Storage:
    """A tensor storage as torch.save names it."""

    def __init__(self, key, count, kind="FloatStorage"):
        self.key, self.count, self.kind = key, count, kind


class Tensor:
    """Pickles as a tensor does."""

    def __init__(self, storage, size, stride, offset=0):
        self.arguments = (storage, offset, size, stride, False, collections.OrderedDict())

    def __reduce__(self):
        return UTILS._rebuild_tensor_v2, self.arguments


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            return ("storage", getattr(TORCH, obj.kind), obj.key, "cpu", obj.count)
        return None


def write(path, content, storages=None, byteorder=b"little"):
    """A zip as torch.save writes it, with this pickle."""
    names = mock.patch.dict(sys.modules, {"torch": TORCH, "torch._utils": UTILS})
    with zipfile.ZipFile(path, "w") as file:
        with names, file.open("archive/data.pkl", "w") as data:
            Pickler(data, protocol=2).dump(content)
        file.writestr("archive/byteorder", byteorder)
        for key, values in (storages or {}).items():
            file.writestr(f"archive/data/{key}", values.tobytes())
    return path


# ---- the reader


def test_reads_what_torch_saved():
    content = read_torch_file(CHECKPOINT)
    assert content["global_step"] == 30
    group = content["optimizer_state_dict"]["param_groups"][0]
    assert group["lr"] == 5e-4 and tuple(group["betas"]) == (0.9, 0.999)
    tensors = content["model_state_dict"]
    assert tensors["beat_encoder.stem.0.weight"].shape == (8, 3, 7)
    assert tensors["beat_encoder.stem.1.num_batches_tracked"] == 30
    np.testing.assert_allclose(tensors["all_lead_directions"][1], [0.5, 0.86603, 0], atol=1e-5)


def test_shared_storages_strides_and_types(tmp_path):
    values = np.arange(12, dtype=np.float32)
    content = {
        "whole": Tensor(Storage("0", 12), (3, 4), (4, 1)),
        "turned": Tensor(Storage("0", 12), (4, 3), (1, 4)),
        "part": Tensor(Storage("0", 12), (2,), (4,), offset=5),
        "half": Tensor(Storage("1", 2, "HalfStorage"), (2,), (1,)),
        "none": Tensor(Storage("0", 12), (0, 4), (4, 1)),
    }
    found = read_torch_file(
        write(tmp_path / "a.pt", content, {"0": values, "1": np.array([1, 2], np.float16)})
    )
    np.testing.assert_array_equal(found["whole"], values.reshape(3, 4))
    np.testing.assert_array_equal(found["turned"], values.reshape(3, 4).T)
    np.testing.assert_array_equal(found["part"], [5, 9])
    assert found["half"].dtype == np.float16 and found["none"].shape == (0, 4)


@pytest.mark.parametrize("where", ["zip", "bare"])
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path, where, monkeypatch):
    """The file would make another file when it is unpickled; PyTorch is not there to be asked."""
    sign = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {sign}",)

    path = tmp_path / "trap.pt"
    if where == "zip":
        write(path, {"model_state_dict": {"beat_encoder.proj.weight": Trap()}})
    else:
        path.write_bytes(pickle.dumps({"model_state_dict": Trap()}))
    monkeypatch.setitem(sys.modules, "torch", None)  # import torch fails
    with pytest.raises(
        InputError,
        match="system, which no checkpoint of tensors needs; nothing of it was run|zip format",
    ):
        import_checkpoint(path, tmp_path / "run")
    assert not sign.exists() and not (tmp_path / "run").exists()
    pickle.loads(pickle.dumps(Trap()))  # it is a trap indeed
    assert sign.exists()


@pytest.mark.parametrize(
    "module, name",
    [("builtins", "eval"), ("torch", "load"), ("numpy", "array"), ("torch.nn", "Linear")],
)
def test_any_name_but_those_of_tensors_is_refused(tmp_path, module, name):
    text = f"c{module}\n{name}\n."  # the pickle of a bare name
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("archive/data.pkl", text)
    with pytest.raises(InputError, match=f"asks for {module}.{name}"):
        read_torch_file(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "tensor, words",
    [
        (Tensor(Storage("0", 4), (3, 4), (4, 1)), "beyond its storage"),
        # would fill the memory
        (Tensor(Storage("0", 4), (10**6, 10**6), (0, 0)), "beyond its storage"),
        (Tensor(Storage("0", 4), (2,), (1,), offset=-3), "negative"),
        (Tensor(Storage("0", 400), (2,), (1,)), "buffer"),  # fewer bytes than it says
        (Tensor(Storage("../../0", 4), (2,), (1,)), "no item"),
    ],
)
def test_a_tensor_that_is_not_there_is_refused(tmp_path, tensor, words):
    write(tmp_path / "a.pt", {"x": tensor}, {"0": np.zeros(4, np.float32)})
    with pytest.raises(InputError, match=words):
        read_torch_file(tmp_path / "a.pt")


def test_other_files_are_told_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no checkpoint file"):
        read_torch_file(tmp_path / "nothing.pt")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as file:
        file.writestr("notes.txt", "no pickle")
    with pytest.raises(InputError, match="not one that torch.save wrote"):
        read_torch_file(tmp_path / "other.pt")
    write(tmp_path / "big.pt", {}, byteorder=b"big")
    with pytest.raises(InputError, match="big-endian"):
        read_torch_file(tmp_path / "big.pt")
    (tmp_path / "cut.pt").write_bytes(CHECKPOINT.read_bytes()[:50_000])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="save it again .* or .*pip install"):
        read_torch_file(tmp_path / "cut.pt")


def test_older_files_go_to_pytorchs_tensors_only_reader(tmp_path, monkeypatch):
    """A stand-in for PyTorch: what matters is that it is asked for tensors only, and what is made
    of its answer."""
    (tmp_path / "old.pt").write_bytes(b"\x80\x02 not a zip")
    asked = {}

    class OldTensor:
        def detach(self):
            return self

        def numpy(self):
            return np.ones(3)

    def load(path, **options):
        asked.update(options)
        return {"model_state_dict": {"a": OldTensor()}, "global_step": 4}

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    found = read_torch_file(tmp_path / "old.pt")
    assert asked["weights_only"] is True and found["global_step"] == 4
    np.testing.assert_array_equal(found["model_state_dict"]["a"], np.ones(3))


# ---- the conversion


def test_widths_are_those_of_the_tensors_and_the_rest_is_release(imported_run):
    config = LVCG.load(imported_run).config
    model = config.model
    assert (model.token_dim, model.state_dim, model.rhythm_dim, model.refine) == (16, 16, 128, 8)
    assert tuple(model.stage_features) == (8, 12, 16, 16) and tuple(model.stage_blocks) == (
        2,
        1,
        1,
        2,
    )
    assert tuple(model.decoder_features) == (16, 8, 8, 4, 4) and model.decoder_seed_features == 16
    assert (
        config.geometry.matrix == "paper"
        and config.geometry.eps == 0.1
        and model.structure == "anchor"
    )


def test_imported_run_embeds_probes_and_reconstructs(imported_run, shards_dir, tmp_path):
    model = LVCG.load(imported_run)
    assert model.checkpoint.startswith("authors@30#")
    table = embed_dataset(model, shards_dir, progress=False)
    assert table.embedding.shape[1] == 160 and np.isfinite(table.embedding).all()
    task = next(iter(table.tasks))
    result = probe_task(
        {"authors": table.embedding}, table, task, fractions=(1.0,), seeds=1, resamples=20
    )
    assert 0 < result["cells"][0]["macro_auroc"] <= 1
    flags = [
        f"--checkpoint={imported_run}",
        f"--data={shards_dir}",
        "--visible=II,V2,V5",
        f"--out={tmp_path}",
    ]
    assert reconstruct([*flags, "--methods=lvcg,zero", "--resamples=20", "--limit=8"]) == 0
    assert "lvcg" in (tmp_path / "table.md").read_text()


def _changed(tmp_path, change):
    """The small checkpoint with something changed, saved again."""
    content = read_torch_file(CHECKPOINT)
    tensors = dict(content["model_state_dict"])
    change(tensors)
    storages, saved = {}, {}
    for i, (name, x) in enumerate(tensors.items()):
        x = np.asarray(x, np.float32)
        storages[str(i)] = x
        strides = tuple(np.array(np.empty(x.shape, np.int8).strides, int).tolist())
        saved[name] = Tensor(Storage(str(i), x.size), x.shape, strides)
    return write(tmp_path / "changed.pt", {"model_state_dict": saved}, storages)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.pop("beat_encoder.proj.weight"), "no tensor 'beat_encoder.proj.weight'"),
        (
            lambda t: t.update({"norm_rhythm.weight": np.ones(7)}),
            "norm_rhythm/scale.*shape \\(7,\\).*\\(128,\\)",
        ),
        (lambda t: t.update({"ecg_decoder.net.2.bias": np.full(1, np.nan)}), "not finite"),
        (lambda t: t.clear(), "no model_state_dict"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_in_one_line(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        import_checkpoint(_changed(tmp_path, change), tmp_path / "run")


def test_another_geometry_and_unknown_tensors_are_kept_and_told(tmp_path, capsys):
    def change(tensors):
        tensors["all_lead_directions"] = tensors["all_lead_directions"][::-1].copy()
        tensors["extra.weight"] = np.ones(3)

    assert main([f"--checkpoint={_changed(tmp_path, change)}", f"--out={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().out
    assert "parameters (token 16" in said and "left out: extra.weight" in said
    rows = LVCG.load(tmp_path / "run").directions
    np.testing.assert_allclose(rows[-1], [1, 0, 0], atol=1e-5)


def test_command_line(tmp_path):
    done = run(
        "lvcg_jax.export.import_torch",
        f"--checkpoint={tmp_path / 'none.pt'}",
        f"--out={tmp_path / 'run'}",
    )
    assert_one_line_error(done, "none.pt")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        main([f"--checkpoint={CHECKPOINT}", f"--out={tmp_path / 'run'}"])


def _raw(path, opcodes):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", opcodes)
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/data/0", np.zeros(2**16, np.float32).tobytes())
    return path


def test_a_memo_of_millions_takes_no_memory(tmp_path):
    path = _raw(tmp_path / "a.pt", b"\x80\x02K\x01r\xff\xff\xff\x7f.")  # LONG_BINPUT 2^31 - 1
    assert read_torch_file(path) == 1


def test_a_file_cannot_change_the_reader(tmp_path):
    """BUILD sets attributes of whatever lies on the stack."""
    name, state = b"ctorch._utils\n_rebuild_tensor_v2\n", b"}X\x0c\x00\x00\x00__defaults__)s"
    for build in (state + b"b", b"N" + state + b"\x86b"):
        with pytest.raises(InputError, match="was refused"):
            read_torch_file(_raw(tmp_path / "a.pt", b"\x80\x02" + name + build + b"."))


def test_tensors_that_share_a_storage_are_counted(tmp_path):
    storage = {"0": np.zeros(2**16, np.float32)}
    many = [Tensor(Storage("0", 2**16), (2**16,), (1,)) for _ in range(6)]
    with pytest.raises(InputError, match="far larger than the file"):
        read_torch_file(write(tmp_path / "a.pt", many, storage))
    assert len(read_torch_file(write(tmp_path / "b.pt", many[:3], storage))) == 3


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda t: t.update({"global_rr_embedding.attn_pool.in_proj_bias": np.ones(97)}),
            "in_proj_bias' has 97 rows, which is no multiple of 3",
        ),
        (lambda t: t.update({"beat_decoder.proj.bias": np.ones(9)}), "'beat_decoder.proj' has"),
        (
            lambda t: t.update(
                {
                    f"beat_decoder.blocks.{k}.conv1.weight": t["beat_decoder.blocks.0.conv1.weight"]
                    for k in range(30)
                }
            ),
            "30 decoder blocks",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_told_in_one_line(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        import_checkpoint(_changed(tmp_path, change), tmp_path / "run")
