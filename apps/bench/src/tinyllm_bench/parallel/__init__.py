"""What one model over several ranks costs, from its shape and from what connects them."""
