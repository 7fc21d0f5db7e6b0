"""The HTTP edge: the ASGI application, its routes, authentication and the OpenAPI document."""
