"""All peers by name; a new one is a file and a line here."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, NamedTuple

#: Environment that `make peers` builds.
PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
#: Sizes of minibatches of pairs that are timed unless others are asked for.
SIZES = [32, 256]
OURS = "gluon_dynbatch"


class Entry(NamedTuple):
    """A peer: how tables call it, and by workload the class that runs it (``module:Class``)."""

    label: str
    classes: Dict[str, str]


#: Ours is a peer like the others, but runs in this project's environment.
OWN = Entry(OURS, dict.fromkeys(("pairs", "sequences", "sst"), "peers.ours:Ours"))

PEERS = {
    "dynet": Entry(
        "DyNet, basic operations",
        {
            "pairs": "peers.dynet_pairs:Pairs",
            "sequences": "peers.dynet_tagger:Tagger",
            "sst": "peers.dynet_sst:Trees",
        },
    ),
    "dynet-lstm": Entry("DyNet, LSTM node", {"sequences": "peers.dynet_tagger:NodeTagger"}),
    "torch": Entry(
        "PyTorch by hand",
        {
            "pairs": "peers.torch_pairs:Pairs",
            "sequences": "peers.torch_tagger:Tagger",
            "sst": "peers.torch_sst:Trees",
        },
    ),
    "torchfold": Entry("torchfold", {"pairs": "peers.torchfold_pairs:Pairs"}),
    "dgl": Entry("DGL", {"pairs": "peers.dgl_pairs:Pairs"}),
}
