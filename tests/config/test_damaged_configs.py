"""A config.json that is no config of ours is one line, never a trace or a model without end."""

import json

import pytest
from helpers.commands import get_config

from data_prep.base.errors import InputError
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import load_config, save_config

NONSENSE = {
    "a list": b"[1, 2]",
    "null": b"null",
    "not UTF-8": b'{"seed": "\xff"}',
    "without end": b"[" * 100_000,
    "cut off": b'{"model": {',
    "a dotted key": b'{"model": {"a.b": 1}}',
    "no section": b'{"model": 7}',
}


@pytest.mark.parametrize("what", NONSENSE)
def test_what_is_no_config_is_one_line(tmp_path, what):
    (tmp_path / "config.json").write_bytes(NONSENSE[what])
    with pytest.raises(InputError, match="config.json is not a readable config"):
        load_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    "section, field, value",
    [
        ("model", "token_dim", 0),
        ("model", "token_dim", 10**12),
        ("model", "stage_blocks", [100_000, 1]),
        ("model", "stage_features", [8] * 100),
        ("model", "dynamics_layers", 10**6),
        ("model", "norm_epsilon", float("nan")),
        ("geometry", "eps", float("nan")),
    ],
)
def test_numbers_that_no_model_can_have_are_one_line(tmp_path, section, field, value):
    save_config(get_config("smoke"), tmp_path / "config.json")
    data = json.loads((tmp_path / "config.json").read_text())
    data[section][field] = value
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=f"{section}.{field} is "):
        make_model(load_config(tmp_path / "config.json"))
