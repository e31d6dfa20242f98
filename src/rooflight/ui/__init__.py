"""Renderers: text, SVG, HTML, browser, notebook; they compute nothing."""
