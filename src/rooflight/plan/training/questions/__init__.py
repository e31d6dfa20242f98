"""What follows from a plan: budgets, flips, what-ifs, curves."""
