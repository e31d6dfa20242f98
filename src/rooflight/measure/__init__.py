"""What a machine really does: microbenchmarks, and derived steps that are run and timed."""
