"""Other systems that batch models written for one sample, or models batched by hand.

Each runs in its own process (`child`), which `suite.remote` starts and sends requests.
"""
