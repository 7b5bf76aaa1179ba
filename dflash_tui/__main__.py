"""`python -m dflash_tui` is `dflash-tui`."""

from dflash_tui.cli import main

raise SystemExit(main())
