"""The panel: a Textual front end over `dflash_tui.core`."""
