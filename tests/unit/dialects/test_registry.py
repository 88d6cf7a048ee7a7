"""What the registry says of each dialect."""

import pytest

from evener.dialects.canonical import Dialect
from evener.dialects.registry import DIALECTS, dialect_for


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_path_that_people_are_told_is_served(dialect: Dialect) -> None:
    """Also with the names in it filled in, as a client does."""
    assert dialect_for(dialect.endpoint.replace("MODEL", "policy")) is dialect
