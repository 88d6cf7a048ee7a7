"""The registry of importers, by the name of the format."""

from itertools import islice
from pathlib import Path
from typing import Final

from evener.proto.names import unknown
from evener.tasks.directory import find
from evener.tasks.errors import TaskError
from evener.tasks.imports.answers import import_answers, import_nemo_gym
from evener.tasks.imports.harbor import REGISTRY, import_harbor
from evener.tasks.imports.port import Importer, SourceUnreadable
from evener.tasks.imports.r2e import import_r2e
from evener.tasks.imports.read_rows import HUB, read_rows
from evener.tasks.imports.swe import SWE_IMPORTERS
from evener.tasks.imports.swe_dialects import SWE_DIALECTS
from evener.tasks.imports.terminal_bench import import_terminal_bench, terminal_bench_tasks
from evener.tasks.imports.verifiers import VERIFIERS, import_verifiers

HARBOR: Final = "harbor"
ROWS: Final = "rows"
NEMO_GYM: Final = "nemo-gym"
NEMO_GYM_SIGN: Final = "responses_create_params"
"""The column by which rows of NeMo Gym are known."""
TERMINAL_BENCH: Final = "terminal-bench"
R2E: Final = "r2e-gym"
TASKSET: Final = "verifiers"
R2E_SIGNS: Final = frozenset({"docker_image", "expected_output_json", "problem_statement"})
IMPORTERS: Final[dict[str, Importer]] = {
    HARBOR: import_harbor,
    ROWS: import_answers,
    NEMO_GYM: import_nemo_gym,
    **SWE_IMPORTERS,
    R2E: import_r2e,
    TERMINAL_BENCH: import_terminal_bench,
    TASKSET: import_verifiers,
}


def importer_for(name: str) -> Importer:
    """Return the importer of a format. Raises SourceUnreadable."""
    if name not in IMPORTERS:
        raise SourceUnreadable(unknown("format", name, IMPORTERS, "of tasks"))
    return IMPORTERS[name]


def format_of_source(source: str, split: str | None = None) -> str:
    """Return the format that a source seems to have: of its directories, or of the columns of its first row. Raises SourceUnreadable."""
    if source.startswith(REGISTRY):
        return HARBOR
    if source.startswith(VERIFIERS):
        return TASKSET
    if not source.startswith(HUB):
        path = Path(source)
        if not path.exists():
            msg = f"{source}: no such file or folder"
            raise SourceUnreadable(msg)
        if path.is_dir() and _holds_tasks(path):
            return HARBOR
        if terminal_bench_tasks(path):
            return TERMINAL_BENCH
    columns = {column for row in islice(read_rows(source, split), 1) for column in row}
    if NEMO_GYM_SIGN in columns:
        return NEMO_GYM
    if columns >= R2E_SIGNS:
        return R2E
    return next((name for name, dialect in SWE_DIALECTS.items() if columns >= set(dialect.signs)), ROWS)


def _holds_tasks(path: Path) -> bool:
    try:
        return bool(find(path))
    except TaskError:
        return False
