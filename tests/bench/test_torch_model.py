"""The PyTorch model is the same model: else a ratio of speeds would mean nothing."""

import json

import jax
import numpy as np
import optax
import pytest
from helpers.packed_batch import ALL_LEADS, pack, random_records, random_variables, tiny_config

from lvcg_jax.bench import __main__ as bench_door
from lvcg_jax.bench.plain_model import make_plain_model, pad_batch
from lvcg_jax.config.build import make_model
from lvcg_jax.model.network import PARTS
from lvcg_jax.runs.state import make_optimizer

torch = pytest.importorskip("torch")

from lvcg_jax.bench import torch_model, torch_programs  # noqa: E402

N = 6  # max_beats here
RAGGED, FULL = (4, 1, N, 3, 0, 5, 2, 3), (N,) * 8
SHOWN = 0b100110010111
# one of each kind of module: its name, and how PyTorch's gradient becomes one of JAX
SOME = {
    ("encoder", "stem_conv", "kernel"): ("encoder.stem_conv.weight", np.transpose),
    ("encoder", "stage1_block0", "pair", "norm1", "scale"): (
        "encoder.stage1_block0.pair.norm1.weight",
        np.asarray,
    ),
    ("encoder", "token", "kernel"): ("encoder.token.weight", np.transpose),
    ("temporal", "start", "bias"): ("temporal.start.bias", np.asarray),
    ("temporal", "step", "gru", "hn", "kernel"): (
        "temporal.gru.weight_hh",
        lambda x: x[2 * len(x) // 3 :].T,
    ),
    ("decoder", "up1", "pair", "conv1", "kernel"): ("decoder.up1.pair.conv1.weight", np.transpose),
    ("decoder", "out", "bias"): ("decoder.out.bias", np.asarray),
}
OF_RHYTHM = {
    ("rhythm", "pool", "query"): ("rhythm.pool.query", np.asarray),
    ("head", "ratio", "kernel"): ("head.ratio.weight", np.transpose),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Arrays are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _setting(counts=RAGGED, packed=False, whole=True, **fields):
    """Config, the plain JAX model, the PyTorch model with the same variables, and a padded
    batch."""
    config = tiny_config()
    config.update_from_flattened_dict({"model.dropout": 0.0, "geometry.eps": 1e-2, **fields})
    masks = [ALL_LEADS, 0b111111111000, ALL_LEADS, ALL_LEADS & ~2, *[ALL_LEADS] * 4]
    records = random_records(counts, config.preprocess.beat_samples, lead_masks=masks)
    batch = pad_batch(pack(records, groups=1, capacity=sum(counts)), N)
    batch["complete"] &= whole
    variables = random_variables(make_model(config), batch, N)
    model = torch_model.TorchLVCG(config, packed)
    torch_model.load_variables(model, variables)
    return config, make_plain_model(config), variables, model, batch


def _close(one, other, message):
    one, other = np.asarray(one), np.asarray(other)
    np.testing.assert_allclose(
        one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max(), err_msg=message
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norm, exact", [("batch", False), ("layer", True)])
def test_same_embeddings(norm, exact, packed):
    choices = {"model.norm": norm, "model.gelu_exact": exact}
    _, plain, variables, model, batch = _setting(packed=packed, **choices)
    embed = jax.jit(lambda b: plain.apply(variables, b, b["lead_mask"], N, method="embed"))
    wanted, tensors = embed(batch), torch_model.to_tensors(batch)
    with torch.inference_mode():
        found = model.eval().embed(tensors, tensors["lead_mask"])
    for name in PARTS:
        _close(found[name], wanted[name][:, 0], name)
        assert np.abs(wanted[name]).max() > 0.1


@pytest.mark.parametrize(
    "train, packed, counts, whole, reduction, rhythm",
    [
        (False, False, RAGGED, True, "mean", 0.0),
        (True, True, RAGGED, True, "sum", 1.0),
        # no slot is empty, none comes before the first beat
        (True, False, FULL, False, "mixed", 1.0),
    ],
)
def test_same_losses_and_gradients(train, packed, counts, whole, reduction, rhythm):
    fields = {"loss.reduction": reduction, "loss.lambda_rhythm": rhythm}
    fields["model.rhythm_intervals"] = "complete" if whole else "all"
    config, plain, variables, model, batch = _setting(counts, packed, whole, **fields)

    def loss(params):
        key = jax.random.key(3) if train else None
        visible, full = batch["lead_mask"] & SHOWN, {**variables, "params": params}
        outputs, updates = plain.apply(full, batch, visible, key, N, mutable=["batch_stats"])
        terms = plain.loss_terms(outputs, batch, visible, config.loss)
        return terms["loss"].sum(), (terms, outputs.get("rr_hidden"), updates["batch_stats"])

    gradient, (wanted, hidden, stats) = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])

    tensors = torch_model.to_tensors(batch)
    visible = tensors["lead_mask"] & SHOWN
    hidden = None if hidden is None else torch.tensor(np.asarray(hidden))
    outputs = model.train(train)(tensors, visible, hidden)
    terms = torch_model.record_losses(outputs, tensors, visible, config.loss)
    terms["loss"].sum().backward()

    for name, values in terms.items():
        _close(values.detach(), wanted[name].reshape(-1), name)
    for path, (name, as_jax) in (SOME | (OF_RHYTHM if rhythm else {})).items():
        ours = gradient
        for part in path:
            ours = ours[part]
        _close(as_jax(model.get_parameter(name).grad.numpy()), ours, name)
        assert np.abs(ours).max() > 1e-4
    mean = stats["decoder"]["out_norm"]["mean"]
    _close(model.get_buffer("decoder.out_norm.running_mean"), mean, "running mean")


def test_a_training_step_clips_and_updates_as_ours_does():
    """Both start from the same gradient."""
    config, _, variables, model, _ = _setting()
    training = torch_programs.TorchTraining(model)
    rng, params = np.random.default_rng(0), variables["params"]
    gradient = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
    tx = make_optimizer(config)
    state, update = tx.init(params), jax.jit(tx.update)
    given = torch_model.TorchLVCG(config)
    torch_model.load_variables(given, variables | {"params": gradient})
    trained = [name for name, x in model.named_parameters() if x.requires_grad]
    assert not any(name.startswith("rhythm.") for name in trained)
    wanted = torch_model.TorchLVCG(config)
    for _ in range(2):
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        for name in trained:
            model.get_parameter(name).grad = given.get_parameter(name).detach().clone()
        training.update()
    torch_model.load_variables(wanted, variables | {"params": params})
    for name in trained:
        if not name.endswith("bias_hh"):  # PyTorch has two more biases there
            _close(*(m.get_parameter(name).detach() for m in (model, wanted)), name)


def test_training_lowers_the_loss():
    *_, model, batch = _setting(**{"optim.ema_decay": 0.9, "optim.accumulate": 2})
    training = torch_programs.TorchTraining(model)
    tensors = torch_model.to_tensors(batch)
    torch.manual_seed(0)
    losses = [training.step([tensors, tensors]) for _ in range(20)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert training.average.n_averaged == 20


def test_views_are_subsets_of_the_leads_that_a_record_has():
    subsets = torch.tensor([0b111, 0b11000, 0b110000, 0b1111000])
    available = torch.tensor([ALL_LEADS] * 3000 + [0b111, 0b1000011])
    torch.manual_seed(0)
    drawn = torch_programs.draw_views(available, subsets, 2)
    values, counts = drawn[:3000].unique(return_counts=True)
    # sizes 2, 3 and 4 as often as one another; two subsets share size 2
    share = dict(zip(values.tolist(), (counts / 3000).tolist(), strict=True))
    wanted = {0b111: 1 / 3, 0b11000: 1 / 6, 0b110000: 1 / 6, 0b1111000: 1 / 3}
    assert share == pytest.approx(wanted, abs=0.04)
    assert drawn[3000] == 0b111
    assert drawn[3001] & ~0b1000011 == 0 and bin(drawn[3001]).count("1") == 2


@pytest.mark.parametrize("name", ["torch", "torch_packed"])
def test_the_bench_measures_it_in_turns_with_ours(name, tmp_path, capsys):
    (tmp_path / "tiny.py").write_text(
        "from helpers.packed_batch import tiny_config as get_config\n"
    )
    flags = ["--parts=train,embed", f"--baseline={name}", "--repeats=2", "--sizes=64"]
    assert bench_door.main([f"--config={tmp_path / 'tiny.py'}", *flags]) == 0
    machine, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert machine["torch"] == torch.__version__.partition("+")[0]
    for line in lines:
        baseline = line["baseline"]
        assert baseline["name"] == name and baseline["compile_seconds"] == 0
        assert "program_memory_gib" not in baseline and baseline["beats"] == line["beats"]
        speeds = line["records_per_second"], baseline["records_per_second"]
        assert line["ratio"] == pytest.approx(speeds[0] / speeds[1], rel=1e-3)
    several = lines[1]["several_batches"]["baseline"]
    assert several["records_per_second_with_compiling"] == several["records_per_second"] > 0
