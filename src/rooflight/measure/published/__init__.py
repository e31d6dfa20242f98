"""Published measurements as rows, replayed through the planner; constants fitted to them."""
