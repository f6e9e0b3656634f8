# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration; tools/site writes the pages, and passes what depends on the checkout."""

project = "Waybill"
author = "The Waybill authors"
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = "Waybill"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
# The files themselves are what is shown: their comments name them.
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
pygments_style = "friendly"
highlight_language = "none"  # Of blocks that name none.
