"""How updates of runs are committed: all together, run by run when that fails, and aside from the rest."""
