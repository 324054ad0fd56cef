"""From a config to the network that it describes."""

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from lvcg_jax.config.fields import check_choices
from lvcg_jax.config.inputs import as_geometry
from lvcg_jax.model import parts
from lvcg_jax.model.authors_code import AuthorsNetwork, Quirks
from lvcg_jax.model.network import Network
from lvcg_jax.peers import METHODS, OURS
from lvcg_jax.peers.peer import Choices, Peer


def make_model(config: ConfigDict) -> Network | Peer:
    """The network that a config describes; the one of another method, if it has a section
    `peer`."""
    check_choices(config)
    c, loss, preprocess, geometry = config.model, config.loss, config.preprocess, config.geometry
    described = {
        "signal": parts.Signal(
            beat_samples=preprocess.beat_samples,
            num_samples=round(preprocess.seconds * preprocess.rate),
            rate=preprocess.rate,
        ),
        "geometry": parts.Geometry(
            as_geometry(geometry.matrix), geometry.eps, geometry.learnable, c.space
        ),
        "layers": parts.Layers(
            norm=c.norm,
            norm_momentum=c.norm_momentum,
            norm_epsilon=c.norm_epsilon,
            dropout=c.dropout,
            gelu_exact=c.gelu_exact,
            dtype=c.dtype,
            remat=c.remat,
        ),
        "encoding": parts.Encoding(
            token_dim=c.token_dim,
            token_scope=c.token_scope,
            stem_features=c.stem_features,
            stage_features=c.stage_features,
            stage_blocks=c.stage_blocks,
            width=c.encoder_width,
        ),
    }
    if "peer" in config:
        return make_peer(config, described)
    described |= {
        "dynamics": parts.Dynamics(
            kind="none" if c.dynamics == "none" else "learned",
            reads=c.dynamics_input,
            start=c.dynamics_start,
            state_dim=c.state_dim,
            layers=c.dynamics_layers,
            scan_unroll=c.scan_unroll,
        ),
        "decoding": parts.Decoding(c.decoder_seed_features, c.decoder_features, c.decoder_width),
        "intervals": parts.Rhythm(
            dim=c.rhythm_dim,
            hidden=c.rhythm_hidden,
            basis=c.rhythm_basis,
            heads=c.rhythm_heads,
            intervals=c.rhythm_intervals,
            unit=c.rhythm_unit,
            steps=c.rhythm_steps,
            positions=c.rhythm_positions,
            max_rr=c.rhythm_max_rr,
            max_log_ratio=c.rhythm_max_log_ratio,
        ),
        "embedding": parts.Embedding(
            c.structure,
            c.lead_sizes,
            tuple(c.beat_modes),
            c.patterns,
            c.beat_levels,
            record_token(c),
        ),
        "objective": parts.Objective(
            ecg_source=loss.ecg_source,
            vcg_source=loss.vcg_source,
            encoded_share=c.encoded_share,
            rhythm=loss.lambda_rhythm > 0,
            rhythm_hidden_share=loss.rhythm_hidden_share,
            view=loss.lambda_view > 0,
        ),
    }
    quirks = Quirks(
        count_padding=c.padding == "counted",
        zero_start=c.dynamics == "zero",
        unroll_batch=c.unroll == "batch",
        passes_apart=c.decoder_passes == "apart",
        stitch=c.stitch,
        refine=c.refine,
        embedding_norm=c.embedding_norm,
        anchor_term=loss.lambda_base > 0,
    )
    if quirks == Quirks():
        return Network(**described)
    return AuthorsNetwork(**described, quirks=quirks)


def record_token(model: ConfigDict) -> parts.Encoding | None:
    """The encoder of the record token, from the section `model`; None without one."""
    if not model.record_token:
        return None
    return parts.Encoding(
        token_dim=model.record_token // 2,  # of each feature its mean and its highest value
        stem_features=model.record_stem,
        stage_features=model.record_features,
        stage_blocks=model.record_blocks,
        width=model.encoder_width,
    )


def make_peer(config: ConfigDict, described: dict) -> Peer:
    """The peer of a config with its `peer` section; `described` are the parts that it shares with
    our network."""
    fields = config.peer.to_dict()
    name = fields.pop("method")
    methods = METHODS | OURS
    if name not in methods:
        raise InputError(f"peer.method is '{name}': choose from {', '.join(methods)}")
    if name in OURS:
        described = described | {"encoding": record_token(config.model)}
    found = methods[name](**described, choices=Choices(**fields))

    # sizes that go together
    samples, patch = described["signal"].num_samples, found.choices.patch
    if patch < 2 or samples % patch:
        raise InputError(f"peer.patch={patch} does not divide the {samples} samples of a record")
    for size in ("vit_dim", "decoder_dim"):
        number = getattr(found.choices, size)
        if number % found.choices.vit_heads:
            raise InputError(
                f"peer.{size}={number} cannot be divided by"
                f" peer.vit_heads={found.choices.vit_heads}"
            )
    records = config.data.batch_size // config.optim.accumulate
    if records < found.least_records:
        raise InputError(
            f"peer.method={name} compares the records of a batch with each other, and there would"
            f" be {records}: data.batch_size / optim.accumulate must be {found.least_records} or"
            " more"
        )
    return found
