"""The gRPC client for hook servers, and for the proxy's own questions to a CRI runtime."""
