"""The generated pages of `docs/reference`: every event, configuration key, metric, and field of a request, from the code.

`python scripts/reference.py` writes them (`make docs`); a test says when they are out of date.
"""

import ast
import enum
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta, Struct, structs
from prometheus_client import CollectorRegistry

from evener.dialects.registry import ENTRIES
from evener.dialects.rules import STOPS, Rules
from evener.proto.codec import tag_of
from evener.proto.docs import meanings
from evener.proto.schema import EVENTS
from evener.proto.sessions import Event
from evener.proto.spec import PolicyOptions
from evener.proto.topics import TOPICS, Topic
from evener.service.config import SECTIONS, ServiceConfig
from evener.service.config_text import toml
from evener.service.telemetry import Metrics
from evener.templates.config import PolicyConfig

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
MADE: Final = "<!-- Made by `make docs` from the code. Change the docstrings there, not this page. -->"
CONFIGS: Final = {name: f"evener.{'cli' if name == 'up' else name}.config" for name in SECTIONS}
LIMITS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PARTS: Final = (Struct, enum.Enum)
"""What has a section of its own."""
NAMES: Final = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
EVENTS_INTRO: Final = """\
Every record on the bus is one of these: a msgpack map whose `type` is the tag. A field that is left out has its default.
Fields of kind *array* hold raw little-endian bytes; a record above 256 KiB carries references to the blob store instead.
The same as JSON Schema: [events.json](../../proto/schema/events.json)."""
CONFIGURATION_INTRO: Final = """\
A key is given in a TOML file (`--config FILE`), in the environment, or as a flag; later ones win. For the key `lease_seconds`
of the scheduler: `lease_seconds = 30` in the table `[scheduler]`, `EVENER_SCHEDULER_LEASE_SECONDS=30`, or `--lease-seconds 30`
(`--scheduler.lease-seconds 30` with `evener up`, which runs all services). A key that all share stands at the top of the file,
in `EVENER_<KEY>`, or in a flag without a section. An unknown key is an error that names the nearest known one. `--help` shows all
keys, `--print-config` their effective values."""

METRICS_INTRO: Final = """\
Every process serves these in Prometheus' format at `/metrics`, beside the standard `process_*` metrics. Each service changes its own;
in `evener up` one process has them all."""
DIALECTS_INTRO: Final = """\
What happens to the fields of a harness's request:

- *Obeyed*: the field does what it says, as far as this page says.
- *Recorded*: the field stands in the call's [`requested_params`](events.md#callopened) and changes nothing. The same holds for every
  field that is in no table.
- *Refused*: status 400 with the field's name, because without the field the answer would mean something else.
- *Removed*: a tool that the provider would run itself. The model does not see it, and `requested_params.removed_tools` names it.

What is dropped from a tool stands in `requested_params.tools`, by the tool's name. Unknown fields inside a message are dropped without a
record. Null asks for nothing, and so do false and empty values of fields that would be refused. For a field of which one value is served,
an empty text asks for nothing."""


def events() -> str:
    """Return the page of all events, by topic, then of the Structs and enums that they are made of."""
    pieces = [MADE, "# Events", EVENTS_INTRO, _contents()]
    for topic, found in EVENTS.items():
        pieces += _topic(topic, found)
    pieces.append("## Parts of events")
    pieces += [
        _part(kind) for kind in sorted(_parts(event for found in EVENTS.values() for event in found), key=lambda kind: kind.__name__)
    ]
    return "\n\n".join(pieces) + "\n"


def configuration() -> str:
    """Return the page of all keys, by section."""
    shared = ServiceConfig.__struct_fields__
    pieces = [MADE, "# Configuration", CONFIGURATION_INTRO, "## Of every service", _keys(ServiceConfig)]
    for section, module in CONFIGS.items():
        config = importlib.import_module(module).Config
        own = [name for name in config.__struct_fields__ if name not in shared or (section == "up" and name == "port")]
        pieces += [f"## `[{section}]`", _doc(config), _keys(config, own)]
    pieces += ["## One of `policies`", _doc(PolicyConfig), _keys(PolicyConfig)]
    pieces += ["## `options` of a policy", _doc(PolicyOptions), _keys(PolicyOptions)]
    return "\n\n".join(pieces) + "\n"


def dialects() -> str:
    """Return the page of the fields of requests, by dialect."""
    pieces = [MADE, "# Fields of requests", DIALECTS_INTRO]
    for entry in ENTRIES:
        rows = ["| field | is | |", "|---|---|---|", *(row for table in entry.rules for row in _becoming(table))]
        pieces += [f"## {entry.api}", "\n".join(rows)]
    return "\n\n".join(pieces) + "\n"


def metrics() -> str:
    """Return the page of all metrics, in the order of their registration."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in vars(Metrics(CollectorRegistry())).values():
        (family,) = metric.describe()
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001 - nothing public tells them without a sample
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {labels} | {_cell(family.documentation)} |")
    return "\n\n".join([MADE, "# Metrics", METRICS_INTRO, "\n".join(rows)]) + "\n"


PAGES: Final = {"events.md": events, "configuration.md": configuration, "dialects.md": dialects, "metrics.md": metrics}


def _becoming(rules: Rules) -> Iterator[str]:
    """Yield rows of the fields of a table: what becomes of them, and what there is to say."""
    limited = "the run's own limit holds where it has one; lowered to what is left of context and budget, never refused"
    told = dict.fromkeys(rules.limits, ("obeyed, recorded", limited))
    told |= {name: ("obeyed", why) for name, why in rules.obeyed.items()}
    told |= {name: ("recorded", f"the run's holds; from {least:g} to {most:g}") for name, (least, most) in rules.bounds.items()}
    told |= dict.fromkeys(sorted(rules.integers), ("recorded", "the run's holds; a whole number"))
    told |= {name: ("recorded", why) for name, why in rules.recorded.items()}
    told |= dict.fromkeys(sorted(rules.hosted), ("removed", "the provider would run it"))
    told |= {name: ("refused", why) for name, why in rules.refused.items()}
    told |= {name: (f"refused but for `{toml(only.value)}`", only.why) for name, only in rules.only.items()}
    told |= {rules.stops: ("refused", STOPS)} if rules.stops else {}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, said in told.items():
        alike.setdefault(said, []).append(f"`{rules.path(name)}`")
    for (becomes, why), names in alike.items():
        yield f"| {', '.join(names)} | {becomes} | {_cell(why)} |"


def _contents() -> str:
    rows = ["| topic | key | partitions | events |", "|---|---|---|---|"]
    for topic, found in EVENTS.items():
        spec = TOPICS[topic]
        name = f"`{topic}`{' (compacted)' if spec.compacted else ''}"
        parted = "the deployment's" if spec.partitioned else "one"
        rows.append(f"| {name} | {spec.key} | {parted} | {', '.join(map(_named, found))} |")
    return "\n".join(rows)


def _topic(topic: Topic, found: Iterable[type[Event]]) -> Iterator[str]:
    new = [event for event in found if next(first for first, events in EVENTS.items() if event in events) is topic]
    if new:
        yield f"## Topic `{topic}`"
    for event in new:
        yield f"### {event.__name__}"
        yield f"`{tag_of(event)}`. {_doc(event)}"
        yield _fields(event)


def _part(kind: type) -> str:
    told = _fields(kind) if issubclass(kind, Struct) else _values(kind)
    return f"### {kind.__name__}\n\n{_doc(kind)}\n\n{told}"


def _fields(struct: type[Struct]) -> str:
    hints, told = get_type_hints(struct, include_extras=True), meanings(struct)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in structs.fields(struct):
        rows += [f"| `{field.name}` | {_spelled(hints[field.name], _named)} | {_default(field)} | {_cell(told[field.name])} |"]
    return "\n".join(rows)


def _values(kind: Any) -> str:
    told = _value_docs(kind)
    rows = [f"| `{value.value}` | {_cell(told.get(value.name, ''))} |" for value in kind]
    return "\n".join(["| value | meaning |", "|---|---|", *rows])


def _keys(config: type[Struct], wanted: Iterable[str] | None = None) -> str:
    """Return a table of the wanted keys. None: of all."""
    hints, told = get_type_hints(config, include_extras=True), meanings(config)
    fields = {field.name: field for field in structs.fields(config)}
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name in fields if wanted is None else wanted:
        rows += [f"| `{name}` | {_spelled(hints[name], _allowed)} | {_default(fields[name])} | {_cell(told[name])} |"]
    return "\n".join(rows)


def _default(field: structs.FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        made = field.default_factory
        if inspect.isfunction(made):  # it depends on the machine: say how
            return (made.__doc__ or "").removeprefix("Return ").rstrip(".")
        return f"`{toml(made())}`"
    if field.default is NODEFAULT:
        return "*required*"
    return f"`{_cell(toml(field.default))}`"


def _spelled(hint: Any, name: Callable[[Any], str]) -> str:
    """Return a type as people read it; `name` says what a Struct or an enum is called."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], [each for each in arguments[1:] if isinstance(each, Meta)], name)
    if origin is tuple and Ellipsis in arguments:
        return f"list of {_spelled(arguments[0], name)}"
    if origin is tuple:
        return f"pair of {' and '.join(_spelled(each, name) for each in arguments)}"
    if origin is dict:
        return f"map of {_spelled(arguments[0], name)} to {_spelled(arguments[1], name)}"
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if arguments:
        return " or ".join(_spelled(each, name) for each in arguments)
    if hint is type(None):
        return "none"
    return name(hint) if issubclass(hint, PARTS) else NAMES.get(hint.__name__, str(hint.__name__))


def _annotated(hint: Any, metas: Iterable[Meta], name: Callable[[Any], str]) -> str:
    described = "".join(meta.description or "" for meta in metas)
    for kind in ("int32", "float32", "uint8"):
        if described.startswith(kind):
            return f"array, {kind}"
    if described.startswith("UTF-8 JSON"):
        return "JSON"
    limits = [f"{sign} {getattr(meta, limit):g}" for meta in metas for limit, sign in LIMITS.items() if getattr(meta, limit) is not None]
    return " ".join([_spelled(hint, name), ", ".join(limits)]).strip()


def _named(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _allowed(kind: Any) -> str:
    """Return the values of an enum, or that it is a table."""
    return " or ".join(f"`{value.value}`" for value in kind) if issubclass(kind, enum.Enum) else "table"


def _parts(kinds: Iterable[type]) -> set[type]:
    """Return the Structs and enums that these are made of, themselves left out."""
    found: set[type] = set()
    todo = list(kinds)
    begun = set(todo)
    while todo:
        for hint in get_type_hints(todo.pop()).values():
            for kind in _leaves(hint):
                if kind not in found and kind not in begun:
                    found.add(kind)
                    if issubclass(kind, Struct):
                        todo.append(kind)
    return found


def _leaves(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, PARTS):
        yield hint
    for inner in get_args(hint):
        yield from _leaves(inner)


def _value_docs(kind: type[enum.Enum]) -> dict[str, str]:
    """Return name to the string after a value of an enum."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef))
    docs = {}
    for value, after in pairwise(body):
        if isinstance(value, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[ast.unparse(value.targets[0])] = " ".join(str(after.value.value).split())
    return docs


def _doc(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
