"""The flow simulator, to compare policies: time steps over arrays of topics, brokers and clients."""
