"""Commands around one server: launch it, look at it, stop it, say why it died."""
