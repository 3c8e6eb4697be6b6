"""The child-sum Tree-LSTM on sentence relatedness (Tai, Socher, Manning 2015, arXiv:1503.00075)."""
