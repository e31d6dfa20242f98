"""Charts and pictures as SVG."""
