"""TOML files read into checked models: a sentence for each thing that is wrong."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from polyclinic.errors import ConfigError, DataError
from polyclinic.toml import build_model, read_model, read_toml


class Room(BaseModel):
    model_config = ConfigDict(extra="forbid")

    beds: int = Field(2, gt=0)
    on_floor: int = Field(0, alias="on-floor")


class House(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    kind: Literal["ward", "home"] = "ward"
    password: str = ""
    rooms: tuple[Room, ...] = ()
    by_name: dict[str, Room | None] = Field(default_factory=dict, alias="named")

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if name.isspace():
            raise ValueError("the name is blank")
        return name


def test_a_file_that_is_missing_or_no_toml_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^There is no house file .*/none\.toml\.$"):
        read_toml(tmp_path / "none.toml", "house file")
    with pytest.raises(DataError, match=r"^No house stands here\.$"):
        read_toml(tmp_path / "none.toml", "house file", DataError, missing="No house stands here.")
    for unreadable in (tmp_path, tmp_path / ("x" * 5000)):
        with pytest.raises(ConfigError, match=r"^The house file .* cannot be read: [A-Z].*\.$"):
            read_toml(unreadable, "house file")
    for content, words in ((b"a = 1\nb = = 2", "line 2"), (b"a = '\xff'", "byte 6 is not UTF-8 text")):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=f"^The house file .*/bad.toml is not valid TOML: .*{words}") as caught:
            read_toml(tmp_path / "bad.toml", "house file")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "key 'name': it is missing."),
        ("nam = 1", "key 'nam': there is no such key. Did you mean 'name'?"),
        ("name = ' '", "key 'name': the name is blank, got ' '."),
        ("name = 'a'\nnam = 1", "key 'nam': there is no such key. Did you mean 'name'?"),
        (
            "nam = 1\nkind = 'hut'\n[[rooms]]\nbeds = 0\non-flor = 3",
            "key 'kind': it must be 'ward' or 'home', got 'hut'.\n"
            "key 'rooms.0.beds': it must be greater than 0, got 0.\n"
            "key 'rooms.0.on-flor': there is no such key. Did you mean 'on-floor'?\n"
            "key 'nam': there is no such key. Did you mean 'name'?",
        ),
        ("name = 'a'\nkind = 'hut'", "key 'kind': it must be 'ward' or 'home', got 'hut'."),
        ("name = 'a'\nrooms = 3", "key 'rooms': it must be a list, got 3."),
        ("name = 'a'\n[[rooms]]\nbeds = 0", "key 'rooms.0.beds': it must be greater than 0, got 0."),
        (
            "name = 'a'\n[[rooms]]\non-flor = 3",
            "key 'rooms.0.on-flor': there is no such key. Did you mean 'on-floor'?",
        ),
        (
            "name = 'a'\n[named.blue]\nbed = [3]",
            "key 'named.blue.bed': there is no such key. Did you mean 'beds'?",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_value_and_the_nearest_allowed_one(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "house.toml").write_text(text)
    with pytest.raises(DataError) as caught:
        read_model(House, tmp_path / "house.toml", "house file", DataError)
    source = f"{tmp_path / 'house.toml'}: "
    assert str(caught.value) == source + sentence.replace("\n", f"\n{source}")


def test_a_secret_is_never_quoted() -> None:
    for values in ({"name": "a", "pasword": "hush"}, {"name": "a", "kind": "hush"}):
        with pytest.raises(ConfigError) as caught:
            build_model(House, values, "The house", within=("house",), secret=True)
        assert "hush" not in str(caught.value) and str(caught.value).startswith("The house: key 'house.")


def test_a_sound_file_is_its_model(tmp_path: Path) -> None:
    (tmp_path / "house.toml").write_text("name = 'a'\n[[rooms]]\non-floor = 3\n")
    assert read_model(House, tmp_path / "house.toml", "house file").rooms == (Room(**{"on-floor": 3}),)
