"""Decodes every event in several threads at once, for the first time in this process. Usage: python decoding_at_once.py THREADS"""

import sys
import threading

from tests.unit.proto.golden_events import EVENTS, file_of

from evener.proto.codec import decode, encode

ROUNDS = 20


def main(count: int) -> None:
    """Let all threads begin at the same moment, each with another event."""
    sys.setswitchinterval(1e-6)
    written = [(bytes.fromhex(file_of(event).read_text()), encode(event)) for event in EVENTS]
    together = threading.Barrier(count)
    equal: list[bool] = []

    def read(first: int) -> None:
        together.wait()
        mine = [*written[first:], *written[:first]] * ROUNDS
        equal.append(all(encode(decode(data)) == event for data, event in mine))

    threads = [threading.Thread(target=read, args=(number * len(written) // count,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if equal != [True] * count:
        sys.exit("an event was read wrongly")


if __name__ == "__main__":
    main(int(sys.argv[1]))
