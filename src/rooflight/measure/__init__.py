"""What happened: microbenchmarks, profiler traces, load, published runs, reconciliation."""
