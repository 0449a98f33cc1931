"""A client of llama-server's chat API: the package `openai` where it is installed, else HTTP alone."""
import json

try:
    import openai
except ImportError:
    openai = None

NAME = f"openai {openai.__version__}" if openai else "http.client"


def answer(server, text, count, stream=False, temperature=0):
    """(the answer of exactly `count` tokens, the server's own timings)"""
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": count, "seed": 1,
            "temperature": temperature, "stream": stream}
    extra = {"ignore_eos": True, "cache_prompt": False}
    events = list(by_openai(server, body, extra) if openai else by_http(server, {**body, **extra}))
    said = text_of(events, stream)
    timings = next(event["timings"] for event in reversed(events) if event.get("timings"))
    assert timings["predicted_n"] == count, timings
    return said, timings


def text_of(events, stream):
    part = "delta" if stream else "message"
    return "".join(choice[part].get("content") or "" for event in events for choice in event["choices"])


def by_openai(server, body, extra):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(**body, extra_body=extra)
        for event in reply if body["stream"] else [reply]:
            yield event.model_dump()


def by_http(server, body):
    connection = server.connect("POST", "/v1/chat/completions", body)
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    if not body["stream"]:
        yield json.loads(reply.read())
    line = b""
    for line in filter(None, map(bytes.strip, reply)) if body["stream"] else ():
        if line.startswith(b"data: {"):
            event = json.loads(line[len(b"data: "):])
            assert "error" not in event, event
            yield event
    assert not body["stream"] or line == b"data: [DONE]", line
    connection.close()
