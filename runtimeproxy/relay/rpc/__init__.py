"""The gRPC client for hook servers, and for the proxy's own calls to a CRI runtime."""
