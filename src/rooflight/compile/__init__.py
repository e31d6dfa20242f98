"""The real compiler as judge: compile for a slice that is not there, and read what came out."""
