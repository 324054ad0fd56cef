"""Networks that derive leads: what they may see, how they are trained, and what each is."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import kors_matrix
from data_prep.ecg.leads import LEADS, lead_mask, mask_leads
from lvcg_jax.data.entries import list_entries
from lvcg_jax.reconstruct import __main__ as reconstruct_door
from lvcg_jax.reconstruct.bands import REACH
from lvcg_jax.reconstruct.gaussian_beat import Gaussian, Posterior
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.learned import __main__ as fit_door
from lvcg_jax.reconstruct.learned import fitting
from lvcg_jax.reconstruct.learned.budget import count_flops
from lvcg_jax.reconstruct.learned.examples import draw_visible, hold_out, show
from lvcg_jax.reconstruct.learned.field import Field
from lvcg_jax.reconstruct.learned.network import LeadNetwork
from lvcg_jax.reconstruct.learned.networks import NETWORKS, parse_sizes, sizes_of
from lvcg_jax.reconstruct.learned.trained import (
    TrainedLeads,
    open_network,
    read_network,
    save_network,
)
from lvcg_jax.reconstruct.learned.vae_cnn import kl_divergence
from lvcg_jax.reconstruct.learned.widths import (
    Slots,
    find_modes,
    known_by,
    learn_by_number,
    learn_widths,
    stored_modes,
    stored_widths,
)
from lvcg_jax.reconstruct.linear import kim_matrix, regression_matrix
from lvcg_jax.reconstruct.one_record import default_method
from lvcg_jax.reconstruct.views import Windows

THREE = lead_mask(np.isin(LEADS, ["II", "V2", "V5"]))
SMALL = {
    "field": {"modes": 8, "width": 16, "layers": 1},
    "vae_cnn": {"features": (8, 8), "code": 4},
    "e_lstm": {"units": 4, "layers": 1},
    "nef_net": {"features": 16},
}
STEPS = 60  # of the whole budget


@pytest.fixture(scope="module")
def windows(shards_dir):
    entries = list_entries([ShardSet(shards_dir, "test")])[:3]
    return [w | {"visible": THREE, "signal": signal_of(w)} for w in Windows(entries)]


def shown_of(seed=0, samples=32, rows=2, visible=THREE):
    """Random visible leads."""
    x = np.random.default_rng(seed).normal(size=(rows, len(LEADS), samples)).astype(np.float32)
    sizes, seconds = np.full(x.shape[:2], 0.2), np.full(rows, 0.9)
    return show(x, x, np.tile(mask_leads(visible), (rows, 1)), sizes, seconds)


def learned_of(name, samples):
    """What a network would have learned before training: random modes."""
    if name != "field":
        return {}
    modes = np.random.default_rng(2).normal(size=(len(LEADS) * samples, SMALL[name]["modes"]))
    prior = np.eye(modes.shape[1], dtype=np.float32)
    learned = {"modes": np.linalg.qr(modes)[0].astype(np.float32), "common": prior}
    return learned | {"change": prior, "sizes": np.ones(len(prior), np.float32)}


def started(name, samples=32):
    """A small network with random weights: its call, and variables to call it with."""
    network, shown = NETWORKS[name](**SMALL[name]), shown_of(samples=samples)
    shown |= network.prepare(learned_of(name, samples), mask_leads(THREE))
    return network, jax.jit(network.init)(jax.random.key(1), shown)


def untrained(name, folder, preprocess, samples=32):
    """The same as a file."""
    network, variables = started(name, samples)
    facts = {"network": name, "sizes": sizes_of(network), "preprocess_hash": preprocess.hash()}
    facts["preprocess"] = preprocess.to_dict()
    path = folder / f"{name}.safetensors"
    save_network(path, variables["params"], learned_of(name, samples), facts)
    return TrainedLeads(name, path)


@pytest.mark.parametrize("name", NETWORKS)
def test_neither_hidden_leads_nor_other_records_reach_a_record(name, windows, shards_dir, tmp_path):
    method = untrained(name, tmp_path, ShardSet(shards_dir, "test").preprocess, samples=128)
    hidden = ~mask_leads(THREE)
    spoiled = windows[0] | {key: np.array(windows[0][key]) for key in ("beats", "signal")}
    spoiled["beats"][:, hidden], spoiled["signal"][hidden] = np.nan, np.nan
    other = windows[1] | {"visible": lead_mask(np.isin(LEADS, ["I", "V1"]))}
    alone = method.predict(windows[:1])[name][0]
    together = method.predict([other, spoiled, windows[2]])[name][1]
    assert alone.shape == windows[0]["signal"].shape and np.ptp(alone[hidden]) > 0
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_array_equal(alone[~hidden], windows[0]["signal"][~hidden])


def test_records_of_other_lengths_are_derived_together(windows, shards_dir, tmp_path):
    method = untrained("e_lstm", tmp_path, ShardSet(shards_dir, "test").preprocess)
    samples = windows[0]["signal"].shape[1] * 6 // 10
    short = windows[0] | {"signal": windows[0]["signal"][:, :samples], "num_samples": samples}
    found = method.predict([windows[1], short, windows[2]])["e_lstm"]
    assert [x.shape[1] for x in found] == [
        w["signal"].shape[1] for w in (windows[1], short, windows[2])
    ]
    np.testing.assert_allclose(found[1], method.predict([short])["e_lstm"][0], atol=1e-5)


def fit_small(shards_dir, out, name="vae_cnn", steps=STEPS, **options):
    each = budget_of(shards_dir, name)
    return fitting.fit_network(name, shards_dir, steps * each, out, sizes=SMALL[name], **options)


def budget_of(shards_dir, name):
    """FLOPs of a step, as the refusal of a budget that is too small says."""
    with pytest.raises(InputError) as error:
        fitting.fit_network(name, shards_dir, 1.0, "nowhere", sizes=SMALL[name])
    return float(str(error.value).split(" has ")[1].split()[0]) * 1.01


@pytest.fixture(scope="module")
def fitted(shards_dir, tmp_path_factory):
    """A small network after a few steps: its file and its facts."""
    out = tmp_path_factory.mktemp("learned") / "vae.safetensors"
    return out, fit_small(shards_dir, out)


def test_a_few_steps_lower_the_error_of_hidden_leads(fitted):
    """Nothing has an error of 1."""
    out, facts = fitted
    assert facts["held_error"] < 0.85 and not out.with_suffix(".safetensors.part").exists()
    assert f"{facts['rate']:g}" == min(facts["rates"], key=facts["rates"].get)
    assert facts["steps"] + 2 * (STEPS // 10) == pytest.approx(STEPS, abs=2)
    params, _, read = read_network(out)
    assert read["steps"] == facts["steps"] and read["corpus"] == "synthetic"
    assert sum(x.size for x in jax.tree.leaves(params)) == facts["parameters"]


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    fitted, shards_dir, tmp_path, monkeypatch
):
    out, before = tmp_path / "again.safetensors", fitting.Batches.__getitem__
    monkeypatch.setattr(fitting, "CHECKPOINT_STEPS", 4)
    for stop in (9, 30):  # in the second trial, and in the training

        def until(self, step, left=[stop + 3]):  # noqa: B006
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return before(self, step)

        monkeypatch.setattr(fitting.Batches, "__getitem__", until)
        with pytest.raises(KeyboardInterrupt):
            fit_small(shards_dir, out)
    monkeypatch.setattr(fitting.Batches, "__getitem__", before)
    with pytest.raises(InputError, match=r"\.part was begun with seed 0, not 1"):
        fit_small(shards_dir, out, seed=1)
    assert fit_small(shards_dir, out) == fitted[1]
    assert out.read_bytes() == fitted[0].read_bytes()


class Residual(LeadNetwork):
    """An example of both hooks: regression, with its matrix for each set of leads, and a little
    more."""

    rows = 4

    def learn(self, windows):
        x = np.concatenate([signal_of(window) for window in windows], 1)
        return {"products": x @ x.T / x.shape[1]}

    def prepare(self, learned, visible):
        return {"matrix": regression_matrix(learned["products"], visible).astype(np.float32)}

    @nn.compact
    def __call__(self, shown):
        gain = self.param("gain", nn.initializers.zeros, (len(LEADS), 1))
        straight = jnp.einsum("kl,blp->bkp", shown["matrix"], shown["x"])
        return straight + gain * shown["mean"].mean(1, keepdims=True)


def test_a_network_may_build_on_a_closed_form(shards_dir, windows, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "residual", Residual)
    monkeypatch.setattr(fitting, "RATES", (1e-9, 1e-9))  # stays where it started
    out = tmp_path / "residual.safetensors"
    facts = fitting.fit_network("residual", shards_dir, 1e7, out)
    assert facts["held_error"] < 0.5 and facts["parameters"] == len(LEADS)
    method = TrainedLeads("mine", out)
    other = windows[1] | {"visible": lead_mask(np.isin(LEADS, ["I", "V1"]))}
    for window, found in zip(
        [windows[0], other], method.predict([windows[0], other])["mine"], strict=True
    ):
        visible = mask_leads(window["visible"])
        matrix = regression_matrix(read_network(out)[1]["products"], visible)
        straight = matrix @ np.where(visible[:, None], signal_of(window), 0.0)
        whole = slice(int(window["start"][1]), int(window["start"][-1]))  # without partial beats
        np.testing.assert_allclose(found[:, whole], straight[:, whole], atol=0.3)
        assert np.corrcoef(found[:, whole].ravel(), straight[:, whole].ravel())[0, 1] > 0.99


def test_the_field_lifts_as_the_closed_form_does():
    """With all modes kept, and a network that adds nothing."""
    rng, samples = np.random.default_rng(3), 16
    size, visible = len(LEADS) * samples, mask_leads(THREE)
    root = rng.normal(size=(2, size, size)) / np.sqrt(size)
    common, change = (Gaussian(r @ r.T, 0.05) for r in root)
    network = Field(modes=size, width=4, layers=1)
    learned = network.in_modes({"common": common, "change": change})
    shown = shown_of(samples=samples) | {"mean": shown_of(1, samples)["x"]}
    shown |= network.prepare(learned, visible)
    variables = network.init(jax.random.key(0), shown)
    nothing = jax.tree.map(np.zeros_like, variables)
    seen = np.repeat(visible[:, None], samples, 1)
    rest = np.where(visible[:, None], shown["x"] - shown["mean"], 0.0)
    expected = Posterior(common, seen).mean(shown["mean"]) + Posterior(change, seen).mean(rest)
    np.testing.assert_allclose(network.apply(nothing, shown), expected, atol=2e-3)


@pytest.mark.parametrize("change", [{}, {"skip": False, "context": False, "basis": "dipole"}])
def test_the_field_and_its_ablations_learn_and_know_their_errors(
    change, shards_dir, windows, tmp_path, monkeypatch
):
    monkeypatch.setattr(Field, "rows", 32)
    monkeypatch.setitem(SMALL, "field", {"modes": 24, "width": 32, "layers": 1} | change)
    out = tmp_path / "field.safetensors"
    facts = fit_small(shards_dir, out, "field", steps=20 if change else STEPS)
    assert facts["held_error"] < (1.0 if change else 0.5)
    method = open_network("field", out)
    ((x, deviation), *_) = method.predict_with_bars(windows)["field"]
    visible = mask_leads(THREE)
    assert (deviation[visible] == 0).all() and (deviation[~visible] > 0).all()
    if not change:
        inside = np.abs(x - windows[0]["signal"])[~visible] < REACH * deviation[~visible]
        assert 0.6 < inside.mean() <= 1.0


def test_sizes_are_given_by_name():
    asked = ["modes=24", "skip=False", "basis=dipole"]
    assert parse_sizes("field", asked) == {"modes": 24, "skip": False, "basis": "dipole"}
    for wrong, remedy in (("wide=3", "field has modes"), ("modes=many", "its default, modes=384")):
        with pytest.raises(InputError, match=remedy):
            parse_sizes("field", [wrong])


def test_bands_know_beats_by_their_tokens_and_are_wider_for_cut_off_ones():
    """Errors double with a step along the tokens' first direction, and are larger in the first half
    of a beat."""
    rng, samples, hidden = np.random.default_rng(5), 32, ~mask_leads(THREE)
    where = np.where(np.arange(samples) < 16, 3.0, 1.0)

    def look(visible=None):
        records = []
        for _ in range(200):
            token = rng.normal(size=(3, 8)) * [5, *[0.1] * 7]
            complete = np.array([False, True, True])
            size = 2.0 ** (token[:, 0] / 5) * np.where(complete, 1.0, 2.0)
            ratio = rng.normal(size=(3, len(LEADS), samples)) * size[:, None, None] * where
            ratio[0, :, :20] = ratio[0, :, 28:] = np.nan  # what the cut-off beat lacks
            records.append(Slots(ratio, token, complete, hidden))
        return records

    records = look()
    modes = find_modes(np.concatenate([record.token for record in records]))
    widths = learn_widths(records, modes)
    tokens = np.array([[-5.0, *[0.0] * 7], [5.0, *[0.0] * 7]])
    low, high = widths.factor(known_by(tokens, modes))
    assert np.median(high / low) == pytest.approx(4.0, rel=0.2)
    assert low[:, 8].mean() / low[:, 24].mean() == pytest.approx(3.0, rel=0.2)
    assert widths.ends == pytest.approx(2.0, rel=0.2)
    # a token unlike all others never makes the band narrower
    far = tokens + np.array([0.0, *[3.0] * 7])
    assert (widths.factor(known_by(far, modes)) >= 0.9 * np.stack([low, high])).all()
    # what is stored says the same; a few records say nothing
    arrays = learn_by_number(look)
    stored = stored_widths(arrays, 5).factor(known_by(tokens, stored_modes(arrays)))
    np.testing.assert_allclose(
        stored[:, hidden].mean(-1), [low[hidden].mean(-1), high[hidden].mean(-1)], rtol=0.3
    )
    assert learn_widths(records[:9], modes) is None


def test_visible_leads_are_drawn_by_number_and_leave_one_to_derive():
    asked = []
    for step in range(400):
        rng = np.random.default_rng([0, step])
        asked.append(int(np.random.default_rng([0, step]).integers(1, 12)))
        visible = draw_visible(rng)
        assert asked[-1] <= visible.sum() < len(LEADS)
        assert visible[:6].sum() in (0, 1, 6)  # two limb leads give the other four
    assert np.bincount(asked)[1:].min() > 20
    np.testing.assert_array_equal(visible, draw_visible(np.random.default_rng([0, 399])))


def test_held_out_records_are_of_other_patients():
    patients = [str(i // 3) for i in range(300)]
    train, held = hold_out(patients)
    assert {patients[i] for i in train}.isdisjoint(patients[i] for i in held)
    assert len(train) + len(held) == 300 and 20 < len(held) <= 30
    with pytest.raises(InputError, match="one patient"):
        hold_out(["a", "a"])


def test_operations_are_counted_by_hand():
    x, w = jnp.ones((5, 3)), jnp.ones((3, 3))
    assert count_flops(lambda x: x @ w, x) == 2 * 5 * 3 * 3
    again = lambda x: jax.lax.scan(lambda y, _: (y @ w, None), x, length=7)[0]  # noqa: E731
    assert count_flops(again, x) == 7 * 2 * 5 * 3 * 3
    conv = lambda x: nn.Conv(4, (3,)).init_with_output(jax.random.key(0), x)[0]  # noqa: E731
    assert count_flops(conv, jnp.ones((2, 10, 3))) == 2 * (2 * 10 * 4) * 3 * 3


def test_the_divergence_of_a_code_is_that_of_gaussians():
    mean, deviation = 0.7, 1.6
    grid = np.linspace(-15, 15, 200_001)
    p = norm.pdf(grid, mean, deviation)
    expected = np.trapezoid(p * (norm.logpdf(grid, mean, deviation) - norm.logpdf(grid)), grid)
    found = kl_divergence(np.full((1, 2), mean), np.full((1, 2), 2 * np.log(deviation)))
    np.testing.assert_allclose(found, [2 * expected], rtol=1e-5)


def test_a_view_of_the_field_depends_on_its_angles_alone():
    network, variables = started("nef_net")
    angles = np.array([[1.0, 0.5], [2.0, -1.0], [1.0, 0.5]], np.float32)
    query = jax.jit(lambda shown: network.apply(variables, shown, angles, method="query"))
    views = np.asarray(query(shown_of()))
    assert views.shape == (2, 3, 32)
    np.testing.assert_allclose(views[:, 0], views[:, 2], atol=1e-6)
    assert np.abs(views[:, 0] - views[:, 1]).max() > 1e-3


def test_the_recurrent_network_reads_both_ways():
    network, variables = started("e_lstm")
    shown = shown_of()
    changed = shown | {"x": shown["x"].copy()}
    changed["x"][:, 1, 16] += 1.0  # lead II
    change = np.abs(network.apply(variables, changed) - network.apply(variables, shown)).max((0, 1))
    assert change[15] > 1e-5 and change[17] > 1e-5
    turned = shown | {"x": shown["x"][..., ::-1]}
    backwards = network.apply(variables, turned)[..., ::-1]
    assert np.abs(backwards - network.apply(variables, shown)).max() > 1e-3


def test_regression_through_the_heart_vector_is_exact_for_a_dipole():
    rng = np.random.default_rng(0)
    leads = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 500))
    visible = mask_leads(THREE)
    weights = kim_matrix(leads @ leads.T / 500, visible)
    np.testing.assert_allclose(weights @ np.where(visible[:, None], leads, 0), leads, atol=1e-2)
    assert np.linalg.matrix_rank(weights[~visible]) == 3 and kors_matrix().shape == (3, 12)


def test_a_trained_network_is_a_row_and_derives_one_record(
    fitted, shards_dir, raw_corpus, tmp_path, capsys
):
    flags = [f"--learned=peer={fitted[0]}", f"--out={tmp_path}", "--visible=II,V2,V5"]
    shards = [f"--data={shards_dir}", "--limit=4", "--morphology=0", "--bands=0", "--no_pictures"]
    assert reconstruct_door.main([*flags, *shards, "--methods=zero", "--resamples=20"]) == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert list(found["views"][0]["methods"]) == ["zero", "peer"]
    assert any(note.startswith("peer: vae_cnn,") for note in found["notes"])
    record = next(raw_corpus.rglob("*.hea"))
    assert reconstruct_door.main([*flags, f"--record={record}"]) == 0
    assert "derived by peer" in capsys.readouterr().out


def test_one_record_is_derived_by_the_packaged_network_with_bands(
    raw_corpus, shards_dir, tmp_path, capsys
):
    record = next(raw_corpus.rglob("*.hea"))
    flags = [f"--record={record}", "--visible=I,II,V2", "--write_wfdb", f"--out={tmp_path}"]
    assert reconstruct_door.main(flags) == 0
    assert "derived by lvcg_field" in capsys.readouterr().out
    header = (tmp_path / f"{record.stem}_derived.hea").read_text()
    assert "V3 (derived) sd" in header and "III (derived) sd" not in header
    # training records that were prepared otherwise, with other R peaks
    assert default_method(str(shards_dir)) == "lvcg"


MISTAKES = {
    "peer=nowhere.safetensors": "nowhere.safetensors: cannot be read",
    "zero=FILE": "there is a method 'zero' already",
    "FILE": "write --learned=NAME=FILE",
    "peer=OTHER": "trained with preprocessing other, but the records have",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_in_one_line(text, fitted, shards_dir, tmp_path):
    params, learned, facts = read_network(fitted[0])
    save_network(tmp_path / "other", params, learned, facts | {"preprocess_hash": "other"})
    given = text.replace("FILE", str(fitted[0])).replace("OTHER", str(tmp_path / "other"))
    flags = [f"--learned={given}", f"--data={shards_dir}", "--k=3", f"--out={tmp_path}"]
    with pytest.raises(InputError, match=MISTAKES[text]):
        reconstruct_door.main([*flags, "--methods=zero"])


def test_the_door_says_what_it_took(shards_dir, tmp_path, monkeypatch, capsys):
    small = NETWORKS["vae_cnn"](**SMALL["vae_cnn"])
    monkeypatch.setitem(NETWORKS, "vae_cnn", lambda: small)
    out = tmp_path / "door.safetensors"
    flags = [f"--data={shards_dir}", f"--out={out}", "--flops=1e9", "--records=40"]
    assert fit_door.main(["--network=vae_cnn", *flags]) == 0
    assert "was taken" in capsys.readouterr().out and out.is_file()
    with pytest.raises(InputError, match="--network"):
        fit_door.main(["--network=vae", *flags])
