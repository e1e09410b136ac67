"""Two replicas of a server behind one address, with Ray Serve: `pip install 'hf_speculative[ray-serve]'`.

python examples/serve_replicas.py  # then ask http://localhost:8000/v1 as any server of OpenAI's API
"""

from ray import serve

from hf_speculative.integrations.ray_serve import deployment


def build():
    """On each replica: a pair, and the application around it."""
    from hf_speculative.embedded import embedded_pair
    from hf_speculative.serving.app import build_app
    from hf_speculative.serving.engine import Engine

    target, draft, tokenizer = embedded_pair()
    return build_app(target, tokenizer, "embedded", Engine(target, tokenizer=tokenizer, draft_model=draft))


if __name__ == "__main__":
    serve.run(deployment(build, num_replicas=2), blocking=True)
