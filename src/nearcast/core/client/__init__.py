"""The client machine and its parts: publishing, subscribing, order, repair, links."""
