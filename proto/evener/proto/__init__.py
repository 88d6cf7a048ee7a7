"""The events of Evener, their topics, ids and rules. Imports nothing of Evener but itself.

Every event is a tagged, frozen `msgspec.Struct`, encoded as a msgpack map. New fields get defaults; a meaning never changes
under its tag. `None` and zero differ: each field says how.
"""
