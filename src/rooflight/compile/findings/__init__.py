"""The verdict: findings, each with its reason."""
