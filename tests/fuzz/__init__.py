"""Fuzzing: `python -m tests.fuzz TARGET` looks for new inputs, tests/fuzz/test_fuzz_corpus.py replays those kept."""
