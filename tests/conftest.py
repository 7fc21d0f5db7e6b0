pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_cluster",
    "tests.fix_proxy",
    "tests.fix_server",
    "tests.fix_tally",
]
