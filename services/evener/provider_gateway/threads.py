"""The gateway's threads, for work that grows with a request or an answer."""

from typing import Final

from evener.runtime.threads import Threads

READING: Final = Threads("read", 2)
"""The threads that parse request bodies."""
PLACING: Final = Threads("place", 4)
"""The threads that read, render and encode histories, and parse answers. A session uses at most one of them at a time."""
ENDING: Final = Threads("end", 2)
"""The threads that parse aborted answers and cut rows. An end does not wait for the prompts of others: its lease would lapse."""
SHORT_BYTES: Final = 16 << 10
"""Work on this many bytes or tokens takes a millisecond or two, so the loop does it itself."""
