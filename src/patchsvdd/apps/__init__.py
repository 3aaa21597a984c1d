"""What a user starts: command line, service, folder watch, cluster jobs and demo."""
