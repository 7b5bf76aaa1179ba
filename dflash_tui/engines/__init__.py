"""vLLM environments: install, inspect, adopt and patch them, and fetch their models; vLLM is never imported."""
