"""HLO text as typed records: collectives, loops, matmuls and memory of a compiled step."""
