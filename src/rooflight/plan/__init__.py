"""From a model, a layout and a mesh to what will run. Records in, records out."""
