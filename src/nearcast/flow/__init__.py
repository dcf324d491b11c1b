"""The flow simulator: which policy is better? Time steps over arrays of topics, brokers and clients."""
