"""What a key and its tenant may use over time: requests and tokens a minute, budgets in tokens and money."""
