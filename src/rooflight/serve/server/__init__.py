"""What every server here stands on: sockets, bounded bodies and fields, keys, problems, logs."""
