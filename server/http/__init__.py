"""The HTTP edge: application, routes, authentication, JSON responses, query parameters, OpenAPI document."""
