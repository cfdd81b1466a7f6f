"""How near products and attention come to what the machine can do: `bench roofline`."""
