"""What each engine checks, builds and proves, a folder a runtime; what loads and runs it lies one floor up."""
