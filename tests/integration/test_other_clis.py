"""OpenClaw, Hermes and OpenHands, real, through a whole Evener. Their first runs here install them (npm, PyPI)."""

from pathlib import Path

import pytest
from tests.integration.test_harness_checks import BY_NPM, assert_linear, checked

from evener.harnesses import pip
from evener.proto.reasons import TerminationReason

pytestmark = [pytest.mark.cli, pytest.mark.slow]
WITHOUT_PYTHON = pytest.mark.skipif(
    not pip.pythons(), reason=f"NOT TESTED WITH HARNESSES FROM PYPI: Python {pip.PYTHON_VERSION} is missing"
)


@BY_NPM
async def test_openclaw_works_in_one_row_over_responses(tmp_path: Path) -> None:
    """It rewrites ids of calls that are not of OpenAI's own form, `call_...`."""
    assert_linear(await checked(tmp_path, "openclaw", dialect="responses"))


@BY_NPM
@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
async def test_openclaw_works_with_a_row_for_each_call_where_its_note_moves(tmp_path: Path, dialect: str) -> None:
    """Each request has a note of its own at its end that the next one has not: all is delivered, in branches."""
    figures = await checked(tmp_path, "openclaw", dialect=dialect)

    assert figures.trouble is None
    assert (figures.exit_code, figures.termination_reason, figures.written, figures.calls) == (0, TerminationReason.FINISHED, True, 5)
    assert (figures.rows, figures.roots) == (5, {"first": 1, "rewritten": 4})
    assert (figures.delivered, figures.excluded, figures.fed) == (figures.sampled, {}, 1.0)


@WITHOUT_PYTHON
@pytest.mark.parametrize("name", ["hermes", "openhands"])
async def test_harnesses_from_pypi_work_in_one_row(tmp_path: Path, name: str) -> None:
    """Hermes strips texts, drops reasoning and sorts arguments; OpenHands asks for whole answers."""
    assert_linear(await checked(tmp_path, name))
