"""Turn boots into verdicts: the difference of arms, its confounds, and break-even points. Pure."""
