"""The program of a plan: train steps and served steps."""
