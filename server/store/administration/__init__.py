"""What operators set and see: keys, tenants, prices, limits, spending, the usage ledger, the audit trail."""
