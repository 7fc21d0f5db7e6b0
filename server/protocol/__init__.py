"""The typed contract with clients: what is read from them and what is sent. Imports nothing of ours."""
