"""The real compiler as witness: compile for a slice that is not there, and read what came out."""
