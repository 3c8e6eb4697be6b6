"""The services on a local cluster of Ray; `make test-ray` runs these in an environment with Ray."""

import json
import socket
import urllib.error
import urllib.request
import warnings

import pytest

from serving import decoder, pairs

ray = pytest.importorskip("ray", reason="Ray is not installed here; make test-ray installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import serve_ray  # noqa: E402

PATIENCE = 60


@pytest.fixture(scope="module", autouse=True)
def cluster():
    serve_ray.begin(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_replica_streams_the_words_of_the_loop_and_refuses_wrong_requests(tmp_path):
    sentences = decoder.prepare(tmp_path / "model", embedding_size=12, hidden_size=16)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve_ray.ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    options = ["--checkpoint", str(tmp_path / "model")]
    try:
        serve_ray.ray_serve.run(serve_ray.application(1, options), route_prefix="/")
        decoder.ask_all(port, decoder.arrivals(20, 1, 1, (5, 60)), sentences)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/generate", b"[]", timeout=PATIENCE)
        assert (refused.value.code, json.load(refused.value)) == (
            422,
            {"error": 'the body needs "words", a string'},
        )
    finally:
        serve_ray.ray_serve.shutdown()


def test_workers_score_a_file_as_the_loop(tmp_path):
    small = ("--hidden", "20", "--embedding-size", "20", "--similarity-hidden", "10")
    wanted = pairs.prepare(tmp_path / "model", (*small, "--limit", "60"))
    lines = [body.decode() for body, _ in wanted]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    data = serve_ray.scored(tmp_path / "pairs.jsonl", tmp_path / "model", workers=2)
    got = {row["text"]: row["score"] for row in data.take_all()}
    assert got == pytest.approx({body.decode(): score for body, score in wanted}, abs=1e-4)
