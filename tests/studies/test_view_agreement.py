"""Few-lead views against all leads: who must agree agrees, collapse wins nothing, and views are
everybody's same."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.pictures import read_picture, words_of

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix, subset_facts
from data_prep.ecg.leads import mask_leads
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import join_parts
from lvcg_jax.embed.table import Table, keep_test_rows
from lvcg_jax.studies.view_agreement import (
    NO_RHYTHM,
    WHOLE,
    agreement,
    draw_test_views,
    embed_views,
    main,
    view_windows,
)

DRAWS = 2


@pytest.fixture(scope="module")
def view(shards_dir):
    return draw_test_views(str(shards_dir), 3, DRAWS, None)


@pytest.fixture(scope="module")
def embedded(model, shards_dir, view):
    """All-lead embeddings, and the numbers of the test rows in the order of the views."""
    keys = [f"{row.entry.record_id}#{row.entry.window}" for row in view.rows[::DRAWS]]
    return keep_test_rows(embed_dataset(model, shards_dir, progress=False), keys)


@pytest.fixture(scope="module")
def results(trained_run, shards_dir, tmp_path_factory):
    """The command's folder: one run under two names, half the records."""
    out = tmp_path_factory.mktemp("views")
    flags = [
        f"--checkpoint=one={trained_run}",
        f"--checkpoint=two={trained_run}",
        f"--data={shards_dir}",
    ]
    more = [
        "--draws=2",
        "--records=40",
        "--task=diagnosis",
        "--resamples=30",
        f"--page={out / 'page.md'}",
    ]
    assert main([*flags, *more, f"--out={out}"]) == 0
    return out


def small_table(x):
    """Four training and six test rows, each a record and a patient of its own."""
    names = np.array([f"r{i}" for i in range(10)])
    split = np.array(["train"] * 4 + ["test"] * 6)
    return Table(names, names, split, [{}] * 10, np.asarray(x, np.float32)), np.arange(4, 10)


def test_a_view_of_all_leads_agrees_with_itself(model, view, embedded):
    table, test = embedded
    rows = [replace(row, visible=row.entry.lead_mask) for row in view.rows]
    found = agreement(table, test, embed_views(model, replace(view, rows=rows), DRAWS), 30)
    assert list(found) == [WHOLE, NO_RHYTHM, *table.parts]
    for name, values in found.items():
        assert values["cosine"]["mean"] == pytest.approx(1, abs=1e-4), name
        assert values["top1"]["mean"] == values["top1"]["low"] == 1, name
        assert values["strangers"]["mean"] < 0.5, name


def test_fewer_leads_change_all_but_the_rhythm(model, view, embedded):
    found = agreement(*embedded, embed_views(model, view, DRAWS), 30)
    assert found["rhythm"]["cosine"]["mean"] == pytest.approx(1, abs=1e-4)
    for name in (NO_RHYTHM, "structure", "dynamics"):
        cosine = found[name]["cosine"]
        assert cosine["low"] < cosine["mean"] < 0.999 and cosine["mean"] == pytest.approx(
            np.mean(found[name]["cosine_by_draw"])
        )
    sizes = [found[name]["numbers"] for name in (NO_RHYTHM, "rhythm")]
    assert sum(sizes) == found[WHOLE]["numbers"] and found[NO_RHYTHM]["top1"]["mean"] <= 1


def test_views_depend_on_the_record_alone(model, shards_dir, view):
    starts = range(0, len(view.rows), DRAWS)
    shown = {
        view.rows[i].entry.uid: [row.visible for row in view.rows[i : i + DRAWS]] for i in starts
    }
    few = draw_test_views(str(shards_dir), 3, DRAWS, 5)
    assert len(few.rows) == 5 * DRAWS
    for i in range(0, len(few.rows), DRAWS):
        assert [row.visible for row in few.rows[i : i + DRAWS]] == shown[few.rows[i].entry.uid]
    facts = subset_facts(lead_matrix("paper"), mask_leads(np.array(list(shown.values()))))
    assert (facts["rank"] == 3).all() and {
        bin(m).count("1") for masks in shown.values() for m in masks
    } == {3}
    assert (
        any(len(set(masks)) > 1 for masks in shown.values())
        and len({m[0] for m in shown.values()}) > 1
    )
    rows = view.rows[::DRAWS][:5]
    alone = model.embed_windows(view_windows(rows[3:], lambda: None), 8 * model.max_beats, 8)[1]
    together = model.embed_windows(view_windows(rows, lambda: None), 8 * model.max_beats, 8)[1]
    np.testing.assert_allclose(join_parts(alone), join_parts(together)[3:], atol=1e-5)


@pytest.mark.parametrize("kinds", [1, 2])
def test_collapse_does_not_score_on_retrieval(kinds):
    x = np.random.default_rng(0).normal(size=(kinds, 7))[np.arange(10) % kinds]
    table, test = small_table(x)
    found = agreement(table, test, table.embedding[test][None], 30)[WHOLE]
    assert found["top1"]["mean"] == pytest.approx(kinds / 6)  # chance among those that are the same
    # one point has no direction, two always agree
    assert found["cosine"]["mean"] == pytest.approx(kinds - 1)


def test_a_shared_mean_is_no_agreement():
    rng = np.random.default_rng(1)
    table, test = small_table(100 + rng.normal(size=(10, 400)))
    views = 100 + rng.normal(size=(1, 6, 400))
    found = agreement(table, test, views, 30)[WHOLE]
    assert abs(found["cosine"]["mean"]) < 0.35 and found["top1"]["mean"] < 0.9


def test_the_command_writes_every_model_beside_its_control(results):
    document = json.loads((results / "view_agreement.json").read_text())
    models = document["models"]
    assert list(models) == ["one", "random weights of one", "two"]
    assert models["one"] == models["two"] != models["random weights of one"]
    cells = {cell["model"]: cell for cell in models["one"]["probe"][0]["cells"]}
    assert list(cells) == ["12 leads", "3 leads"] and len(cells["3 leads"]["per_fit"]) == 2
    (gap,) = models["one"]["probe"][0]["differences"]
    assert gap["difference"] == pytest.approx(
        cells["12 leads"]["macro_auroc"] - cells["3 leads"]["macro_auroc"]
    )
    text = (results / "view_agreement.md").read_text()
    assert text.index("```bash\nlvcg view_agreement --checkpoint=one=smoke") < text.index(
        "| features"
    )
    assert f"| {NO_RHYTHM} | top-1 |" in text and "| diagnosis | 100% | drop | " in text
    assert str(results) not in text and " nan" not in text
    page = (results / "page.md").read_text()
    assert "<!-- section: view_agreement -->" in page and "](view_agreement.svg)" in page
    drawn = words_of(read_picture(results / "view_agreement.svg"))
    assert "one, 12 leads" in drawn and "random weights of one, 3 leads" in drawn


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--k=12"], "--k=12: give 1 to 11"),
        (["--draws=0"], "--draws: '0' is not a whole number of 1 or more"),
        (["--fractions=all"], "--fractions: 'all': give numbers"),
        (["--task=diagnose"], "no task diagnose in"),
        (["--out=/dev/null/x"], "cannot write there"),
        (["--checkpoint=nowhere"], "no run directory nowhere"),
        (["--checkpoint=RUN"], "the name 'smoke' is taken"),
        (["--data=nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_told_before_the_work(trained_run, shards_dir, tmp_path, flags, words):
    given = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path / 'out'}"]
    with pytest.raises(InputError, match=words):
        main([*given, *(flag.replace("RUN", str(trained_run)) for flag in flags)])
