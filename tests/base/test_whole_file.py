"""Files that are written whole or not at all."""

import pytest

from data_prep.base.errors import InputError
from data_prep.base.files import whole_file, write_whole


def test_what_goes_wrong_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    write_whole(path, "ü\n")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == "ü\n".encode() and [p.name for p in path.parent.iterdir()] == [
        path.name
    ]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="t.json: cannot be written"):
        write_whole(tmp_path / "file" / "t.json", "")
    with pytest.raises(InputError, match=f"{tmp_path.name}: cannot be written"):
        write_whole(tmp_path, "")  # a folder
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and not tmp_path.with_name(
        f"{tmp_path.name}.tmp"
    ).exists()
