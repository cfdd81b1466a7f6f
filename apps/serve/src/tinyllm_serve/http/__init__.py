"""HTTP around the endpoints: errors, middleware, server-sent events."""
