"""The import contracts of `pyproject.toml` hold what they say: an import that closes a circle breaks them."""

from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.layers import LayersContract

KINDS = {"layers": LayersContract, "acyclic_siblings": AcyclicSiblingsContract}


def broken(planted: tuple[str, str] | None) -> list[str]:
    """Return the kinds of contracts that break when one module imports another as well."""
    configuration = read_configuration(str(Path(__file__).parents[3] / "pyproject.toml"))
    session = configuration["session_options"]
    found = []
    for options in configuration["contracts_options"]:
        if options["type"] in KINDS:
            graph = grimp.build_graph(*session["root_packages"])
            if planted:
                graph.add_import(importer=planted[0], imported=planted[1])
            contract = KINDS[options["type"]](name=str(options["name"]), session_options=session, contract_options=options)
            if not contract.check(graph, verbose=False).kept:
                found.append(options["type"])
    return found


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [
        (None, []),
        (("evener.bus.port", "evener.service.context"), ["layers"]),
        (("evener.service.context", "evener.client.views"), ["layers"]),
        (("evener.scheduler.core", "evener.evaluator.core"), ["layers"]),
        (("evener.engines.port", "evener.service.events"), ["layers"]),
        (("evener.bus.port", "evener.bus.kafka"), ["acyclic_siblings"]),
    ],
    ids=str,
)
def test_planted_circle_breaks_a_contract(planted: tuple[str, str] | None, kinds: list[str]) -> None:
    """The last two packages are of one layer: neither knows the other."""
    assert broken(planted) == kinds
