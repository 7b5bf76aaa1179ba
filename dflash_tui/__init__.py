"""dflash-tui: launch, watch and measure DFlash speculative decoding on vLLM."""

__version__ = "0.1.0"
