"""Helpers of the tests: stand-ins for servers, engines and GPUs, factories, recordings, waiting."""
