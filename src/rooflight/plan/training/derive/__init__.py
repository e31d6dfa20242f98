"""The steps of a layer under a layout, forward and backward, in the notation."""
