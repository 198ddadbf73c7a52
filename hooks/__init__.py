"""The project's hook servers, and the SDK to write others; installed as ``runtimeproxy_hooks``.

They contain the policy; the proxy contains none and never imports this package. The folder's name differs from the
package's, so its files import each other relatively.
"""

from .sdk import ContainerContext, Hook, Malformed, PodContext, Rejected, main, reject

__all__ = ["ContainerContext", "Hook", "Malformed", "PodContext", "Rejected", "main", "reject"]
