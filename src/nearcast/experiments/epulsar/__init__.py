"""The experiments of ePulsar (Gupta et al., SEC 2021), section 5."""
