"""What is trained is what was sampled. Pure: no I/O, no clock, no dialect, no tokenizer.

`forest` holds a session's calls and their segments; `session` folds the log into it; `history` recognises what a harness sends
back; `place` hangs a new call into the forest; `rows` cuts training rows from it, with the accounting; `trajectory` builds the
whole record of a session. The gateway places and records live; the reconstructor replays what was recorded, with the same code.
"""
