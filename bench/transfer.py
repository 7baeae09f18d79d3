#!/usr/bin/env python3
"""How fast a replica whose log and snapshots are gone has the state again.

    bench/transfer.py [--gib 1] [--durability disk] [--only idle,link,load] [--protocol NAME]

idle: no client writes; next to it, how long a copy of a file of that size takes to be durable.
link: 50 ms each way and --mbit per second between the replicas, without writes.
load: clients write at 70 % of the rate that the cluster can take.
Starts three replicas on loopback in a temporary directory below --scratch, fills them, kills a
follower, deletes its journal and snapshots, starts it again and prints its progress as /status
shows it. Needs redis-benchmark and a release build of both programs.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from speed import Quintet

VALUE = 1024


def copy_seconds(directory, size):
    """How long a copy of a file of that many bytes takes until it is durable."""
    source, target = os.path.join(directory, "source"), os.path.join(directory, "target")
    with open(source, "wb") as file:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            file.write(block)
        os.fsync(file.fileno())
    begin = time.monotonic()
    with open(source, "rb") as read, open(target, "wb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
        os.fsync(write.fileno())
    took = time.monotonic() - begin
    os.remove(source)
    os.remove(target)
    return took


def write(port, requests, keys):
    subprocess.run(
        ["redis-benchmark", "-p", str(port), "-t", "set", "-c", "50", "-P", "64",
         "-n", str(requests), "-d", str(VALUE), "-r", str(keys), "-q"],
        check=True, stdout=subprocess.DEVNULL)


class Rates(threading.Thread):
    """Counts what the leader executes in each second, until it is stopped."""

    def __init__(self, cluster, leader):
        super().__init__()
        self.cluster, self.leader, self.seen, self.ended = cluster, leader, [], threading.Event()
        self.start()

    def run(self):
        last, at = None, time.monotonic()
        while not self.ended.wait(1.0):
            try:
                now = self.cluster.metric(self.leader, "quintet_executed_commands_total")
            except OSError:
                continue
            moment = time.monotonic()
            if last is not None:
                self.seen.append((moment, (now - last) / (moment - at)))
            last, at = now, moment

    def between(self, begin, end):
        found = [rate for moment, rate in self.seen if begin <= moment <= end]
        return statistics.mean(found) if found else float("nan")


def bench(lab, port, seconds, rate=None):
    """Closed loop of 64 clients, or that many requests per second; returns its process."""
    command = [lab, "bench", f"redis://127.0.0.1:{port}", "-c", "64", "-d", str(VALUE),
               "-s", str(seconds), "-k", "100000", "-o", "json"]
    if rate:
        command += ["--rate", str(int(rate))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(mode, args, scratch, port):
    directory = os.path.join(scratch, mode)
    flags = ["--transfer-rate-max", args.rate_max]
    if args.durability == "memory":
        flags.append("--bootstrap-again")
    cluster = Quintet(args.quintet, port, directory, args.durability, flags, args.protocol)
    cluster.flags = flags[:2]
    rates = foreground = None
    try:
        keys = int(args.gib * (1 << 30) / VALUE)
        # Drawn at random, so three requests per key leave one key in twenty out.
        write(cluster.at("leader"), keys * 3, keys)
        if mode == "link":
            links = os.path.join(directory, "links.toml")
            with open(links, "w", encoding="utf-8") as file:
                file.write(f'delay = "50ms"\nbandwidth = "{args.mbit}Mbit"\n')
            cluster.restart([*flags[:2], "--links", links])
        leader, victim = cluster.member("leader"), cluster.member("follower")
        if mode == "load":
            run = json.loads(bench(args.lab, cluster.at("leader"), 15).communicate()[0])
            rate = 0.7 * run["requests_per_second"]
            foreground = bench(args.lab, cluster.at("leader"), 3600, rate)
            rates = Rates(cluster, leader)
            time.sleep(15)
        print(f"{mode}: replica {victim['id']} loses its journal and snapshots", file=sys.stderr)
        killed = time.monotonic()
        cluster.kill(victim)
        for kind in ("journal", "snapshots"):
            path = os.path.join(victim["dir"], kind)
            for name in os.listdir(path):
                os.remove(os.path.join(path, name))
        begin = time.monotonic()
        cluster.start(victim)
        shown = 0.0
        while True:
            time.sleep(0.05)
            try:
                status = cluster.status(victim)
            except OSError:
                continue
            transfer, now = status["transfer"], time.monotonic() - begin
            if transfer and now - shown >= args.every:
                shown = now
                left = transfer["left_ms"]
                print(f"  {now:6.2f} s  {transfer['phase']:<11} from {transfer['donor']}  "
                      f"{transfer['bytes'] >> 20:>5} of {transfer['total'] >> 20} MiB  "
                      f"position {transfer['reached']} of {transfer['wanted']}  "
                      f"{'' if left is None else f'{left / 1000:.1f} s left'}", file=sys.stderr)
            if status["voting"] and not status["fetching"] and status["lag"] < 1000:
                break
            if now > 600:
                raise SystemExit(f"{mode}: not caught up after ten minutes: {status}")
        took = time.monotonic() - begin
        total = status["state_bytes_received"]
        line = f"{mode}: {total / (1 << 20):.0f} MiB in {took:.2f} s"
        if mode == "idle":
            copied = copy_seconds(scratch, total)
            line += f"; a durable copy takes {copied:.2f} s: {copied / took:.2f} of its speed"
        if mode == "link":
            share = total * 8 / 1e6 / took / args.mbit
            line += f": {share:.2f} of {args.mbit} Mbit/s"
        if mode == "load":
            before, during = rates.between(0, killed), rates.between(begin, begin + took)
            line += f"; {before:.0f} writes/s before, {during:.0f} meanwhile: {during / before:.2f}"
        print(line, flush=True)
    finally:
        if rates:
            rates.ended.set()
        if foreground:
            foreground.send_signal(signal.SIGINT)
            foreground.wait()
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="how much state")
    parser.add_argument("--durability", default="disk")
    parser.add_argument("--protocol", default="multipaxos")
    parser.add_argument("--only", default="idle,link,load")
    parser.add_argument("--mbit", type=int, default=400, help="of the emulated link")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between lines of progress")
    parser.add_argument("--quintet", default="target/release/quintet")
    parser.add_argument("--lab", default="target/release/quintet-lab")
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--base-port", type=int, default=17001)
    parser.add_argument("--rate-max", default="0", metavar="SIZE",
                        help="transfer.rate_max of the replicas, such as 100MiB")
    args = parser.parse_args()
    if args.durability == "memory" and "link" in args.only:
        parser.error("link starts all replicas again, which needs --durability disk")
    scratch = tempfile.mkdtemp(prefix="quintet-transfer-", dir=args.scratch)
    try:
        for number, mode in enumerate(args.only.split(",")):
            measure(mode, args, scratch, args.base_port + 1000 * number)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
