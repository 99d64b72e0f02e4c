"""What ``pytest --pyargs amp_checks`` and ``amp-checks run`` collect.

The plugin collects the items itself from ``suite.amp`` in this folder, so that no ini of the repository it is called in
(``python_files``, ``python_functions``) can hide them, and no conftest or autouse fixture can change them.
"""
