"""Values become Textual content. Pure: no widget, no I/O."""
