"""Quintet from Python with redis-py (`pip install redis`): write at one replica, read at another.

    python3 examples/clients/redis_py.py [PORT_OF_ONE_REPLICA [PORT_OF_ANOTHER]]
"""

import sys

import redis

one = redis.Redis(port=int(sys.argv[1]) if len(sys.argv) > 1 else 7001, decode_responses=True)
other = redis.Redis(port=int(sys.argv[2]) if len(sys.argv) > 2 else 7003, decode_responses=True)

# Every replica takes every command, and a read sees all that was acknowledged before, anywhere.
one.set("greeting", "hello")
assert other.get("greeting") == "hello"

one.delete("user:1", "queue", "tags", "scores", "visits")
one.hset("user:1", mapping={"name": "Ada", "born": "1815"})
assert other.hgetall("user:1") == {"name": "Ada", "born": "1815"}

one.rpush("queue", "a", "b", "c")
assert other.lpop("queue") == "a"
assert one.lrange("queue", 0, -1) == ["b", "c"]

one.sadd("tags", "x", "y")
assert other.smembers("tags") == {"x", "y"}

one.zadd("scores", {"ada": 3, "alan": 2, "grace": 5})
assert other.zrange("scores", 0, -1, withscores=True) == [("alan", 2.0), ("ada", 3.0), ("grace", 5.0)]

one.set("session", "token", ex=100)
assert 0 < other.ttl("session") <= 100

# MULTI/EXEC is one command in the replicated order; WATCH notices a change made at any replica.
with one.pipeline() as pipe:
    pipe.watch("visits")
    pipe.multi()
    pipe.incr("visits")
    pipe.incrby("visits", 10)
    assert pipe.execute() == [1, 11]
with one.pipeline() as pipe:
    pipe.watch("visits")
    other.incr("visits")
    pipe.multi()
    pipe.set("visits", 0)
    try:
        pipe.execute()
        raise SystemExit("the change at the other replica went unnoticed")
    except redis.WatchError:
        pass
assert one.get("visits") == "12"

try:
    one.incr("user:1")
    raise SystemExit("a hash was incremented")
except redis.ResponseError as error:
    assert "WRONGTYPE" in str(error), error
assert one.ping()

print(f"redis-py {redis.__version__}: all held")
