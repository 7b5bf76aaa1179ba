"""Tunes: experiments that look for the fastest setting, round after round, as long as their budget lasts."""
