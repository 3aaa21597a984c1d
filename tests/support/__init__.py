"""Code that several tests share: images of parts, commands, servers, brokers, clusters."""
