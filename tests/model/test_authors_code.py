"""The `release` preset gives the authors' numbers; its quirks are there, and are not in `paper`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import get_config
from helpers.golden import SLOTS, golden, golden_batch
from helpers.packed_batch import owners, pack, random_records, random_variables, tiny_preset

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import mask_leads
from lvcg_jax import LVCG
from lvcg_jax.config.build import make_model
from lvcg_jax.embed.lvcg import join_parts
from lvcg_jax.model import authors_code
from lvcg_jax.model.authors_code import record_ecg_terms
from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.network import PARTS, tikhonov_lift
from lvcg_jax.model.ops.conv1d import conv1d
from lvcg_jax.runs.state import trained_labels
from lvcg_jax.runs.trained import fresh_state

REFERENCE = golden()
BATCH, VISIBLE = golden_batch(REFERENCE)
MASK = REFERENCE["in/mask"]  # [4,17]

COUNTS = (5, 3, 8, 2, 6, 4)
LONGEST = max(COUNTS)
# no longer than a record
RECORDS = [{**r, "length": r["length"] % 80 + 30} for r in random_records(COUNTS, 16)]
TINY = pack(RECORDS, groups=1, capacity=30)
SHOWN = np.array(
    [[0b000010000011, 0b10010010, 0b100000100010, 0b1000011, 0b10001001, 0b110000000001]], np.int32
)


def close(found, expected, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(found), expected, atol=tolerance, rtol=0)


# ---- the authors' numbers


@pytest.fixture(scope="module")
def imported(imported_run):
    return LVCG.load(imported_run)


@pytest.fixture(scope="module")
def outputs(imported):
    """Everything the model gives for the four records, in evaluation mode."""
    run = jax.jit(lambda v: imported.model.apply(v, BATCH, VISIBLE, None, SLOTS))
    return jax.tree.map(np.asarray, run(imported.variables))


def test_lift_of_whole_records_by_normal_equations_is_our_lift_of_beats(outputs):
    """D1, D2, D3: eps 0.1, an explicit inverse and lifting before cutting give the same beats."""
    close(np.swapaxes(outputs["vcg"][0], 1, 2), REFERENCE["in/beats_vcg"][MASK])
    a = lead_matrix("paper")
    lifts = tikhonov_lift(jnp.asarray(a, jnp.float32), mask_leads(VISIBLE[0]), 0.1)
    for mask, lift in zip(VISIBLE[0], lifts, strict=True):
        rows = np.where(mask_leads(mask)[:, None], a, 0.0)
        close(lift, np.linalg.inv(rows.T @ rows + 0.1 * np.eye(3)) @ rows.T)


def test_tokens_states_and_decoded_beats(outputs):
    # padding is encoded, too
    close(outputs["tokens"][0, :, : MASK.shape[1]], REFERENCE["out/tokens"])
    close(outputs["predicted"][0, :, 1 : MASK.shape[1]], REFERENCE["out/states_pred"])
    close(np.swapaxes(outputs["vcg_decoded"][0], 1, 2), REFERENCE["out/V_hat_beats"][MASK])
    close(np.swapaxes(outputs["vcg_anchor"][0], 1, 2), REFERENCE["out/V_base_hat"])


def test_stitched_heart_vector_projection_and_refined_leads(imported, outputs):
    length = np.where(MASK, REFERENCE["in/rr"], 0).astype(np.int32)
    stitched = np.asarray(
        authors_code.stitch(np.swapaxes(REFERENCE["out/V_hat_beats"], 2, 3), length, 1000)
    )
    close(np.swapaxes(stitched, 1, 2), REFERENCE["out/vcg_hat"])
    np.testing.assert_array_equal(
        np.all(stitched == 0, -1), np.all(REFERENCE["out/vcg_hat"] == 0, 1)
    )
    leads = imported.model.apply(imported.variables, stitched[None], method="project")
    close(leads[0], REFERENCE["out/recon_geom"])
    refiner = authors_code.LeadRefiner(imported.model.quirks.refine)
    close(
        refiner.apply({"params": imported.variables["params"]["refiner"]}, leads[0]),
        REFERENCE["out/recon"],
    )
    close(outputs["record_ecg"][0], REFERENCE["out/recon"])  # and all of it in one go


@pytest.mark.parametrize(
    "visible, name", [(VISIBLE, "ecg_emb"), (BATCH["lead_mask"], "embedding_all_leads")]
)
def test_embeddings(imported, visible, name):
    parts = imported.embed_batch(BATCH, visible)
    close(join_parts({part: parts[part][0] for part in PARTS}), REFERENCE[f"out/{name}"])
    if name == "ecg_emb":
        for part, theirs in zip(PARTS, ("struct", "dynamic", "rhythm"), strict=True):
            close(parts[part][0], REFERENCE[f"out/emb_{theirs}"])


def test_losses(imported, outputs):
    terms = imported.model.loss_terms(outputs, BATCH, VISIBLE, imported.config.loss)
    for ours, theirs in (("vcg", "beat"), ("temp", "temporal"), ("base", "base")):
        assert float(terms[ours].mean()) == pytest.approx(
            float(REFERENCE[f"loss/{theirs}"]), rel=1e-4
        )
    whole, _ = record_ecg_terms(outputs, BATCH, VISIBLE, "mixed", target=REFERENCE["in/ecg"][None])
    assert float(whole.mean()) == pytest.approx(float(REFERENCE["loss/recon"]), rel=1e-4)
    # In training the target is put together from the shards' beats, which are a little smoother
    # than the record.
    assert float(terms["ecg"].mean()) == pytest.approx(float(REFERENCE["loss/recon"]), rel=0.03)
    expected = terms["ecg"] + terms["vcg"] + 0.1 * terms["temp"] + terms["base"]
    np.testing.assert_allclose(terms["loss"], expected, rtol=1e-6)


def test_full_size_has_the_published_numbers_of_parameters():
    shapes = jax.eval_shape(lambda: fresh_state(get_config("release"), 0)).params
    size = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in shapes.items()}
    assert size == {
        "encoder": 6_466_848,
        "temporal": 789_504,
        "decoder": 462_979,
        "refiner": 897,
        "rhythm": 35_680,
        "norm_structure": 512,
        "norm_dynamics": 512,
        "norm_rhythm": 256,
    }
    # two of them, which nothing trains or reads, are left out
    head = (256 + 1) * 512 + 2 * 512 + (512 + 1) * 256  # linear, batch norm, linear
    assert sum(size.values()) + 2 * head == REFERENCE["full_size/param_count"] == 8_285_060
    labels = trained_labels(shapes, get_config("release"))
    trained = sum(
        size[name] for name, tree in labels.items() if set(jax.tree.leaves(tree)) == {"train"}
    )
    assert trained == 7_720_228


# ---- quirks, each with its opposite


class Step:
    """One training step of a tiny model of a preset: outputs, gradients and statistics."""

    def __init__(self, name):
        config = self.config = tiny_preset(name)
        self.model = make_model(config)
        self.variables = random_variables(self.model, TINY, SLOTS)
        filled = config.model.padding == "counted"
        slots = len(COUNTS) * SLOTS if filled else TINY["length"].shape[1]

        def loss(params, offset):
            """The offset is added to the encoder's tokens: its gradient is that of every single
            token."""

            def add(call, args, kwargs, context):
                found = call(*args, **kwargs)
                here = isinstance(context.module, BeatEncoder) and context.method_name == "__call__"
                return found + offset if here else found

            with nn.intercept_methods(add):
                variables = {**self.variables, "params": params}
                more = {"mutable": ["batch_stats"]}
                found, updates = self.model.apply(
                    variables, TINY, SHOWN, jax.random.key(3), SLOTS, **more
                )
            terms = self.model.loss_terms(found, TINY, SHOWN, config.loss)
            return terms["loss"].mean(), (found, updates["batch_stats"])

        zero = jnp.zeros((slots, config.model.token_dim))
        run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
        (self.gradient, token_gradient), (self.outputs, self.statistics) = run(
            self.variables["params"], zero
        )
        reached = np.abs(np.asarray(token_gradient)).max(-1) > 0  # of each slot
        if filled:
            self.reached = reached[: len(COUNTS) * LONGEST].reshape(len(COUNTS), LONGEST)
        else:
            row, position, valid = (x[0] for x in owners(TINY))
            self.reached = np.zeros((len(COUNTS), LONGEST), bool)
            self.reached[row[valid], position[valid]] = reached[valid]


@pytest.fixture(scope="module", params=["paper", "release"])
def step(request):
    return Step(request.param), request.param


def test_which_beats_reach_the_encoder(step):
    """`release`: beats 0 and 1 of a record, be they there or not; `paper`: all there are."""
    step, name = step
    number, count = np.arange(LONGEST), np.array(COUNTS)[:, None]
    np.testing.assert_array_equal(
        step.reached, (number < 2) & (count > 0) if name == "release" else number < count
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(step.gradient))


@pytest.mark.parametrize("name", ["paper", "release", "best"])
def test_only_best_trains_the_rhythm_encoder(name):
    config = tiny_preset(name)
    model = make_model(config)
    variables = random_variables(model, TINY, SLOTS)

    def loss(rhythm):
        params = {**variables["params"], "rhythm": rhythm}
        outputs = model.apply({**variables, "params": params}, TINY, SHOWN, None, SLOTS)
        return model.loss_terms(outputs, TINY, SHOWN, config.loss)["loss"].mean()

    gradient = [
        np.abs(x).max()
        for x in jax.tree.leaves(jax.jit(jax.grad(loss))(variables["params"]["rhythm"]))
    ]
    labels = set(jax.tree.leaves(trained_labels(variables["params"], config)["rhythm"]))
    if name == "best":
        # one bias cancels out
        assert np.sum(np.array(gradient) > 1e-6) >= len(gradient) - 1 and labels == {"train"}
    else:
        assert max(gradient) == 0 and labels == {"frozen"}


def test_norm_statistics_see_padding_in_release_only(step):
    """The first norm of the encoder: a beat of zeros leaves the convolution as its bias."""
    step, name = step
    row, _, valid = owners(TINY)
    vcg = step.model.apply(step.variables, TINY["beats"], SHOWN, row, method="lift")[valid]
    layer, old = (
        step.variables["params"]["encoder"]["stem_conv"],
        step.variables["batch_stats"]["encoder"]["stem_norm"],
    )
    values = np.asarray(conv1d(vcg, layer["kernel"], 2) + layer["bias"]).mean(1)  # [m,c]
    empty = len(COUNTS) * LONGEST - len(values) if name == "release" else 0
    mean = (values.sum(0) + empty * layer["bias"]) / (len(values) + empty)
    close(step.statistics["encoder"]["stem_norm"]["mean"], 0.9 * old["mean"] + 0.1 * mean, 1e-5)


def test_decoder_statistics_are_of_three_passes_in_release_and_of_one_else(step):
    """The decoder's first norm, after the linear map that spreads a token over samples."""
    step, name = step
    layer = step.variables["params"]["decoder"]["seed"]
    tokens, predicted = (np.asarray(step.outputs[key][0]) for key in ("tokens", "predicted"))
    valid, modelled = (np.asarray(step.outputs[key][0]) for key in ("mask", "modelled"))
    passes = [np.concatenate([tokens[valid], predicted[modelled]])]
    if name == "release":
        passes = [
            tokens[:, 1],
            predicted[:, 1:LONGEST].reshape(-1, tokens.shape[-1]),
            predicted[:, 0],
        ]
    mean = step.variables["batch_stats"]["decoder"]["seed_norm"]["mean"]
    for some in passes:
        seeds = (some @ layer["kernel"] + layer["bias"]).reshape(-1, len(mean))
        mean = 0.9 * mean + 0.1 * seeds.mean(0)
    close(step.statistics["decoder"]["seed_norm"]["mean"], mean, 1e-4)


@pytest.mark.parametrize("name", ["paper", "release"])
def test_embeddings_depend_on_batch_mates_in_release_only(name):
    config = tiny_preset(name)
    model = make_model(config)
    variables = random_variables(model, TINY, SLOTS)
    embed = jax.jit(
        lambda batch: model.apply(variables, batch, batch["lead_mask"], SLOTS, method="embed")
    )
    alone, together = embed(pack(RECORDS[:1], groups=1, capacity=30)), embed(TINY)
    gap = {part: np.abs(alone[part][0, 0] - together[part][0, 0]).max() for part in PARTS}
    assert max(gap["structure"], gap["rhythm"]) < 1e-5
    assert (gap["dynamics"] > 1e-2) if name == "release" else (gap["dynamics"] < 1e-5)


def test_one_term_is_nearly_the_whole_loss_in_release_and_not_in_paper(imported, outputs):
    def largest_share(terms, config):
        shares = [
            getattr(config, f"lambda_{k}") * terms[k].mean()
            for k in ("ecg", "vcg", "temp", "base")
            if k in terms
        ]
        assert sum(shares) == pytest.approx(float(terms["loss"].mean()), rel=1e-4)
        return float(max(shares) / sum(shares))

    assert (
        largest_share(
            imported.model.loss_terms(outputs, BATCH, VISIBLE, imported.config.loss),
            imported.config.loss,
        )
        > 0.95
    )
    config = get_config("smoke")
    model = make_model(config)
    start = lambda: model.init(jax.random.key(0), BATCH, VISIBLE, None, SLOTS)  # noqa: E731
    found = jax.jit(lambda: model.apply(start(), BATCH, VISIBLE, None, SLOTS))()
    assert largest_share(model.loss_terms(found, BATCH, VISIBLE, config.loss), config.loss) < 0.95


@pytest.mark.parametrize("name", ["paper", "release"])
def test_stitched_leads_are_zero_at_beat_boundaries_in_release_only(name):
    config = tiny_preset(name)
    config.model.refine = 0  # its bias would move the zeros
    model = make_model(config)
    variables = random_variables(model, TINY, SLOTS)
    leads = jax.jit(lambda v: model.apply(v, TINY, SHOWN, SLOTS, method="reconstruct"))(variables)
    row, position, valid = (x[0] for x in owners(TINY))
    count = np.array(COUNTS)[row]
    first, last = (np.abs(np.asarray(leads)[0, :, :, k]).max(1) for k in (0, -1))
    if name == "release":
        np.testing.assert_array_equal((first == 0)[valid], (position > 0)[valid])
        np.testing.assert_array_equal((last == 0)[valid], (position < count - 1)[valid])
    else:
        assert np.all(first[valid] > 0) and np.all(last[valid] > 0)
