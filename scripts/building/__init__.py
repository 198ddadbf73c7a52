"""The build of a release: scripts/build, described in docs/release.rst.

One file an artefact, each with a function ``build(work, dist)``, which puts files into the directory ``dist`` and
returns them; ``__main__`` has the table. ``sources`` are in ``work/source``. The ``tree`` that archive, packages and
image have in common is made once, in ``work/tree``. ``packing`` makes archives that are equal byte by byte.
"""
