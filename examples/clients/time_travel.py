"""Reading the past with redis-py: undo a mistake, audit a key, report while writes continue.

    python3 examples/clients/time_travel.py [PORT_OF_ONE_REPLICA [PORT_OF_ANOTHER]]
"""

import sys

import redis

one = redis.Redis(port=int(sys.argv[1]) if len(sys.argv) > 1 else 7001)
other = redis.Redis(port=int(sys.argv[2]) if len(sys.argv) > 2 else 7003)
one.execute_command("QUINTET.RETAIN", "SECONDS", 3600, "BYTES", 64 << 20)

# Undo a mistake: a colleague has emptied the cart.
one.delete("cart")
one.rpush("cart", "book", "lamp")
one.delete("cart")
version, _, kind, _ = other.execute_command("QUINTET.HISTORY", "cart", "LIMIT", 1)[0]
assert kind == b"none"
before = other.execute_command("QUINTET.AT", f"v:{version - 1}", "DUMP", "cart")
one.restore("cart", 0, before)
assert other.lrange("cart", 0, -1) == [b"book", b"lamp"]

# Audit a key: what it held, and since when.
for amount in (100, 70, 90):
    one.set("account", amount)
audit = other.execute_command("QUINTET.HISTORY", "account", "LIMIT", 3)
held = [other.execute_command("QUINTET.AT", f"v:{change[0]}", "GET", "account") for change in audit]
assert held == [b"90", b"70", b"100"]
assert sorted(audit, key=lambda change: change[1], reverse=True) == audit

# A consistent report while writes continue: money moves, and each sum is right.
for n in range(10):
    one.set(f"balance:{n}", 100)
for n in range(50):
    seconds, micros = other.execute_command("QUINTET.AT", "now", "TIME")
    when = f"us:{int(seconds) * 1_000_000 + int(micros)}"
    with one.pipeline() as pipe:
        pipe.decrby(f"balance:{n % 10}", n)
        pipe.incrby(f"balance:{n * 7 % 10}", n)
        pipe.execute()
    balances = [other.execute_command("QUINTET.AT", when, "GET", f"balance:{n}") for n in range(10)]
    assert sum(map(int, balances)) == 1000, balances

print("ok")
