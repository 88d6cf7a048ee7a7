"""What can go wrong with this proof."""


class CannotCheck(Exception):
    """Something that the proof needs is not there, or failed: the message says what."""


class Wrong(Exception):
    """A condition of the proof does not hold."""
