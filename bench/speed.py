#!/usr/bin/env python3
"""Quintet beside unreplicated Redis on this machine: interleaved rounds, medians, ratios.

    bench/speed.py [--rounds 5] [--only memory,disk,single] [--quintet PATH] [--out FILE.json]

Needs redis-server and redis-benchmark (Debian: redis-server, redis-tools) and a release build.
Starts its own servers on loopback, in a temporary directory below --scratch, and stops them.
Clients are at the leader unless a row says "follower". A ratio above 1 means more requests per
second than Redis, or, for p50 rows, a longer time.
"""

import argparse
import csv
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


def wait_port(port, seconds=10):
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing listens on port {port}")
            time.sleep(0.02)


class Redis:
    def __init__(self, port, directory, *options):
        os.makedirs(directory, exist_ok=True)
        self.port = port
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", directory, *options],
            stdout=subprocess.DEVNULL)
        wait_port(port)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Quintet:
    def __init__(self, binary, base_port, directory, durability, flags):
        command = [binary, "demo", "--json", "--base-port", str(base_port), "--dir", directory,
                   "--durability", durability]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.replicas = []
        for _ in range(3):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"the demo ended with exit code {self.process.wait()}")
            self.replicas.append(json.loads(line))
        self.served = []
        if flags:
            # The demo takes no settings of a replica: start its replicas again by hand.
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
            self.served = [subprocess.Popen([*replica["serve"], *flags], stderr=subprocess.DEVNULL)
                           for replica in self.replicas]
            for replica in self.replicas:
                wait_port(int(replica["admin"].rsplit(":", 1)[1]))
        self.find_leader()

    def status(self, replica):
        with urllib.request.urlopen(replica["admin"] + "/status", timeout=5) as answer:
            return json.load(answer)

    def find_leader(self):
        deadline = time.monotonic() + 30
        while True:
            roles = {r["id"]: self.status(r)["role"] for r in self.replicas}
            if sorted(roles.values()) == ["follower", "follower", "leader"]:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"no leader: {roles}")
            time.sleep(0.1)
        port = lambda r: int(r["redis"].rsplit(":", 1)[1])
        self.port = next(port(r) for r in self.replicas if roles[r["id"]] == "leader")
        self.follower = next(port(r) for r in self.replicas if roles[r["id"]] == "follower")

    def stop(self):
        for process in self.served or [self.process]:
            process.send_signal(signal.SIGINT)
        for process in self.served or [self.process]:
            process.wait()


def benchmark(port, test, clients, pipeline, requests, size=128):
    """(requests per second, p50 in ms, p99 in ms) of one redis-benchmark run."""
    out = subprocess.run(
        ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-t", test, "-c", str(clients),
         "-P", str(pipeline), "-n", str(requests), "-d", str(size), "-r", "10000", "--csv"],
        check=True, capture_output=True, text=True).stdout
    rows = list(csv.DictReader(io.StringIO(out)))
    if not rows:
        raise SystemExit(f"redis-benchmark against port {port} printed no figures:\n{out}")
    row = rows[-1]
    return float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"])


# (name, bed, where, test, clients, pipeline, requests, figure, target, at least / at most)
ROWS = [
    ("SET -c 50 -P 1", "memory", "port", "set", 50, 1, 200_000, 0, 0.85, ">="),
    ("SET -c 50 -P 16", "memory", "port", "set", 50, 16, 1_500_000, 0, 1.0, ">="),
    ("SET -c 50 -P 64", "memory", "port", "set", 50, 64, 2_000_000, 0, 1.3, ">="),
    ("GET -c 50 -P 1", "memory", "port", "get", 50, 1, 200_000, 0, 0.85, ">="),
    ("GET -c 50 -P 16", "memory", "port", "get", 50, 16, 1_500_000, 0, 1.1, ">="),
    ("GET -c 50 -P 64", "memory", "port", "get", 50, 64, 2_000_000, 0, 1.4, ">="),
    ("SET follower -P 1", "memory", "follower", "set", 50, 1, 200_000, 0, 0.7, ">="),
    ("SET follower -P 16", "memory", "follower", "set", 50, 16, 1_500_000, 0, 0.8, ">="),
    ("durable SET -c 64", "disk", "port", "set", 64, 1, 150_000, 0, 0.8, ">="),
    ("durable SET -c 256", "disk", "port", "set", 256, 1, 200_000, 0, 0.85, ">="),
    ("durable SET -c 50 -P 16", "disk", "port", "set", 50, 16, 600_000, 0, 1.3, ">="),
    ("one client, p50", "single", "port", "set", 1, 1, 20_000, 1, 1.6, "<="),
    ("one client, spin, p50", "spin", "port", "set", 1, 1, 20_000, 1, 0.6, "<="),
    ("one durable client, p50", "disk", "port", "set", 1, 1, 8_000, 1, 1.8, "<="),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="memory,disk,single,spin")
    parser.add_argument("--quintet", default="target/release/quintet")
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--base-port", type=int, default=17001)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    beds = args.only.split(",")
    rows = [row for row in ROWS if row[1] in beds]
    scratch = tempfile.mkdtemp(prefix="quintet-speed-", dir=args.scratch)
    port = args.base_port
    results = {row[0]: {"redis": [], "quintet": [], "ratio": []} for row in rows}
    beds_made = {
        "memory": ("memory", [], []),
        "single": ("memory", ["--spin-max", "0s", "--bootstrap-again"], []),
        "spin": ("memory", [], []),
        "disk": ("disk", [], ["--appendonly", "yes", "--appendfsync", "always"]),
    }
    for number, bed in enumerate(dict.fromkeys(row[1] for row in rows)):
        durability, ours, theirs = beds_made[bed]
        redis = Redis(port + 500 + number, f"{scratch}/redis-{bed}", *theirs)
        quintet = None
        try:
            quintet = Quintet(args.quintet, port + 1000 * number, f"{scratch}/quintet-{bed}",
                              durability, ours)
            for round_number in range(args.rounds):
                for name, _, where, test, clients, pipeline, requests, figure, *_ in (
                        row for row in rows if row[1] == bed):
                    if round_number == 0 and test == "get":
                        benchmark(redis.port, "set", 50, 16, 50_000)
                        benchmark(quintet.port, "set", 50, 16, 50_000)
                    pair = [("redis", redis.port), ("quintet", getattr(quintet, where))]
                    if round_number % 2:
                        pair.reverse()
                    found = {}
                    for system, at in pair:
                        found[system] = benchmark(at, test, clients, pipeline, requests)
                        results[name][system].append(found[system])
                    results[name]["ratio"].append(found["quintet"][figure] / found["redis"][figure])
                print(f"{bed}: round {round_number + 1} of {args.rounds}", file=sys.stderr)
        finally:
            if quintet:
                quintet.stop()
            redis.stop()
    print(f"{'measure':<26}{'redis':>12}{'quintet':>12}{'ratio':>8}{'min':>7}{'max':>7}  target")
    for name, _, _, _, _, _, _, figure, target, sense in rows:
        found = results[name]
        middle = lambda system: statistics.median(run[figure] for run in found[system])
        ratio = statistics.median(found["ratio"])
        met = ratio >= target if sense == ">=" else ratio <= target
        print(f"{name:<26}{middle('redis'):>12.5g}{middle('quintet'):>12.5g}{ratio:>8.2f}"
              f"{min(found['ratio']):>7.2f}{max(found['ratio']):>7.2f}  {sense} {target}"
              f"{'' if met else '  MISSED'}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
