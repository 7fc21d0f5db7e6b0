"""Tables of operators: keys, tenants, prices, limits, spending, the usage ledger, the audit trail."""
