"""Hook servers that come with the project, and the SDK to write others: installed as ``runtimeproxy_hooks``.

They hold the policy; the proxy itself holds none and never imports this package. The folder has another name than the
package, so its files import each other relatively.
"""

from .sdk import ContainerContext, Hook, Malformed, PodContext, Rejected, main, reject

__all__ = ["ContainerContext", "Hook", "Malformed", "PodContext", "Rejected", "main", "reject"]
