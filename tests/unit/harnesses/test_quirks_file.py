"""A TOML file that describes a harness which Evener does not know."""

from pathlib import Path

import pytest

from evener.harnesses.port import HarnessError
from evener.harnesses.quirks_file import read_quirks
from evener.proto.spec import Noise, Quirks, SideCall, Tolerance

WHOLE = """
tolerances = ["text_trimmed", "reasoning_absent"]
retry_header = "x-retry-count"
sub_agent_header = "x-sub-agent"
compacted = "^Summary of"

[[side_calls]]
name = "title"
system = "^You write titles"
tools = false

[[noise]]
where = "system"
pattern = 'at \\d+:\\d+'
"""


def test_every_field_can_be_given(tmp_path: Path) -> None:
    """As a folder of Evener's own declares them."""
    (tmp_path / "mine.toml").write_text(WHOLE)

    assert read_quirks(tmp_path / "mine.toml") == Quirks(
        tolerances=(Tolerance.TEXT_TRIMMED, Tolerance.REASONING_ABSENT),
        retry_header="x-retry-count",
        sub_agent_header="x-sub-agent",
        compacted="^Summary of",
        side_calls=(SideCall(name="title", system="^You write titles", tools=False),),
        noise=(Noise(where="system", pattern=r"at \d+:\d+"),),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tolerance = []", r"unknown key 'tolerance' in .*mine\.toml; did you mean 'tolerances'\?"),
        ('tolerances = ["text_trimed"]', r"unknown tolerance 'text_trimed' .*; did you mean 'text_trimmed'\?"),
        ('[[side_calls]]\nname = "x"\ntool = true', r"unknown key 'tool' in \[\[side_calls\]\] 1 of .*; did you mean 'tools'\?"),
        ('[[noise]]\nwhere = "sytem"\npattern = "x"', r"unknown where 'sytem' in \[\[noise\]\] 1 of .*; did you mean 'system'\?"),
        ('[[side_calls]]\nname = "x"', r"side call 'x' has no condition: give system, last or tools"),
        ('[[noise]]\nwhere = "tool"\npattern = "(x"', r"noise\[0\].pattern is not a regular expression .*: missing \) at position 2"),
        ("compacted = '((((((((((((((((a)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+'", r"compacted is not .*: repeat fewer parts"),
        ('compacted = "["', "compacted is not a regular expression"),
        ('[[side_calls]]\nname = "x"\nlast = "*"', "last is not a regular expression"),
        ("[[noise]]\nwhere = 'tool'", "missing required field `pattern`"),
        ("side_calls = 3", r"Expected `array`, got `int` - at `\$.side_calls`"),
        ('retry_header = "X-Retry"', "retry_header is 'X-Retry'; write it in lower case"),
        ("tolerances = [", "cannot read the quirks in"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """And what was perhaps meant."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(HarnessError, match=told):
        read_quirks(tmp_path / "mine.toml")


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    """In one line."""
    with pytest.raises(HarnessError, match="No such file"):
        read_quirks(tmp_path / "none.toml")
