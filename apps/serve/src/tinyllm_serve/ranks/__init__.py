"""Several processes that serve one model: their group, and the launcher that started them."""
