"""Calls of services with redis-py: examples/sensors.rs with --serve ADDRESS.

    python3 examples/clients/services.py PORT
"""

import json
import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))


def call(shard, method, *arguments, at=None):
    """The answer of a method, or its state at an earlier time."""
    when = ["AT", at] if at else []
    return json.loads(client.execute_command("QUINTET.CALL", shard, method, json.dumps(arguments), *when))


def total(at=None):
    """The sum over all shards; at one time it is one consistent cut."""
    return sum(call(f"sensors/{shard}", "sum", at=at)[0] for shard in range(6))


before = total()
for number in range(60):
    sensor = f"python {number}"
    call(f"sensors:{sensor}", "report", sensor, number)
assert total() == before + sum(range(60))
_, version, time = client.execute_command("QUINTET.CALL", "sensors/0", "sum", "[]", "DONE")
assert call("sensors/0", "sum", at=f"v:{version}") == call("sensors/0", "sum")
try:
    call("sensors/0", "report", "without a reading")
    raise SystemExit("a call with too few arguments was accepted")
except redis.ResponseError as error:
    assert "report(String,i64)" in str(error), error
print("redis-py: 60 readings in six shards, summed up")
