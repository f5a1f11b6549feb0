"""What the tester of the HTTP surface checks beyond the description, and what it leaves out."""

import os
import zlib

import schemathesis

# Executions that are there to be asked for; the tester alone would hardly ever guess one.
known = [os.environ["REEVE_EXECUTION"]]


@schemathesis.hook
def before_call(context, case, kwargs):
    """Aims three of four good requests at what is there, and keeps the demonstration short."""
    query = case.query if isinstance(case.query, dict) else {}
    body = case.body if isinstance(case.body, dict) else {}
    dice = zlib.crc32(repr((case.path, query, body)).encode())
    if isinstance(query.get("delay_ms"), int):
        # It would take minutes where it is asked to.
        query["delay_ms"] = min(query["delay_ms"], 5)
    if dice % 4 == 0 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    name = case.operation.definition.raw.get("operationId")
    if name == "executions.start":
        body["capability"], body["input"] = "echo", {"word": f"word-{dice}"}
    elif name == "capabilities.get":
        query["id"] = "echo"
    elif "id" in query:
        query["id"] = known[dice // 4 % len(known)]
    elif name == "executions.cancel":
        body["id"] = known[dice // 4 % len(known)]


@schemathesis.hook
def after_call(context, case, response):
    """Remembers what was started."""
    name = case.operation.definition.raw.get("operationId")
    if name == "executions.start" and response.status_code == 200 and len(known) < 50:
        known.append(response.json()["id"])


@schemathesis.check
def busy_says_when_to_come_back(ctx, response, case):
    if response.status_code in (429, 503):
        assert "retry-after" in response.headers, f"{response.status_code} without Retry-After"


@schemathesis.check
def every_answer_is_dressed(ctx, response, case):
    for name, value in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-resource-policy", "same-origin"),
    ]:
        assert response.headers.get(name) == [value], f"{name} is {response.headers.get(name)}"
    assert not any(name.startswith("access-control-") for name in response.headers)


@schemathesis.check
def a_refusal_is_a_fault(ctx, response, case):
    if response.status_code >= 400 and case.method != "HEAD":
        error = response.json()["error"]
        assert error["code"] and error["message"], error
        assert ".rs:" not in error["message"], error
