"""The events of Evener, with their topics, ids and rules. This package imports nothing else of Evener.

Every event is a tagged, frozen `msgspec.Struct`, encoded as a msgpack map. A new field gets a default, and a field never changes its
meaning under the same tag. `None` and zero mean different things: each field says what.
"""
