"""What scripts/demo shows: a pod's way through the proxy, and what the hook server changed on it.

``cri`` plays the scene on a CRI runtime, ``processes`` starts and ends what it needs, ``report`` prints and judges.
"""
