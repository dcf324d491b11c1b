"""The experiments of Dynamoth (Gascon-Samson et al., ICDCS 2015), section V."""
