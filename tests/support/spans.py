"""The spans that this process finishes, as a test reads them."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """Finished spans, by trace and by name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the finished spans of a name (None: of all names), in the order of their starts."""
        found = [span for span in self._exporter.get_finished_spans() if name in {None, span.name}]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        """Return the one span of a name."""
        (span,) = self.all(name)
        return span

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """Return the finished spans whose parent is this one, in the order of their starts."""
        return [span for span in self.all() if span.parent and span.parent.span_id == parent.context.span_id]

    def tree(self, root: ReadableSpan, depth: int = 0) -> list[str]:
        """Return the names of a span and of all below it, indented by two blanks a level, siblings in the order of their starts."""
        below = [line for child in self.children(root) for line in self.tree(child, depth + 1)]
        return ["  " * depth + root.name, *below]
