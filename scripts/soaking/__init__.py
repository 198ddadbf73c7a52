"""The soak of scripts/soak: long runs with full counts, whose results are written into docs/results.rst.

``steps`` is the table of the runs, ``results`` has the findings and their page. ``beside`` measures calls while
something else is going on, ``endurance`` runs many lifecycles of containers and ``day`` a node's day; ``tested`` runs
the project's own tests.
"""
