"""How much analysis pays off: measurements, a cost model, tables and pictures of the trade-off."""
