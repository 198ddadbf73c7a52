"""What scripts/soak does: long runs with full counts, written down in docs/results.rst.

``steps`` is the table of what runs, ``results`` what was found and its page. ``beside`` measures calls beside something
that goes on, ``endurance`` lives of containers and ``day`` a node's day; ``tested`` runs the project's own tests.
"""
