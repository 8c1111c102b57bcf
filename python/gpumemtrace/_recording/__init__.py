"""Recording: start and stop, and the markers that a program writes into its trace."""
