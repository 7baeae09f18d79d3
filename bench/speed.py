#!/usr/bin/env python3
"""Quintet beside unreplicated Redis on this machine: interleaved rounds, medians, ratios.

    bench/speed.py [--rounds 5] [--only memory,disk,single] [--quintet PATH] [--out FILE.json]
    bench/speed.py --against PATH …    an older build of Quintet in the place of Redis

Needs redis-server and redis-benchmark (Debian: redis-server, redis-tools) and a release build.
Starts its own servers on loopback, in a temporary directory below --scratch, and stops them.
Clients are at the leader unless a row says "follower". A ratio above 1 means more requests per
second than Redis, or, for p50 rows, a longer time. The last columns compare the CPU time per
request, user and system, of all processes of each side; they are steadier than throughput.
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


def cpu_seconds(pid):
    """User and system time of a process and its living descendants."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
            total += sum(cpu_seconds(int(child)) for child in file.read().split())
    return total


class Redis:
    def __init__(self, port, directory, *options):
        os.makedirs(directory, exist_ok=True)
        self.port = port
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", directory, *options],
            stdout=subprocess.DEVNULL)
        wait_port(port)

    def at(self, _where):
        return self.port

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Quintet:
    """A demo of three replicas; each can be started again by hand, with flags of 'serve'."""

    def __init__(self, binary, base_port, directory, durability, flags=(), protocol="multipaxos"):
        command = [binary, "demo", "--json", "--base-port", str(base_port), "--dir", directory,
                   "--durability", durability, "--protocol", protocol]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.replicas = []
        for _ in range(3):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"the demo ended with exit code {self.process.wait()}")
            self.replicas.append(json.loads(line))
        self.served = {}
        self.flags = []
        if flags:
            self.restart(flags)
        else:
            self.find_roles()

    def restart(self, flags):
        """Stops all and starts them with these flags; the demo takes no settings of a replica."""
        self.stop()
        self.flags = list(flags)
        for replica in self.replicas:
            self.start(replica)
        for replica in self.replicas:
            wait_port(int(replica["admin"].rsplit(":", 1)[1]))
        self.find_roles()

    def start(self, replica):
        self.served[replica["id"]] = subprocess.Popen([*replica["serve"], *self.flags],
                                                      stderr=subprocess.DEVNULL)

    def kill(self, replica):
        """Kills one that was started by hand."""
        served = self.served.pop(replica["id"])
        served.kill()
        served.wait()

    def status(self, replica):
        with urllib.request.urlopen(replica["admin"] + "/status", timeout=5) as answer:
            return json.load(answer)

    def metric(self, replica, name):
        with urllib.request.urlopen(replica["admin"] + "/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        raise SystemExit(f"no metric {name}")

    def find_roles(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                roles = {r["id"]: self.status(r)["role"] for r in self.replicas}
            except OSError as error:
                roles = {0: str(error)}
            if sorted(roles.values()) == ["follower", "follower", "leader"]:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"no leader: {roles}")
            time.sleep(0.1)
        self.roles = {roles[r["id"]]: r for r in self.replicas}

    def member(self, role):
        return self.roles[role]

    def at(self, role):
        return int(self.roles[role]["redis"].rsplit(":", 1)[1])

    def cpu(self):
        return sum(cpu_seconds(process.pid) for process in self.processes())

    def processes(self):
        alive = [process for process in [self.process] if process.poll() is None]
        return alive + list(self.served.values())

    def stop(self):
        for process in self.processes():
            process.send_signal(signal.SIGINT)
        for process in self.processes():
            process.wait()
        self.served = {}


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


# (name, setup, where, test, clients, pipeline, requests, figure, target, at least / at most)
ROWS = [
    ("SET -c 50 -P 1", "memory", "leader", "set", 50, 1, 200_000, 0, 0.85, ">="),
    ("SET -c 50 -P 16", "memory", "leader", "set", 50, 16, 1_500_000, 0, 1.0, ">="),
    ("SET -c 50 -P 64", "memory", "leader", "set", 50, 64, 2_000_000, 0, 1.3, ">="),
    ("GET -c 50 -P 1", "memory", "leader", "get", 50, 1, 200_000, 0, 0.85, ">="),
    ("GET -c 50 -P 16", "memory", "leader", "get", 50, 16, 1_500_000, 0, 1.1, ">="),
    ("GET -c 50 -P 64", "memory", "leader", "get", 50, 64, 2_000_000, 0, 1.4, ">="),
    ("SET follower -P 1", "memory", "follower", "set", 50, 1, 200_000, 0, 0.7, ">="),
    ("SET follower -P 16", "memory", "follower", "set", 50, 16, 1_500_000, 0, 0.8, ">="),
    ("durable SET -c 64", "disk", "leader", "set", 64, 1, 150_000, 0, 0.8, ">="),
    ("durable SET -c 256", "disk", "leader", "set", 256, 1, 200_000, 0, 0.85, ">="),
    ("durable SET -c 50 -P 16", "disk", "leader", "set", 50, 16, 600_000, 0, 1.3, ">="),
    ("one client, p50", "single", "leader", "set", 1, 1, 20_000, 1, 1.6, "<="),
    ("one client, spin, p50", "spin", "leader", "set", 1, 1, 20_000, 1, 0.6, "<="),
    ("one durable client, p50", "disk", "leader", "set", 1, 1, 8_000, 1, 1.8, "<="),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="memory,disk,single,spin")
    parser.add_argument("--quintet", default="target/release/quintet")
    parser.add_argument("--against", default=None, metavar="PATH")
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--base-port", type=int, default=17001)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    setups = args.only.split(",")
    rows = [row for row in ROWS if row[1] in setups]
    scratch = tempfile.mkdtemp(prefix="quintet-speed-", dir=args.scratch)
    port = args.base_port
    base = "old" if args.against else "redis"
    results = {row[0]: {base: [], "quintet": [], "ratio": [], "cpu": []} for row in rows}
    settings = {
        "memory": ("memory", [], []),
        "single": ("memory", ["--spin-max", "0s", "--bootstrap-again"], []),
        "spin": ("memory", [], []),
        "disk": ("disk", [], ["--appendonly", "yes", "--appendfsync", "always"]),
    }
    for number, setup in enumerate(dict.fromkeys(row[1] for row in rows)):
        durability, ours, theirs = settings[setup]
        first = port + 1000 * number
        systems = {}
        try:
            if args.against:
                systems[base] = Quintet(args.against, first + 500, f"{scratch}/old-{setup}",
                                        durability, ours)
            else:
                systems[base] = Redis(first + 500, f"{scratch}/redis-{setup}", *theirs)
            systems["quintet"] = Quintet(args.quintet, first, f"{scratch}/quintet-{setup}",
                                         durability, ours)
            for round_number in range(args.rounds):
                for name, _, where, test, clients, pipeline, requests, figure, *_ in (
                        row for row in rows if row[1] == setup):
                    if round_number == 0 and test == "get":
                        for system in systems.values():
                            benchmark(system.at("leader"), "set", 50, 16, 50_000)
                    pair = list(systems.items())
                    if round_number % 2:
                        pair.reverse()
                    found, cpu = {}, {}
                    for label, system in pair:
                        before = system.cpu()
                        found[label] = benchmark(system.at(where), test, clients, pipeline, requests)
                        cpu[label] = (system.cpu() - before) / requests * 1e6
                        results[name][label].append(found[label] + (cpu[label],))
                    results[name]["ratio"].append(found["quintet"][figure] / found[base][figure])
                    results[name]["cpu"].append(cpu["quintet"] / cpu[base] if cpu[base] else 0.0)
                print(f"{setup}: round {round_number + 1} of {args.rounds}", file=sys.stderr)
        finally:
            for system in systems.values():
                system.stop()
    print(f"{'measure':<26}{base:>12}{'quintet':>12}{'ratio':>8}{'min':>7}{'max':>7}"
          f"{'CPU µs':>9}{'ratio':>7}  target")
    for name, _, _, _, _, _, _, figure, target, sense in rows:
        found = results[name]
        middle = lambda system, column: statistics.median(run[column] for run in found[system])
        ratio, cpu = statistics.median(found["ratio"]), statistics.median(found["cpu"])
        # Two builds shall differ by no more than 3 %, whatever Redis does.
        aim = target if not args.against else 0.97 if sense == ">=" else 1.03
        met = ratio >= aim if sense == ">=" else ratio <= aim
        print(f"{name:<26}{middle(base, figure):>12.5g}{middle('quintet', figure):>12.5g}"
              f"{ratio:>8.2f}{min(found['ratio']):>7.2f}{max(found['ratio']):>7.2f}"
              f"{middle('quintet', 3):>9.3g}{cpu:>7.2f}  {sense} {aim}{'' if met else '  MISSED'}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
