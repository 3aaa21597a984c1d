"""Images inspected as they arrive in a folder: each once, whatever happens to the process, and told to others."""
