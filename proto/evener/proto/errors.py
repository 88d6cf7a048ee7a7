"""What can fail, everywhere in Evener.

EvenerError ── BusError        NotCommitted (recoverable) · Fenced · RecordTooLarge · BusHeld · BusUnreachable (recoverable)
            ├─ EngineError     EngineUnreachable (recoverable) · EngineRefused · ContextOverflow
            ├─ SandboxError    SandboxLost (recoverable) · HarnessMissing
            ├─ TaskError · GraderError · BlobError · TemplateError
            ├─ RequestError    what a client sent is not acceptable; names the field
            └─ ConfigError     exit code 2

Each library defines the errors of its own door and derives them from here. The docstring of an error is what the operator
reads: it says how to mend it. Whether trying again can help is the error's type: `Recoverable`; `Hopeless` ends the process.
"""


class EvenerError(Exception):
    """The base of every error that Evener raises on purpose. The first argument says what was being done, and to what."""

    def __str__(self) -> str:
        """Return what happened, then how to mend it."""
        what = str(self.args[0]) if self.args else type(self).__name__
        return f"{what}{'' if what.endswith(('.', '?', '!')) else '.'} {' '.join((self.__doc__ or '').split())}"


class Recoverable(EvenerError):
    """Trying again later can help."""


class Hopeless(EvenerError):
    """Trying again cannot help. The process that meets this error exits."""


class ConfigError(EvenerError):
    """Correct the configuration (a TOML file, an EVENER_* variable or a flag) and start again."""
