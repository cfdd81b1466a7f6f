"""What a server does under load: `bench serve`."""
