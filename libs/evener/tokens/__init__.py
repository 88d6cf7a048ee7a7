"""The trained tokens are the sampled tokens. This package is pure: no I/O, no clock, no dialect, no tokenizer.

`forest` holds a session's calls and their segments; `session` folds the log into it; `history` recognises what a harness sends back;
`place` finds a new call's place in the forest; `rows` cuts training rows from it, with the accounting; `trajectory` builds the whole record
of a session. The gateway places and records live calls; the reconstructor replays the record with the same code.
"""
