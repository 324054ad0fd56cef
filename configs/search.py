"""Candidates for `best`: a small model trained the paper's way, and one change of it each.

    lvcg search --space=configs/search.py --data=SHARDS --budget=400 --out=runs/search
    python -m lvcg_jax.train --config=configs/search.py:rhythm_term --config.data.dir=SHARDS

Another idea is another function: its name is the row, its docstring says what and why.
"""

from pathlib import Path

from ml_collections import ConfigDict

from lvcg_jax.config.files import read_config_file


def base() -> ConfigDict:
    """The paper's method with a tenth of its compute a beat, and what a short run on PTB-XL
    needs."""
    c = read_config_file(Path(__file__).with_name("pretrain.py:tenth"))
    c.preprocess.peaks = "vcg"  # lead II misses beats in one record of ten
    # with the paper's 1e-4 a few nearly degenerate views carry the whole loss
    c.geometry.eps = 1e-2
    c.optim.learning_rate = 2e-3  # a small model and few steps; the warm-up becomes a tenth of them
    c.data.batch_size = 64
    c.train.checkpoint_every = 100
    return c


def rhythm_term(c: ConfigDict) -> None:
    """Trains the rhythm encoder, which the printed objective does not reach."""
    c.loss.lambda_rhythm = 1.0


def all_tokens(c: ConfigDict) -> None:
    """Hidden leads decoded from the encoder's tokens too: else only the first beat's token is
    taught about them."""
    c.loss.ecg_source = "both"


def view_term(c: ConfigDict) -> None:
    """Tokens of a view must be those of all leads, which is what is embedded."""
    c.loss.lambda_view = 0.3


def mean_terms(c: ConfigDict) -> None:
    """Every term a mean over its elements, so that none weighs more for having more of them."""
    c.loss.reduction = "mean"


def light_vcg(c: ConfigDict) -> None:
    """Less weight on the visible heart vector, more on what is hidden."""
    c.loss.lambda_vcg = 0.3


def heavy_vcg(c: ConfigDict) -> None:
    """More weight on the encoder's own token, which the embedding is the mean of."""
    c.loss.lambda_vcg = 3.0


def no_temporal_term(c: ConfigDict) -> None:
    """Predicted tokens need not equal the encoder's: only what they decode to counts."""
    c.loss.lambda_temp = 0.0


def heavy_temporal_term(c: ConfigDict) -> None:
    """Tokens that the next beat's can be told from."""
    c.loss.lambda_temp = 1.0


def three_to_eleven_leads(c: ConfigDict) -> None:
    """Views of every size: the twelve leads that are embedded look less strange."""
    c.geometry.most_visible = 11


def four_leads(c: ConfigDict) -> None:
    """Training views of four leads: nearer to the twelve that are embedded, and fewer bad ones."""
    c.geometry.num_visible = 4


def six_leads(c: ConfigDict) -> None:
    """Training views of six leads."""
    c.geometry.num_visible = 6


def low_gain(c: ConfigDict) -> None:
    """Only views whose lift amplifies threefold at most: less noise in, fewer different views."""
    c.geometry.max_gain = 3.0


def dower(c: ConfigDict) -> None:
    """Lead directions measured by Dower instead of the paper's."""
    c.geometry.matrix = "dower"


def record_norm(c: ConfigDict) -> None:
    """One scale for all leads of a record, which keeps the relations between them; needs its own
    shards."""
    c.preprocess.normalise = "record"


def lead_ii_peaks(c: ConfigDict) -> None:
    """R peaks from lead II, as the paper; needs its own shards."""
    c.preprocess.peaks = "lead_ii"


def papers_eps(c: ConfigDict) -> None:
    """The lift regularised as in the paper, so that nearly degenerate views amplify up to fifty
    times."""
    c.geometry.eps = 1e-4


def wide_tokens(c: ConfigDict) -> None:
    """Twice as many numbers a token, the same convolutions."""
    c.model.token_dim = 256


def reads_beats(c: ConfigDict) -> None:
    """The GRU reads every beat's token: else its state knows the first beat only."""
    c.model.dynamics_input = "encoded"


def with_std(c: ConfigDict) -> None:
    """How much the beats' tokens differ, beside their mean."""
    c.model.structure = "mean+std"


def with_extremes(c: ConfigDict) -> None:
    """Spread, steps and extremes of the beats' tokens: single abnormal beats."""
    c.model.structure = "mean+std+steps+max+min"


def lead_sizes(c: ConfigDict) -> None:
    """The leads' sizes in mV, which normalisation takes away."""
    c.model.lead_sizes = True


def layer_norm(c: ConfigDict) -> None:
    """No statistics of other records in a token: the same norm in training and in use."""
    c.model.norm = "layer"


def no_dropout(c: ConfigDict) -> None:
    """A small model on short runs fits too little rather than too much."""
    c.model.dropout = 0.0


def ema(c: ConfigDict) -> None:
    """The average of the last hundred steps' weights is embedded with."""
    c.optim.ema_decay = 0.99


def batch_32(c: ConfigDict) -> None:
    """Half the records a step, so twice the steps."""
    c.data.batch_size = 32


def half_rate(c: ConfigDict) -> None:
    """Half the learning rate."""
    c.optim.learning_rate *= 0.5


def double_rate(c: ConfigDict) -> None:
    """Twice the learning rate."""
    c.optim.learning_rate *= 2.0


_TERMS = (rhythm_term, all_tokens, view_term)
_WEIGHTS = (mean_terms, light_vcg, heavy_vcg, no_temporal_term, heavy_temporal_term)
_GEOMETRY = (
    three_to_eleven_leads,
    four_leads,
    six_leads,
    low_gain,
    dower,
    record_norm,
    papers_eps,
    lead_ii_peaks,
)
_MODEL = (wide_tokens, reads_beats, with_std, with_extremes, lead_sizes)
_TRAINING = (layer_norm, no_dropout, ema, batch_32, half_rate, double_rate)
CANDIDATES = {
    change.__name__: change for change in (*_TERMS, *_WEIGHTS, *_GEOMETRY, *_MODEL, *_TRAINING)
}


def get_config(variant: str = "base") -> ConfigDict:
    if variant not in ("base", *CANDIDATES):
        raise ValueError(
            f"unknown candidate '{variant}': choose from base, {', '.join(CANDIDATES)}"
        )
    c = base()
    if variant != "base":
        CANDIDATES[variant](c)
    return c
