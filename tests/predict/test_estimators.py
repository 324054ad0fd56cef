"""LVCG in scikit-learn's hands: pipelines, clones, files, cross-validation by patient."""

import io
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import estimator_checks_generator

from data_prep.base.errors import InputError
from data_prep.formats.any_file import read_any
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.predict.estimators import LVCGClassifier, LVCGEmbedder

# of a method that it has not, and of arrays of other libraries, which SciPy must be told to take
NOT_OURS = {
    "check_classifiers_multilabel_output_format_decision_function",
    "check_array_api_input",
}
RULES = [
    pair
    for pair in estimator_checks_generator(LVCGClassifier(checkpoint=None))
    if pair[1].func.__name__ not in NOT_OURS
]
# Those that need no data: all others give a table of numbers, and scikit-learn leaves them out for
# an estimator whose tags say that it takes files and signals.
OF_RECORDS = (
    "check_estimator_cloneable", "check_estimator_repr", "check_estimator_tags_renamed",
    "check_get_params_invariance", "check_mixin_order", "check_no_attributes_set_in_init",
    "check_parameters_default_constructible", "check_set_params", "check_valid_tag_types",
)  # fmt: skip


@pytest.mark.parametrize("estimator", [LVCGEmbedder, LVCGClassifier])
@pytest.mark.parametrize("name", OF_RECORDS)
def test_estimators_of_records_keep_scikit_learns_rules(estimator, name):
    getattr(estimator_checks, name)(estimator.__name__, estimator())


@pytest.mark.parametrize(
    ("estimator", "check"), RULES, ids=lambda x: getattr(x, "func", type(x)).__name__
)
def test_the_classifier_of_features_keeps_scikit_learns_rules(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def paths(raw_corpus):
    return [str(path) for path in sorted(raw_corpus.rglob("*.hea"))[:12]]


@pytest.fixture(scope="module")
def embedder(trained_run):
    return LVCGEmbedder(str(trained_run), fs=500, leads=["I", "II", "V2"])


def test_paths_arrays_and_wfdb_records_give_the_embedding_of_the_model(
    embedder, model, paths, trained_run
):
    record = read_any(paths[0])
    expected = model.embed(record.signal, record.rate, record.leads).mean
    by_path = embedder.fit(paths).transform(paths[:2])
    facts = {"fs": record.rate, "units": ["mV"] * 13, "record_name": "r"}
    signal, names = np.pad(record.signal, ((0, 0), (0, 1))), [*record.leads, "PLETH"]
    by_wfdb = embedder.transform([SimpleNamespace(p_signal=signal, sig_name=names, **facts)])
    arrays = LVCGEmbedder(str(trained_run), fs=record.rate, leads=record.leads, unit="uV")
    by_array = arrays.transform((1000 * record.signal)[None])
    for found in (by_path[0], by_wfdb[0], by_array[0]):
        np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(InputError, match="record 0 is an array: give fs and leads"):
        LVCGEmbedder(str(trained_run)).transform([record.signal])
    assert isinstance(InputError("x"), ValueError)


def test_the_embedder_is_cloned_stored_named_and_set_to_pandas(embedder, paths):
    again = clone(embedder)
    assert again.get_params() == embedder.get_params()
    file = io.BytesIO()
    joblib.dump(again, file)
    assert len(file.getvalue()) < 2000
    file.seek(0)
    names = embedder.get_feature_names_out()
    assert len(names) == 40 and names[0] == "structure0" and names[-1] == "rhythm7"
    frame = joblib.load(file).set_output(transform="pandas").fit_transform(paths[:2])
    assert frame.columns.tolist() == names.tolist() and frame.shape == (2, 40)


def test_a_pipeline_learns_and_is_cross_validated_by_patient(model, shards_dir, embedder, paths):
    table = embed_dataset(model, shards_dir, progress=False)
    y = np.array(["SR" in row["rhythm"] for row in table.labels])
    classifier = LVCGClassifier(checkpoint=None)
    scores = cross_val_score(
        classifier, table.embedding, y, groups=table.patient_id, cv=GroupKFold(3), scoring="roc_auc"
    )
    assert len(scores) == 3 and scores.mean() > 0.6
    fitted = classifier.fit(table.embedding, y, groups=table.patient_id)
    p = fitted.predict_proba(table.embedding)
    assert p.shape == (120, 2) and np.allclose(p.sum(1), 1) and abs(p[:, 1].mean() - y.mean()) < 0.2
    labels = np.arange(len(paths)) % 2
    pipeline = make_pipeline(embedder, StandardScaler(), LogisticRegression()).fit(paths, labels)
    assert pipeline.predict(paths).shape == (12,)
    whole = LVCGClassifier(embedder.checkpoint).fit(paths, labels)
    assert joblib.hash(clone(whole).get_params()) == joblib.hash(whole.get_params())
    assert whole.predict(paths).shape == (12,)


def test_files_are_cross_validated_by_patient(embedder, paths):
    labels, patients = np.arange(len(paths)) % 2, np.arange(len(paths)) // 2
    pipeline = make_pipeline(embedder, StandardScaler(), LogisticRegression())
    scores = cross_val_score(pipeline, paths, labels, groups=patients, cv=GroupKFold(3))
    assert scores.shape == (3,) and np.isfinite(scores).all()
    # the classifier's own choice of rows that calibrate keeps patients together, too
    with sklearn.config_context(enable_metadata_routing=True):
        classifier = LVCGClassifier(embedder.checkpoint).set_fit_request(groups=True)
        groups = {"groups": patients}
        scores = cross_val_score(classifier, paths, labels, params=groups, cv=GroupKFold(3))
    assert scores.shape == (3,) and np.isfinite(scores).all()


def test_several_classes_of_a_record_each_have_a_probability(model, shards_dir):
    table = embed_dataset(model, shards_dir, progress=False)
    names = table.tasks["diagnosis"]
    y = np.array([[c in row["diagnosis"] for c in names] for row in table.labels]).astype(int)
    fitted = LVCGClassifier(checkpoint=None).fit(table.embedding, y)
    p = fitted.predict_proba(table.embedding)
    assert p.shape == y.shape and ((p >= 0) & (p <= 1)).all()
    assert np.array_equal(fitted.predict(table.embedding), (p >= 0.5).astype(int))
    with pytest.raises(InputError, match="one class only"):
        LVCGClassifier(checkpoint=None).fit(table.embedding, np.zeros(120))


def test_objects_are_short_in_a_notebook_and_become_frames(model, shards_dir, paths):
    record = read_any(paths[0])
    e = model.embed(record.signal, record.rate, record.leads)
    table = embed_dataset(model, shards_dir, splits=["test"], progress=False)
    for one, words in ((model, "smoke@"), (e, "rank: 3"), (table, "tasks: diagnosis, rhythm")):
        assert words in repr(one) and len(repr(one)) < 250 and "\n" not in repr(one)
        assert one._repr_html_().startswith("<table>") and len(one._repr_html_()) < 2000
    frame = table.to_pandas()
    assert len(frame) == len(table.record_id) and frame["structure3"].dtype == np.float32
    assert {"record_id", "rank", "label_rhythm", "rhythm7"} <= set(frame.columns)
    assert e.to_pandas().shape == (1, 47)
