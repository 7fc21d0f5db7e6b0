"""The bodies of the admin API: what operators send, and what they get"""
