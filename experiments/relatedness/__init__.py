"""Training of Tree-LSTMs (Tai, Socher, Manning 2015, arXiv:1503.00075), with checkpoints."""
