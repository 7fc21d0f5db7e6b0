pytest_plugins = ["tests.fix_postgres", "tests.fix_server"]
