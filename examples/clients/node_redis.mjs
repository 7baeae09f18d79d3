// Quintet from Node.js with node-redis (`npm install redis`): write at one replica, read at another.
//
//     node examples/clients/node_redis.mjs [PORT_OF_ONE_REPLICA [PORT_OF_ANOTHER]]

import assert from "node:assert/strict";
import { createClient } from "redis";

const connect = (port) =>
  createClient({ socket: { host: "127.0.0.1", port } })
    .on("error", (error) => console.error(error))
    .connect();
const one = await connect(Number(process.argv[2] ?? 7001));
const other = await connect(Number(process.argv[3] ?? 7003));

// Every replica takes every command, and a read sees all that was acknowledged before, anywhere.
await one.set("greeting", "hello");
assert.equal(await other.get("greeting"), "hello");

await one.del(["user:2", "queue:2", "scores:2", "visits:2"]);
await one.hSet("user:2", { name: "Ada", born: "1815" });
assert.deepEqual({ ...(await other.hGetAll("user:2")) }, { name: "Ada", born: "1815" });

await one.rPush("queue:2", ["a", "b", "c"]);
assert.equal(await other.lPop("queue:2"), "a");

await one.zAdd("scores:2", [{ score: 3, value: "ada" }, { score: 2, value: "alan" }]);
assert.deepEqual(await other.zRange("scores:2", 0, -1), ["alan", "ada"]);

// MULTI/EXEC is one command in the replicated order.
assert.deepEqual(await one.multi().incr("visits:2").incrBy("visits:2", 10).exec(), [1, 11]);
assert.equal(await other.get("visits:2"), "11");

await assert.rejects(one.incr("user:2"), /WRONGTYPE/);

// Many commands at once travel as one pipeline.
const keys = Array.from({ length: 1000 }, (_, i) => `node:${i}`);
await Promise.all(keys.map((key, i) => one.set(key, String(i))));
const values = await Promise.all(keys.map((key) => other.get(key)));
assert.deepEqual(values, keys.map((_, i) => String(i)));

await one.close();
await other.close();
console.log("node-redis: all held");
