"""The Plugins Manager: which hook servers are registered, and one client for each."""
