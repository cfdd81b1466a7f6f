"""Keys and values of the tokens that have been computed, in several layouts."""
