"""The pure machines and values: inputs and a time go in, effects come out; nothing here waits or does I/O."""
