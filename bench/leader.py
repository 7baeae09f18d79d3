#!/usr/bin/env python3
"""CPU time of the leader per command, protocols beside each other, with batching off.

    bench/leader.py [--quintet target/release/quintet] [--rounds 3] [--seconds 3] [--base-port 17401]
                    [multipaxos multipaxos+proxy nezha+proxy …]

Each is a cluster of three real replicas in memory durability on this machine, with a closed loop of
`quintet bench` at its leader or, with +proxy, at one proxy. `limits.batch_requests` is 1, so that
every batch holds one request; Multi-Paxos proposes one batch per message. What is compared is what
the kernel counts for the leader's process: who else is busy on the machine does not matter much.
What the leader's loop did for each command (turns, sleeps, frames in and out) stands beside it.
Medians of interleaved rounds; the last line is one JSON object.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

TIMEOUT = 60
OPTIONS = {"multipaxos": ["--set", "slots_max=1"]}


def until(what, holds):
    deadline = time.monotonic() + TIMEOUT
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise SystemExit(f"FAILED: not within {TIMEOUT} s: {what}")
        time.sleep(0.05)
    return found


def get(admin, path):
    try:
        with urllib.request.urlopen(admin + path, timeout=2) as answer:
            return answer.read()
    except OSError:
        return None


def busy(pid):
    """CPU seconds of all threads of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def counted(admin):
    """What the loop of a replica counts."""
    names = {"quintet_" + name + "_total": name for name in ("turns", "sleeps", "frames_received", "frames_sent")}
    lines = [line.split() for line in (get(admin, "/metrics") or b"").decode().splitlines()]
    return {names[line[0]]: float(line[1]) for line in lines if len(line) == 2 and line[0] in names}


def measure(options, what):
    protocol, _, way = what.partition("+")
    directory = tempfile.mkdtemp(prefix="quintet-leader-")
    running = []
    try:
        command = [options.quintet, "demo", "--json", "--base-port", str(options.base_port), "--dir",
                   directory + "/demo", "--durability", "memory", "--protocol", protocol, *OPTIONS.get(protocol, [])]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(demo)
        replicas = []
        while len(replicas) < 3:
            line = demo.stdout.readline()
            if not line:
                raise SystemExit(f"FAILED: the demo ended: {' '.join(command)}")
            if line.startswith("{") and "pid" in (found := json.loads(line)):
                replicas.append(found)
        # The demo wrote their configurations; replicas started by hand read the environment.
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=TIMEOUT)
        environment = {**os.environ, "QUINTET_LIMITS_BATCH_REQUESTS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        for replica in replicas:
            # All of them have lost the demo's state, in which nothing was written.
            replica["process"] = subprocess.Popen(replica["serve"] + ["--bootstrap-again"], **quiet)
            running.append(replica["process"])
        for replica in replicas:
            until(f"replica {replica['id']} is ready", lambda: get(replica["admin"], "/readyz"))

        def leading():
            for replica in replicas:
                status = json.loads(get(replica["admin"], "/status") or "{}")
                if status.get("leader") == replica["id"]:
                    return replica
            return None

        leader = until("a replica leads", leading)
        target, proxy = leader["redis"], None
        if way == "proxy":
            serve = leader["serve"]
            redis, admin = (f"127.0.0.1:{options.base_port + behind}" for behind in (50, 150))
            proxy = subprocess.Popen([options.quintet, "proxy", "--config", serve[serve.index("--config") + 1],
                                      "--redis-listen", redis, "--admin-listen", admin], **quiet)
            running.append(proxy)
            until("the proxy is ready", lambda: get("http://" + admin, "/readyz"))
            target = "redis://" + redis
        load = [options.quintet, "bench", target, "--clients", "64", "--read-ratio", "0", "--no-fill", "-o", "json"]
        subprocess.run(load + ["--seconds", "1", "--warmup", "0"], stdout=subprocess.DEVNULL, check=True)
        ids = [leader["process"].pid] + [one["process"].pid for one in replicas if one is not leader]
        ids += [proxy.pid] if proxy else []
        loop, before = counted(leader["admin"]), [busy(pid) for pid in ids]
        measured = subprocess.run(load + ["--seconds", str(options.seconds), "--warmup", "0"],
                                  stdout=subprocess.PIPE, check=True)
        commands, after = json.loads(measured.stdout)["requests"], [busy(pid) for pid in ids]
        # The loop publishes what it counts ten times a second.
        time.sleep(0.2)
        loop = {name: (end - loop[name]) / max(commands, 1) for name, end in counted(leader["admin"]).items()}
        if leading() is not leader:
            return None
        each = [(end - begin) * 1e6 / max(commands, 1) for begin, end in zip(before, after)]
        return {"leader": each[0], "follower": sum(each[1:3]) / 2, "proxy": each[3] if proxy else 0,
                "per_second": commands / options.seconds, **loop}
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            process.wait(timeout=TIMEOUT)
        shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quintet", default="target/release/quintet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--base-port", type=int, default=17401)
    parser.add_argument("what", nargs="*", default=["multipaxos", "multipaxos+proxy", "nezha", "nezha+proxy"])
    options = parser.parse_args()
    found = {what: [] for what in options.what}
    for _ in range(options.rounds):
        for what in options.what:
            one = measure(options, what)
            if one:
                found[what].append(one)
                print(what, {name: round(value, 2) for name, value in one.items()}, flush=True)
    medians = {}
    for what, rows in found.items():
        middle = lambda name: sorted(row[name] for row in rows)[len(rows) // 2]
        medians[what] = {name: round(middle(name), 2) for name in rows[0]} if rows else None
    print(json.dumps({"microseconds_per_command": medians}))


if __name__ == "__main__":
    main()
