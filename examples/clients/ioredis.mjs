// Quintet from Node.js with ioredis (`npm install ioredis`): write at one replica, read at another.
//
//     node examples/clients/ioredis.mjs [PORT_OF_ONE_REPLICA [PORT_OF_ANOTHER]]

import assert from "node:assert/strict";
import { Redis } from "ioredis";

const one = new Redis(Number(process.argv[2] ?? 7001));
const other = new Redis(Number(process.argv[3] ?? 7003));

await one.set("greeting", "hello");
assert.equal(await other.get("greeting"), "hello");

await one.del("user:3", "visits:3");
await one.hset("user:3", { name: "Ada", born: "1815" });
assert.deepEqual(await other.hgetall("user:3"), { name: "Ada", born: "1815" });

assert.deepEqual(await one.multi().incr("visits:3").incrby("visits:3", 10).exec(), [
  [null, 1],
  [null, 11],
]);
assert.equal(await other.get("visits:3"), "11");

await assert.rejects(one.incr("user:3"), /WRONGTYPE/);

const pipeline = one.pipeline();
for (let i = 0; i < 1000; i++) pipeline.set(`io:${i}`, i);
for (const [error, reply] of await pipeline.exec()) {
  assert.equal(error, null);
  assert.equal(reply, "OK");
}
assert.equal(await other.get("io:999"), "999");

await one.quit();
await other.quit();
console.log("ioredis: all held");
