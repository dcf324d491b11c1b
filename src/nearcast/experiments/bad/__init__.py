"""The experiments of the BAD paper on balancing gateways, in the flow simulator (DEBS 2019, section 6)."""
