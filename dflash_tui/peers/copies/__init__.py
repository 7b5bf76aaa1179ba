"""Files of models that go from this host to another one: over ssh, on the address of the link, resumable and hashed."""
