"""The gRPC client for hook servers, and for what is asked of a CRI runtime."""
