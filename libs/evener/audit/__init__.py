"""Checks what Evener promises from what the log says, from outside of the services: nothing lost, nothing twice, no fault of ours trained.

`audit` reads the log, partition by partition and session by session; a file for each promise holds what is checked. Pure but for `audit`
and `snapshot`. `engine_ledger` imports nothing of Evener: it compares rows with what an engine itself wrote down.
"""
