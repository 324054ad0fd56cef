"""Pre-training LVCG: three presets, and smaller variants of them.

    paper    the paper's text (the default)
    release  what the authors' published code does, its defects included (docs/presets.md)
    best     the paper's, moved to what we measured to work best
    small    `best` with a tenth of its compute; tenth: so is `paper`
    accelerator  `paper` as a TPU or GPU wants it, the same method; not yet run on hardware
    demo, smoke: minutes and seconds on two cores

    python -m lvcg_jax.train --config=configs/pretrain.py --config.data.dir=SHARDS
    python -m lvcg_jax.train --config=configs/pretrain.py:release --config.data.dir=SHARDS
    python -m lvcg_jax.train --config=configs/pretrain.py:demo --workdir=runs/demo
    python -m lvcg_jax.train --config=configs/pretrain.py:smoke --workdir=runs/smoke

Without `data.dir` a synthetic data set is made in the run directory. Any field can be changed on
the command line (`--config.optim.learning_rate=1e-3`); an unknown field is refused.
"""

from ml_collections import ConfigDict, config_dict


def paper() -> ConfigDict:
    """Every choice of the method. `open` in a comment: the paper does not say, or its words allow
    more than one reading. Fields of what it does not have at all are off, or say `ours`."""
    c = ConfigDict()
    c.seed = 0

    # the fields of data_prep.ecg.preprocess.Preprocess; must be those of the shards
    c.preprocess = ConfigDict()
    c.preprocess.rate = 100.0  # f_s, Hz
    c.preprocess.seconds = 10.0  # T
    c.preprocess.band_low = 0.67  # Hz, zero-phase Butterworth
    c.preprocess.band_high = 40.0
    c.preprocess.filter_order = 3  # open
    # z-score of each lead; 'record': one scale for all leads, keeps III = II - I
    c.preprocess.normalise = "lead"
    c.preprocess.max_gap_seconds = 0.1  # open: longer gaps make the lead missing
    c.preprocess.max_mv = 20.0  # open: samples beyond are gaps
    c.preprocess.flat_mv = 0.03  # open: a lead that spans less is missing
    c.preprocess.flat_share = 0.5  # open: a lead that stands still for this share is missing
    c.preprocess.rail_share = 0.02  # open: a lead with this share of samples at its rail is missing
    # open: limb leads that follow exactly from others are recovered
    c.preprocess.recover_limb_leads = True
    c.preprocess.peaks = "lead_ii"  # R peaks; 'vcg': from all leads, far fewer misses
    c.preprocess.peak_height = 2.0  # open: standard deviations of lead II
    c.preprocess.peak_retry_height = 1.0  # open: if fewer than three peaks were found
    c.preprocess.peak_distance = 0.3  # open: seconds
    c.preprocess.rr_min = 0.3  # seconds
    c.preprocess.rr_max = 2.0  # seconds; see model.rhythm_max_rr
    c.preprocess.beat_samples = 128  # P
    c.preprocess.max_beats = 20  # N_max
    c.preprocess.geometry = "paper"  # ours: lead directions of the 'vcg' peak detector

    c.geometry = ConfigDict()
    # or 'dower', a file, or twelve rows of three numbers; ours: of up to twelve, the modes of a
    # field, see `lvcg field_modes`
    c.geometry.matrix = "paper"
    c.geometry.eps = 1e-4  # Tikhonov coefficient of the lift
    c.geometry.learnable = False
    c.geometry.num_visible = 3  # K, visible leads of a training view
    # ours: K from num_visible to this, every number as often
    c.geometry.most_visible = config_dict.placeholder(int)
    # open in the paper: draw only subsets that span R^3. Few leads never span a field of more than
    # three modes, and its lift is defined for any of them: there all subsets are drawn
    c.geometry.identifiable_only = True
    # ours: bound on the lift's largest singular value
    c.geometry.max_gain = config_dict.placeholder(float)

    c.model = ConfigDict()
    # 'ecg': beats are encoded and decoded as leads, zero where invisible; no geometry
    c.model.space = "vcg"
    c.model.token_dim = 256  # D
    # a token of all axes; 'axis': of each axis alone, joined to the same size
    c.model.token_scope = "beat"
    c.model.state_dim = 256  # d_dyn
    c.model.rhythm_dim = 128  # d_rhythm; the embedding has 256 + 256 + 128 = 640 numbers
    c.model.stem_features = 48
    c.model.stage_features = (96, 192, 256, 256)
    c.model.stage_blocks = (3, 3, 3, 2)
    c.model.encoder_width = 7
    c.model.decoder_seed_features = 128
    c.model.decoder_features = (128, 64, 64, 32, 32)
    c.model.decoder_width = 5
    # open: decoder calls of a step; 'apart': anchor beat, slots 1.. and slot 0 each alone
    c.model.decoder_passes = "one"
    # start and read-out of the GRU; 'zero' state and none; 'none': encoder tokens
    c.model.dynamics = "learned"
    # what the GRU reads at each beat: its own token, or the 'encoded' one
    c.model.dynamics_input = "predicted"
    # open: the beat that the GRU starts from: the first 'complete' one after slot 0; 'first': slot
    # 0, the piece before the first R peak; 'each' (ours): the first complete one, and the embedding
    # is the mean over starts at each of them. A record without a complete beat starts at slot 0.
    # The start of dynamics='zero' is slot 1 in any case
    c.model.dynamics_start = "complete"
    c.model.dynamics_layers = 1  # open; dropout between layers
    # open: over a record's own beats; 'batch': over as many as the longest of the batch has
    c.model.unroll = "record"
    # the ECG term on beats; True: on whole records, with zeros at beat boundaries
    c.model.stitch = False
    c.model.refine = 0  # channels of a learned residual on the projected leads; 0: geometry only
    c.model.rhythm_hidden = 32  # open
    c.model.rhythm_basis = 8
    c.model.rhythm_heads = 4  # open
    # open: 'complete' R-R intervals, or 'all' with the two partial ones; the paper writes N of
    # them, as many as beats
    c.model.rhythm_intervals = "complete"
    # seconds; longer intervals are left out of the rhythm part, as the paper filters R-R by
    # preprocess.rr_max: a missed beat is no slow one. 0: all count
    c.model.rhythm_max_rr = 2.0
    # open: unit of the R-R statistics; or 'samples', in which the paper writes R-R intervals
    c.model.rhythm_unit = "seconds"
    # open: successive differences in seconds; 'relative': as shares of the mean interval
    c.model.rhythm_steps = "seconds"
    c.model.rhythm_positions = 0  # open: slots with a learned vector each
    c.model.rhythm_max_log_ratio = 2.0  # open: an interval counts as at most e^2 times the mean
    # of all tokens; 'anchor': that of slot 1; 'mean+std+steps', or 'none': see
    # lvcg_jax/model/pooling.py
    c.model.structure = "mean"
    # ours: the leads' sizes in mV, which normalisation takes away, join the structure
    c.model.lead_sizes = False
    # ours: numbers for the mean beat in mV and ms, and for what differs between beats, that join
    # it too: coordinates in modes of the training records, see lvcg_jax/model/beat_shape.py
    c.model.beat_modes = (0, 0)
    # ours: numbers for how often short patterns occur in the record, that join it too: coordinates
    # in modes of the training records, see lvcg_jax/model/patterns.py
    c.model.patterns = 0
    # ours: numbers for how high, steep and bent each lead is at each moment of the median beat,
    # that join it in the same way, see lvcg_jax/model/beat_levels.py
    c.model.beat_levels = 0
    # ours: numbers of a token of the whole record, that joins it too: half of them means over the
    # record, half of them highest values, see lvcg_jax/model/record_token.py. It is trained by
    # configs/record_token.py and joins trained weights by `lvcg add_parts`
    c.model.record_token = 0
    c.model.record_stem = 24  # channels of its ResNet1D
    c.model.record_features = (32, 64, 96, 128)
    c.model.record_blocks = (1, 1, 2, 2)
    # ours: weight of the encoder's tokens in leads derived from both kinds; chosen on validation
    # records
    c.model.encoded_share = 1 / 3
    c.model.embedding_norm = False  # layer norm of each part of the embedding
    c.model.norm = "batch"  # open: 'batch' over valid beats, or 'layer'
    c.model.norm_momentum = 0.9  # open: of the running statistics
    c.model.norm_epsilon = 1e-5  # open
    # open: 'counted': empty slots are beats of zeros, for statistics, tokens and the GRU
    c.model.padding = "ignored"
    c.model.dropout = 0.1
    c.model.gelu_exact = False  # open: the tanh form is faster, the difference under 1e-3
    c.model.scan_unroll = 1  # beats a turn of the GRU's loop; on CPU more are slower
    # True: blocks are computed again for gradients, to save an accelerator's memory
    c.model.remat = False
    # 'bfloat16' computes convolutions in bf16; parameters and statistics stay float32
    c.model.dtype = "float32"

    c.loss = ConfigDict()
    c.loss.lambda_ecg = 1.0
    c.loss.lambda_vcg = 1.0
    c.loss.lambda_temp = 0.1
    # 0: the rhythm encoder is a fixed seeded projection, as the printed objective implies
    c.loss.lambda_rhythm = 0.0
    c.loss.rhythm_hidden_share = 0.3  # ours: of the R-R intervals, which the rhythm term must guess
    c.loss.lambda_view = 0.0  # ours: tokens of the visible leads must be those of all leads
    c.loss.lambda_base = 0.0  # the beat of slot 1 once more
    # open: tokens that hidden leads are decoded from: the temporal module's; 'encoded': the
    # encoder's own, the paper's f_dec(z_n) read literally; 'both': the mean of the two terms
    c.loss.ecg_source = "predicted"
    c.loss.vcg_source = "encoded"  # tokens that L_vcg decodes: the encoder's own, or 'predicted'
    # over elements, as printed; or 'mean'; 'mixed': see lvcg_jax/model/losses.py
    c.loss.reduction = "sum"
    c.loss.huber_delta = 1.0  # open

    c.optim = ConfigDict()
    c.optim.learning_rate = 5e-4
    # ours: how the rate follows data.batch_size, from the paper's 64: 'none', 'sqrt' or 'linear'
    c.optim.batch_rule = "none"
    c.optim.weight_decay = 0.01
    c.optim.decay = "kernels"  # open: 'all' decays norms and biases too
    c.optim.beta1 = 0.9  # open
    c.optim.beta2 = 0.999  # open
    c.optim.clip_norm = 1.0
    c.optim.warmup_steps = 2000
    c.optim.schedule = "cosine"  # open: 'cosine' to zero at the last step, or 'constant'
    c.optim.accumulate = 1  # micro-batches a step
    c.optim.ema_decay = 0.0  # ours; 0: no moving average of the parameters

    c.data = ConfigDict()
    # shards of data_prep.build; several, with weights: 'data/ptbxl,data/csn:0.5'; empty: a
    # synthetic set is made
    c.data.dir = ""
    # split to train on; 'all': every record, then no score on this data set is of unseen records
    c.data.splits = "train"
    c.data.batch_size = 64  # records a step, over all devices and processes
    # fit the encoder's slots to the batch's beats; False: max_beats slots a record
    c.data.pack = True
    c.data.prefetch = 4  # batches read ahead
    # a folder on a disk of the machine: records are packed there once and then read ten times as
    # fast, and data sets at gs://BUCKET/FOLDER are copied there; empty: shards are read as they are
    c.data.cache = ""
    c.data.threads = 1  # that read; one is plenty for a CPU, an accelerator wants more
    c.data.synthetic_patients = 2000

    c.mesh = ConfigDict()
    # devices a parameter may be spread over; the rest of the devices share the batch
    c.mesh.model = 1
    # 'data' or 'model': spread large parameters and their moments over that axis
    c.mesh.shard_parameters = "none"
    c.mesh.shard_min_size = 65536  # elements
    # devices with fewer records share groups of twice as many with their neighbours: less padding,
    # but more small messages; 1: never
    c.mesh.group_records = 8

    c.train = ConfigDict()
    c.train.steps = 500_000
    c.train.start_from = ""  # a run whose weights this one starts with
    c.train.log_every = 50
    c.train.validate_every = 5_000
    c.train.validate_records = 2_048
    c.train.checkpoint_every = 1_000
    c.train.keep_checkpoints = 3
    return c


def release() -> ConfigDict:
    """What the authors' published code does; preprocessing that they did not publish stays as in
    `paper`."""
    c = paper()
    c.geometry.eps = 0.1
    c.geometry.identifiable_only = False
    c.model.structure = "anchor"
    c.model.embedding_norm = True
    c.model.dynamics = "zero"  # from slot 1; slot 0 keeps its own token and counts in all terms
    c.model.dynamics_start = "first"
    c.model.dynamics_layers = 2
    c.model.unroll = "batch"
    c.model.padding = "counted"
    c.model.decoder_passes = "apart"
    c.model.stitch = True
    c.model.refine = 128
    c.model.rhythm_intervals = "all"
    c.model.rhythm_max_rr = 0.0
    c.model.rhythm_unit = "samples"
    c.model.rhythm_steps = "relative"
    c.model.rhythm_positions = 20
    c.model.gelu_exact = True
    c.loss.vcg_source = "predicted"
    c.loss.reduction = "mixed"
    c.loss.lambda_base = 1.0
    c.optim.warmup_steps = 0
    c.optim.schedule = "constant"
    c.optim.decay = "all"
    return c


def best() -> ConfigDict:
    """The paper's, moved to what we measured to work best: docs/experiments.md has a row for each
    difference."""
    c = paper()
    c.preprocess.peaks = "vcg"  # lead II misses beats in one record of ten
    # with the paper's 1e-4 a few nearly degenerate views carry the whole loss
    c.geometry.eps = 1e-2
    c.model.dynamics_start = "each"  # one beat more or less at the start moves no embedding
    c.model.lead_sizes = True
    c.model.patterns = 192  # what is small, local or between the beats
    c.model.beat_levels = 144  # what rules of physicians measure
    c.model.rhythm_max_rr = 0.0  # these peaks miss next to no beat: a long interval is a pause
    # trains the rhythm encoder, which the printed objective does not reach
    c.loss.lambda_rhythm = 1.0
    return c


def accelerator() -> ConfigDict:
    """`paper` for a TPU or GPU: bfloat16 convolutions, fewer turns of the GRU's loop, more
    readers."""
    c = paper()
    c.model.dtype = "bfloat16"
    c.model.scan_unroll = 5
    c.optim.batch_rule = "sqrt"  # as Adam wants it; at a batch of 64 it changes nothing
    c.data.threads = 8
    c.data.prefetch = 16
    return c


def _use_a_tenth(c: ConfigDict) -> ConfigDict:
    """Modules with a tenth of the paper's compute a beat."""
    c.model.token_dim = 128
    c.model.state_dim = 128
    c.model.stem_features = 16
    c.model.stage_features = (32, 64, 96, 128)
    c.model.stage_blocks = (2, 2, 2, 1)
    c.model.decoder_seed_features = 64
    c.model.decoder_features = (64, 32, 16, 16, 8)
    return c


def tenth() -> ConfigDict:
    """The paper's method with a tenth of its compute."""
    return _use_a_tenth(paper())


def small() -> ConfigDict:
    """`best` with a tenth of its compute, for many records and slow machines."""
    c = _use_a_tenth(best())
    # a packaged file under 2 MB and 10 ms a record: the shape of beats in the place of patterns
    c.model.patterns = 0
    c.model.beat_levels = 0
    c.model.beat_modes = (96, 32)
    return c


def narrow() -> ConfigDict:
    """The paper's method with narrow modules: about a hundredth of its compute."""
    c = paper()
    c.model.token_dim = 64
    c.model.state_dim = 64
    c.model.rhythm_dim = 32
    c.model.stem_features = 16
    c.model.stage_features = (32, 48, 64, 64)
    c.model.stage_blocks = (1, 1, 1, 1)
    c.model.decoder_seed_features = 32
    c.model.decoder_features = (32, 32, 16, 16, 16)
    return c


def demo() -> ConfigDict:
    """Minutes on two cores: the narrow model on synthetic ECG, with a lift that amplifies at most
    fivefold."""
    c = narrow()
    c.model.decoder_features = (32, 32, 16, 8, 8)
    c.geometry.eps = 1e-2  # the gain of the lift is at most 1 / (2 sqrt(eps)) = 5
    c.optim.learning_rate = 2e-3
    c.optim.warmup_steps = 60
    c.data.batch_size = 32
    c.data.synthetic_patients = 600
    c.train.steps = 700
    c.train.log_every = 20
    c.train.validate_every = 350
    c.train.validate_records = 256
    c.train.checkpoint_every = 350
    return c


def smoke() -> ConfigDict:
    """Seconds on two cores: shows that everything runs, nothing more."""
    c = narrow()
    c.model.stem_features = 8
    c.model.stage_features = (8, 16)
    c.model.stage_blocks = (1, 1)
    c.model.token_dim = 16
    c.model.state_dim = 16
    c.model.rhythm_dim = 8
    c.model.rhythm_hidden = 8
    c.model.rhythm_heads = 2
    c.model.decoder_seed_features = 8
    c.model.decoder_features = (8, 8, 8, 8, 8)
    c.optim.learning_rate = 1e-3
    c.optim.warmup_steps = 5
    c.data.batch_size = 8
    c.data.synthetic_patients = 24
    c.train.steps = 20
    c.train.log_every = 1
    c.train.validate_every = 10
    c.train.validate_records = 16
    c.train.checkpoint_every = 5
    return c


def get_config(variant: str = "paper") -> ConfigDict:
    variants = {
        make.__name__: make
        for make in (paper, release, best, accelerator, small, tenth, demo, smoke)
    }
    if variant not in variants:
        raise ValueError(f"unknown config variant '{variant}': choose from {', '.join(variants)}")
    return variants[variant]()
