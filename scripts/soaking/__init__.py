"""What scripts/soak does: long runs with full counts, written down in docs/results.rst.

``steps`` is the table of what runs, ``programs`` runs pytest and the demo, ``machine`` says where, ``results`` is what
was found, ``document`` renders it.
"""
