"""Access tokens of an OpenID Connect issuer: its keys, the checks of a token, and the tenant that it names"""
