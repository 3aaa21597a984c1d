"""What several tests need: drawn parts, commands, servers, brokers, clusters."""
