"""Why a run failed and what may help: root cause, remedies, post-mortem, a report for vLLM's issue tracker.

Imports `monitoring`, `engines` and below; launches nothing.
"""
