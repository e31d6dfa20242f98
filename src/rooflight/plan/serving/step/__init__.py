"""One step of a served model: layout, memory, seconds."""
