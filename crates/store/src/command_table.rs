//! The table of all commands; their numbers stand in logs and never change.

use crate::command::{CommandSpec, Flags, Footprint, Group, Kind};

macro_rules! commands {
    ($($op:ident = $id:literal, $name:literal, $arity:literal, $kind:ident, $group:ident,
       ($first:literal, $last:literal, $step:literal), $footprint:ident $(($at:literal))?,
       $($flag:ident)|+;)*) => {
        /// A command's number. New ones are added at the end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op {
            $(#[doc = concat!("`", $name, "`")] $op = $id,)*
        }

        /// All commands, in the order of their numbers, which begin with 1.
        pub static COMMANDS: [CommandSpec; [$($id),*].len()] = [$(CommandSpec {
            name: $name,
            op: Op::$op,
            arity: $arity,
            kind: Kind::$kind,
            group: Group::$group,
            first_key: $first,
            last_key: $last,
            key_step: $step,
            footprint: Footprint::$footprint $(($at))?,
            flags: Flags::NONE$(.and(Flags::$flag))+,
        }),*];
    };
}

// name = number, name, arity, kind, group, (first key, last key, step), footprint, flags
commands! {

    // generic
    Copy = 1, "copy", -3, Write, Generic, (1, 2, 1), Positions, DENYOOM | WRITE;
    Del = 2, "del", -2, Write, Generic, (1, -1, 1), Positions, WRITE;
    Dump = 3, "dump", 2, Read, Generic, (1, 1, 1), Positions, READONLY;
    Exists = 4, "exists", -2, Read, Generic, (1, -1, 1), Positions, FAST | READONLY;
    Expire = 5, "expire", -3, Write, Generic, (1, 1, 1), Positions, FAST | WRITE;
    Expireat = 6, "expireat", -3, Write, Generic, (1, 1, 1), Positions, FAST | WRITE;
    Expiretime = 7, "expiretime", 2, Read, Generic, (1, 1, 1), Positions, FAST | READONLY;
    Keys = 8, "keys", 2, Read, Generic, (0, 0, 0), Everything, READONLY | DANGEROUS;
    Migrate = 9, "migrate", -6, Unreplicated, Generic, (3, 3, 1), Positions, MOVABLEKEYS | WRITE | DANGEROUS;
    Move = 10, "move", 3, Write, Generic, (1, 1, 1), Everything, FAST | WRITE;
    Object = 11, "object", -2, Read, Generic, (0, 0, 0), Second, NONE;
    Persist = 12, "persist", 2, Write, Generic, (1, 1, 1), Positions, FAST | WRITE;
    Pexpire = 13, "pexpire", -3, Write, Generic, (1, 1, 1), Positions, FAST | WRITE;
    Pexpireat = 14, "pexpireat", -3, Write, Generic, (1, 1, 1), Positions, FAST | WRITE;
    Pexpiretime = 15, "pexpiretime", 2, Read, Generic, (1, 1, 1), Positions, FAST | READONLY;
    Pttl = 16, "pttl", 2, Read, Generic, (1, 1, 1), Positions, FAST | READONLY;
    Randomkey = 17, "randomkey", 1, Read, Generic, (0, 0, 0), Everything, READONLY;
    Rename = 18, "rename", 3, Write, Generic, (1, 2, 1), Positions, WRITE;
    Renamenx = 19, "renamenx", 3, Write, Generic, (1, 2, 1), Positions, FAST | WRITE;
    Restore = 20, "restore", -4, Write, Generic, (1, 1, 1), Positions, DENYOOM | WRITE | DANGEROUS;
    Scan = 21, "scan", -2, Read, Generic, (0, 0, 0), Everything, READONLY;
    Sort = 22, "sort", -2, Write, Generic, (1, 1, 1), Everything, DENYOOM | MOVABLEKEYS | WRITE | DANGEROUS;
    SortRo = 23, "sort_ro", -2, Read, Generic, (1, 1, 1), Everything, MOVABLEKEYS | READONLY | DANGEROUS;
    Touch = 24, "touch", -2, Read, Generic, (1, -1, 1), Positions, FAST | READONLY;
    Ttl = 25, "ttl", 2, Read, Generic, (1, 1, 1), Positions, FAST | READONLY;
    Type = 26, "type", 2, Read, Generic, (1, 1, 1), Positions, FAST | READONLY;
    Unlink = 27, "unlink", -2, Write, Generic, (1, -1, 1), Positions, FAST | WRITE;
    Wait = 28, "wait", 3, Unreplicated, Generic, (0, 0, 0), None, NOSCRIPT;

    // string
    Append = 29, "append", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Decr = 30, "decr", 2, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Decrby = 31, "decrby", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Get = 32, "get", 2, Read, String, (1, 1, 1), Positions, FAST | READONLY;
    Getdel = 33, "getdel", 2, Write, String, (1, 1, 1), Positions, FAST | WRITE;
    Getex = 34, "getex", -2, Write, String, (1, 1, 1), Positions, FAST | WRITE;
    Getrange = 35, "getrange", 4, Read, String, (1, 1, 1), Positions, READONLY;
    Getset = 36, "getset", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Incr = 37, "incr", 2, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Incrby = 38, "incrby", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Incrbyfloat = 39, "incrbyfloat", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Lcs = 40, "lcs", -3, Read, String, (1, 2, 1), Positions, READONLY;
    Mget = 41, "mget", -2, Read, String, (1, -1, 1), Positions, FAST | READONLY;
    Mset = 42, "mset", -3, Write, String, (1, -1, 2), Positions, DENYOOM | WRITE;
    Msetnx = 43, "msetnx", -3, Write, String, (1, -1, 2), Positions, DENYOOM | WRITE;
    Psetex = 44, "psetex", 4, Write, String, (1, 1, 1), Positions, DENYOOM | WRITE;
    Set = 45, "set", -3, Write, String, (1, 1, 1), Positions, DENYOOM | WRITE;
    Setex = 46, "setex", 4, Write, String, (1, 1, 1), Positions, DENYOOM | WRITE;
    Setnx = 47, "setnx", 3, Write, String, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Setrange = 48, "setrange", 4, Write, String, (1, 1, 1), Positions, DENYOOM | WRITE;
    Strlen = 49, "strlen", 2, Read, String, (1, 1, 1), Positions, FAST | READONLY;
    Substr = 50, "substr", 4, Read, String, (1, 1, 1), Positions, READONLY;

    // bitmap
    Bitcount = 51, "bitcount", -2, Read, Bitmap, (1, 1, 1), Positions, READONLY;
    Bitfield = 52, "bitfield", -2, Write, Bitmap, (1, 1, 1), Positions, DENYOOM | WRITE;
    BitfieldRo = 53, "bitfield_ro", -2, Read, Bitmap, (1, 1, 1), Positions, FAST | READONLY;
    Bitop = 54, "bitop", -4, Write, Bitmap, (2, -1, 1), Positions, DENYOOM | WRITE;
    Bitpos = 55, "bitpos", -3, Read, Bitmap, (1, 1, 1), Positions, READONLY;
    Getbit = 56, "getbit", 3, Read, Bitmap, (1, 1, 1), Positions, FAST | READONLY;
    Setbit = 57, "setbit", 4, Write, Bitmap, (1, 1, 1), Positions, DENYOOM | WRITE;

    // hash
    Hdel = 58, "hdel", -3, Write, Hash, (1, 1, 1), Positions, FAST | WRITE;
    Hexists = 59, "hexists", 3, Read, Hash, (1, 1, 1), Positions, FAST | READONLY;
    Hget = 60, "hget", 3, Read, Hash, (1, 1, 1), Positions, FAST | READONLY;
    Hgetall = 61, "hgetall", 2, Read, Hash, (1, 1, 1), Positions, READONLY;
    Hincrby = 62, "hincrby", 4, Write, Hash, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Hincrbyfloat = 63, "hincrbyfloat", 4, Write, Hash, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Hkeys = 64, "hkeys", 2, Read, Hash, (1, 1, 1), Positions, READONLY;
    Hlen = 65, "hlen", 2, Read, Hash, (1, 1, 1), Positions, FAST | READONLY;
    Hmget = 66, "hmget", -3, Read, Hash, (1, 1, 1), Positions, FAST | READONLY;
    Hmset = 67, "hmset", -4, Write, Hash, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Hrandfield = 68, "hrandfield", -2, Read, Hash, (1, 1, 1), Positions, READONLY;
    Hscan = 69, "hscan", -3, Read, Hash, (1, 1, 1), Positions, READONLY;
    Hset = 70, "hset", -4, Write, Hash, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Hsetnx = 71, "hsetnx", 4, Write, Hash, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Hstrlen = 72, "hstrlen", 3, Read, Hash, (1, 1, 1), Positions, FAST | READONLY;
    Hvals = 73, "hvals", 2, Read, Hash, (1, 1, 1), Positions, READONLY;

    // list
    Blmove = 74, "blmove", 6, Later, List, (1, 2, 1), Positions, BLOCKING | DENYOOM | NOSCRIPT | WRITE;
    Blmpop = 75, "blmpop", -5, Later, List, (0, 0, 0), None, BLOCKING | MOVABLEKEYS | WRITE;
    Blpop = 76, "blpop", -3, Later, List, (1, -2, 1), Positions, BLOCKING | NOSCRIPT | WRITE;
    Brpop = 77, "brpop", -3, Later, List, (1, -2, 1), Positions, BLOCKING | NOSCRIPT | WRITE;
    Brpoplpush = 78, "brpoplpush", 4, Later, List, (1, 2, 1), Positions, BLOCKING | DENYOOM | NOSCRIPT | WRITE;
    Lindex = 79, "lindex", 3, Read, List, (1, 1, 1), Positions, READONLY;
    Linsert = 80, "linsert", 5, Write, List, (1, 1, 1), Positions, DENYOOM | WRITE;
    Llen = 81, "llen", 2, Read, List, (1, 1, 1), Positions, FAST | READONLY;
    Lmove = 82, "lmove", 5, Write, List, (1, 2, 1), Positions, DENYOOM | WRITE;
    Lmpop = 83, "lmpop", -4, Write, List, (0, 0, 0), Counted(1), MOVABLEKEYS | WRITE;
    Lpop = 84, "lpop", -2, Write, List, (1, 1, 1), Positions, FAST | WRITE;
    Lpos = 85, "lpos", -3, Read, List, (1, 1, 1), Positions, READONLY;
    Lpush = 86, "lpush", -3, Write, List, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Lpushx = 87, "lpushx", -3, Write, List, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Lrange = 88, "lrange", 4, Read, List, (1, 1, 1), Positions, READONLY;
    Lrem = 89, "lrem", 4, Write, List, (1, 1, 1), Positions, WRITE;
    Lset = 90, "lset", 4, Write, List, (1, 1, 1), Positions, DENYOOM | WRITE;
    Ltrim = 91, "ltrim", 4, Write, List, (1, 1, 1), Positions, WRITE;
    Rpop = 92, "rpop", -2, Write, List, (1, 1, 1), Positions, FAST | WRITE;
    Rpoplpush = 93, "rpoplpush", 3, Write, List, (1, 2, 1), Positions, DENYOOM | WRITE;
    Rpush = 94, "rpush", -3, Write, List, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Rpushx = 95, "rpushx", -3, Write, List, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;

    // set
    Sadd = 96, "sadd", -3, Write, Set, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Scard = 97, "scard", 2, Read, Set, (1, 1, 1), Positions, FAST | READONLY;
    Sdiff = 98, "sdiff", -2, Read, Set, (1, -1, 1), Positions, READONLY;
    Sdiffstore = 99, "sdiffstore", -3, Write, Set, (1, -1, 1), Positions, DENYOOM | WRITE;
    Sinter = 100, "sinter", -2, Read, Set, (1, -1, 1), Positions, READONLY;
    Sintercard = 101, "sintercard", -3, Read, Set, (0, 0, 0), Counted(1), MOVABLEKEYS | READONLY;
    Sinterstore = 102, "sinterstore", -3, Write, Set, (1, -1, 1), Positions, DENYOOM | WRITE;
    Sismember = 103, "sismember", 3, Read, Set, (1, 1, 1), Positions, FAST | READONLY;
    Smembers = 104, "smembers", 2, Read, Set, (1, 1, 1), Positions, READONLY;
    Smismember = 105, "smismember", -3, Read, Set, (1, 1, 1), Positions, FAST | READONLY;
    Smove = 106, "smove", 4, Write, Set, (1, 2, 1), Positions, FAST | WRITE;
    Spop = 107, "spop", -2, Write, Set, (1, 1, 1), Positions, FAST | WRITE;
    Srandmember = 108, "srandmember", -2, Read, Set, (1, 1, 1), Positions, READONLY;
    Srem = 109, "srem", -3, Write, Set, (1, 1, 1), Positions, FAST | WRITE;
    Sscan = 110, "sscan", -3, Read, Set, (1, 1, 1), Positions, READONLY;
    Sunion = 111, "sunion", -2, Read, Set, (1, -1, 1), Positions, READONLY;
    Sunionstore = 112, "sunionstore", -3, Write, Set, (1, -1, 1), Positions, DENYOOM | WRITE;

    // sorted-set
    Bzmpop = 113, "bzmpop", -5, Later, SortedSet, (0, 0, 0), None, BLOCKING | MOVABLEKEYS | WRITE;
    Bzpopmax = 114, "bzpopmax", -3, Later, SortedSet, (1, -2, 1), Positions, BLOCKING | FAST | NOSCRIPT | WRITE;
    Bzpopmin = 115, "bzpopmin", -3, Later, SortedSet, (1, -2, 1), Positions, BLOCKING | FAST | NOSCRIPT | WRITE;
    Zadd = 116, "zadd", -4, Write, SortedSet, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Zcard = 117, "zcard", 2, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zcount = 118, "zcount", 4, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zdiff = 119, "zdiff", -3, Read, SortedSet, (0, 0, 0), Counted(1), MOVABLEKEYS | READONLY;
    Zdiffstore = 120, "zdiffstore", -4, Write, SortedSet, (1, 1, 1), Counted(2), DENYOOM | MOVABLEKEYS | WRITE;
    Zincrby = 121, "zincrby", 4, Write, SortedSet, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Zinter = 122, "zinter", -3, Read, SortedSet, (0, 0, 0), Counted(1), MOVABLEKEYS | READONLY;
    Zintercard = 123, "zintercard", -3, Read, SortedSet, (0, 0, 0), Counted(1), MOVABLEKEYS | READONLY;
    Zinterstore = 124, "zinterstore", -4, Write, SortedSet, (1, 1, 1), Counted(2), DENYOOM | MOVABLEKEYS | WRITE;
    Zlexcount = 125, "zlexcount", 4, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zmpop = 126, "zmpop", -4, Write, SortedSet, (0, 0, 0), Counted(1), MOVABLEKEYS | WRITE;
    Zmscore = 127, "zmscore", -3, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zpopmax = 128, "zpopmax", -2, Write, SortedSet, (1, 1, 1), Positions, FAST | WRITE;
    Zpopmin = 129, "zpopmin", -2, Write, SortedSet, (1, 1, 1), Positions, FAST | WRITE;
    Zrandmember = 130, "zrandmember", -2, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrange = 131, "zrange", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrangebylex = 132, "zrangebylex", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrangebyscore = 133, "zrangebyscore", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrangestore = 134, "zrangestore", -5, Write, SortedSet, (1, 2, 1), Positions, DENYOOM | WRITE;
    Zrank = 135, "zrank", 3, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zrem = 136, "zrem", -3, Write, SortedSet, (1, 1, 1), Positions, FAST | WRITE;
    Zremrangebylex = 137, "zremrangebylex", 4, Write, SortedSet, (1, 1, 1), Positions, WRITE;
    Zremrangebyrank = 138, "zremrangebyrank", 4, Write, SortedSet, (1, 1, 1), Positions, WRITE;
    Zremrangebyscore = 139, "zremrangebyscore", 4, Write, SortedSet, (1, 1, 1), Positions, WRITE;
    Zrevrange = 140, "zrevrange", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrevrangebylex = 141, "zrevrangebylex", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrevrangebyscore = 142, "zrevrangebyscore", -4, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zrevrank = 143, "zrevrank", 3, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zscan = 144, "zscan", -3, Read, SortedSet, (1, 1, 1), Positions, READONLY;
    Zscore = 145, "zscore", 3, Read, SortedSet, (1, 1, 1), Positions, FAST | READONLY;
    Zunion = 146, "zunion", -3, Read, SortedSet, (0, 0, 0), Counted(1), MOVABLEKEYS | READONLY;
    Zunionstore = 147, "zunionstore", -4, Write, SortedSet, (1, 1, 1), Counted(2), DENYOOM | MOVABLEKEYS | WRITE;

    // connection
    Auth = 148, "auth", -2, Connection, Connection, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NO_AUTH | NOSCRIPT | STALE;
    Client = 149, "client", -2, Connection, Connection, (0, 0, 0), None, NONE;
    Echo = 150, "echo", 2, Connection, Connection, (0, 0, 0), None, FAST | LOADING | STALE;
    Hello = 151, "hello", -1, Connection, Connection, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NO_AUTH | NOSCRIPT | STALE;
    Ping = 152, "ping", -1, Connection, Connection, (0, 0, 0), None, FAST;
    Quit = 153, "quit", -1, Connection, Connection, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NO_AUTH | NOSCRIPT | STALE;
    Reset = 154, "reset", 1, Connection, Connection, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NO_AUTH | NOSCRIPT | STALE;
    Select = 155, "select", 2, Connection, Connection, (0, 0, 0), None, FAST | LOADING | STALE;

    // transactions
    Discard = 156, "discard", 1, Transaction, Transactions, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NOSCRIPT | STALE;
    Exec = 157, "exec", 1, Transaction, Transactions, (0, 0, 0), None, LOADING | NOSCRIPT | SKIP_SLOWLOG | STALE;
    Multi = 158, "multi", 1, Transaction, Transactions, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NOSCRIPT | STALE;
    Unwatch = 159, "unwatch", 1, Transaction, Transactions, (0, 0, 0), None, ALLOW_BUSY | FAST | LOADING | NOSCRIPT | STALE;
    Watch = 160, "watch", -2, Transaction, Transactions, (1, -1, 1), Positions, ALLOW_BUSY | FAST | LOADING | NOSCRIPT | STALE;

    // server
    Acl = 161, "acl", -2, Connection, Server, (0, 0, 0), None, NONE;
    Bgrewriteaof = 162, "bgrewriteaof", 1, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NOSCRIPT | DANGEROUS;
    Bgsave = 163, "bgsave", -1, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NOSCRIPT | DANGEROUS;
    Command = 164, "command", -1, Connection, Server, (0, 0, 0), None, LOADING | STALE;
    Config = 165, "config", -2, Connection, Server, (0, 0, 0), None, NONE;
    Dbsize = 166, "dbsize", 1, Read, Server, (0, 0, 0), Everything, FAST | READONLY;
    Debug = 167, "debug", -2, Unreplicated, Server, (0, 0, 0), None, ADMIN | LOADING | NOSCRIPT | STALE | DANGEROUS;
    Failover = 168, "failover", -1, Unreplicated, Server, (0, 0, 0), None, ADMIN | NOSCRIPT | STALE | DANGEROUS;
    Flushall = 169, "flushall", -1, Write, Server, (0, 0, 0), Everything, WRITE | DANGEROUS;
    Flushdb = 170, "flushdb", -1, Write, Server, (0, 0, 0), Everything, WRITE | DANGEROUS;
    Info = 171, "info", -1, Connection, Server, (0, 0, 0), None, LOADING | STALE | DANGEROUS;
    Lastsave = 172, "lastsave", 1, Unreplicated, Server, (0, 0, 0), None, FAST | LOADING | STALE | DANGEROUS;
    Latency = 173, "latency", -2, Later, Server, (0, 0, 0), None, NONE;
    Lolwut = 174, "lolwut", -1, Later, Server, (0, 0, 0), None, FAST | READONLY;
    Memory = 175, "memory", -2, Read, Server, (0, 0, 0), Second, NONE;
    Module = 176, "module", -2, Unreplicated, Server, (0, 0, 0), None, NONE;
    Monitor = 177, "monitor", 1, Later, Server, (0, 0, 0), None, ADMIN | LOADING | NOSCRIPT | STALE | DANGEROUS;
    Psync = 178, "psync", -3, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NO_MULTI | NOSCRIPT | DANGEROUS;
    Replconf = 179, "replconf", -1, Unreplicated, Server, (0, 0, 0), None, ADMIN | ALLOW_BUSY | LOADING | NOSCRIPT | STALE | DANGEROUS;
    Replicaof = 180, "replicaof", 3, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NOSCRIPT | STALE | DANGEROUS;
    RestoreAsking = 181, "restore-asking", -4, Unreplicated, Server, (1, 1, 1), Positions, ASKING | DENYOOM | WRITE | DANGEROUS;
    Role = 182, "role", 1, Connection, Server, (0, 0, 0), None, FAST | LOADING | NOSCRIPT | STALE | DANGEROUS;
    Save = 183, "save", 1, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NO_MULTI | NOSCRIPT | DANGEROUS;
    Shutdown = 184, "shutdown", -1, Unreplicated, Server, (0, 0, 0), None, ADMIN | ALLOW_BUSY | LOADING | NO_MULTI | NOSCRIPT | STALE | DANGEROUS;
    Slaveof = 185, "slaveof", 3, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NOSCRIPT | STALE | DANGEROUS;
    Slowlog = 186, "slowlog", -2, Later, Server, (0, 0, 0), None, NONE;
    Swapdb = 187, "swapdb", 3, Write, Server, (0, 0, 0), Everything, FAST | WRITE | DANGEROUS;
    Sync = 188, "sync", 1, Unreplicated, Server, (0, 0, 0), None, ADMIN | NO_ASYNC_LOADING | NO_MULTI | NOSCRIPT | DANGEROUS;
    Time = 189, "time", 1, Read, Server, (0, 0, 0), None, FAST | LOADING | STALE;

    // stream
    Xack = 190, "xack", -4, Later, Stream, (1, 1, 1), Positions, FAST | WRITE;
    Xadd = 191, "xadd", -5, Later, Stream, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Xautoclaim = 192, "xautoclaim", -6, Later, Stream, (1, 1, 1), Positions, FAST | WRITE;
    Xclaim = 193, "xclaim", -6, Later, Stream, (1, 1, 1), Positions, FAST | WRITE;
    Xdel = 194, "xdel", -3, Later, Stream, (1, 1, 1), Positions, FAST | WRITE;
    Xgroup = 195, "xgroup", -2, Later, Stream, (0, 0, 0), None, NONE;
    Xinfo = 196, "xinfo", -2, Later, Stream, (0, 0, 0), None, NONE;
    Xlen = 197, "xlen", 2, Later, Stream, (1, 1, 1), Positions, FAST | READONLY;
    Xpending = 198, "xpending", -3, Later, Stream, (1, 1, 1), Positions, READONLY;
    Xrange = 199, "xrange", -4, Later, Stream, (1, 1, 1), Positions, READONLY;
    Xread = 200, "xread", -4, Later, Stream, (0, 0, 0), None, BLOCKING | MOVABLEKEYS | READONLY;
    Xreadgroup = 201, "xreadgroup", -7, Later, Stream, (0, 0, 0), None, BLOCKING | MOVABLEKEYS | WRITE;
    Xrevrange = 202, "xrevrange", -4, Later, Stream, (1, 1, 1), Positions, READONLY;
    Xsetid = 203, "xsetid", -3, Later, Stream, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Xtrim = 204, "xtrim", -4, Later, Stream, (1, 1, 1), Positions, WRITE;

    // pubsub
    Psubscribe = 205, "psubscribe", -2, Later, PubSub, (0, 0, 0), None, LOADING | NOSCRIPT | PUBSUB | STALE;
    Publish = 206, "publish", 3, Later, PubSub, (0, 0, 0), None, FAST | LOADING | PUBSUB | STALE;
    Pubsub = 207, "pubsub", -2, Later, PubSub, (0, 0, 0), None, NONE;
    Punsubscribe = 208, "punsubscribe", -1, Later, PubSub, (0, 0, 0), None, LOADING | NOSCRIPT | PUBSUB | STALE;
    Spublish = 209, "spublish", 3, Later, PubSub, (1, 1, 1), Positions, FAST | LOADING | PUBSUB | STALE;
    Ssubscribe = 210, "ssubscribe", -2, Later, PubSub, (1, -1, 1), Positions, LOADING | NOSCRIPT | PUBSUB | STALE;
    Subscribe = 211, "subscribe", -2, Later, PubSub, (0, 0, 0), None, LOADING | NOSCRIPT | PUBSUB | STALE;
    Sunsubscribe = 212, "sunsubscribe", -1, Later, PubSub, (1, -1, 1), Positions, LOADING | NOSCRIPT | PUBSUB | STALE;
    Unsubscribe = 213, "unsubscribe", -1, Later, PubSub, (0, 0, 0), None, LOADING | NOSCRIPT | PUBSUB | STALE;

    // scripting
    Eval = 214, "eval", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | SKIP_MONITOR | STALE;
    EvalRo = 215, "eval_ro", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | READONLY | SKIP_MONITOR | STALE;
    Evalsha = 216, "evalsha", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | SKIP_MONITOR | STALE;
    EvalshaRo = 217, "evalsha_ro", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | READONLY | SKIP_MONITOR | STALE;
    Fcall = 218, "fcall", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | SKIP_MONITOR | STALE;
    FcallRo = 219, "fcall_ro", -3, Later, Scripting, (0, 0, 0), None, MOVABLEKEYS | NO_MANDATORY_KEYS | NOSCRIPT | READONLY | SKIP_MONITOR | STALE;
    Function = 220, "function", -2, Later, Scripting, (0, 0, 0), None, NONE;
    Script = 221, "script", -2, Later, Scripting, (0, 0, 0), None, NONE;

    // geo
    Geoadd = 222, "geoadd", -5, Write, Geo, (1, 1, 1), Positions, DENYOOM | WRITE;
    Geodist = 223, "geodist", -4, Read, Geo, (1, 1, 1), Positions, READONLY;
    Geohash = 224, "geohash", -2, Read, Geo, (1, 1, 1), Positions, READONLY;
    Geopos = 225, "geopos", -2, Read, Geo, (1, 1, 1), Positions, READONLY;
    Georadius = 226, "georadius", -6, Write, Geo, (1, 1, 1), Everything, DENYOOM | MOVABLEKEYS | WRITE;
    GeoradiusRo = 227, "georadius_ro", -6, Read, Geo, (1, 1, 1), Positions, READONLY;
    Georadiusbymember = 228, "georadiusbymember", -5, Write, Geo, (1, 1, 1), Everything, DENYOOM | MOVABLEKEYS | WRITE;
    GeoradiusbymemberRo = 229, "georadiusbymember_ro", -5, Read, Geo, (1, 1, 1), Positions, READONLY;
    Geosearch = 230, "geosearch", -7, Read, Geo, (1, 1, 1), Positions, READONLY;
    Geosearchstore = 231, "geosearchstore", -8, Write, Geo, (1, 2, 1), Positions, DENYOOM | WRITE;

    // hyperloglog
    Pfadd = 232, "pfadd", -2, Write, HyperLogLog, (1, 1, 1), Positions, DENYOOM | FAST | WRITE;
    Pfcount = 233, "pfcount", -2, Read, HyperLogLog, (1, -1, 1), Positions, READONLY;
    Pfdebug = 234, "pfdebug", 3, Unreplicated, HyperLogLog, (2, 2, 1), Positions, ADMIN | DENYOOM | WRITE | DANGEROUS;
    Pfmerge = 235, "pfmerge", -2, Write, HyperLogLog, (1, -1, 1), Positions, DENYOOM | WRITE;
    Pfselftest = 236, "pfselftest", 1, Unreplicated, HyperLogLog, (0, 0, 0), None, ADMIN | DANGEROUS;

    // cluster
    Asking = 237, "asking", 1, Unreplicated, Cluster, (0, 0, 0), None, FAST;
    Cluster = 238, "cluster", -2, Unreplicated, Cluster, (0, 0, 0), None, NONE;
    Readonly = 239, "readonly", 1, Unreplicated, Cluster, (0, 0, 0), None, FAST | LOADING | STALE;
    Readwrite = 240, "readwrite", 1, Unreplicated, Cluster, (0, 0, 0), None, FAST | LOADING | STALE;

    // internal
    WatchVersions = 241, "quintet.watch-versions", -2, Internal, Server, (1, -1, 1), Positions, READONLY;
    MemoryLimit = 242, "quintet.memory-limit", 2, Internal, Server, (0, 0, 0), Everything, WRITE;
    Literal = 243, "quintet.literal", 2, Internal, Server, (0, 0, 0), None, NONE;

    // its own
    Quintet = 244, "quintet", -2, Connection, Server, (0, 0, 0), None, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS;
    QuintetAt = 245, "quintet.at", -3, Past, Server, (0, 0, 0), None, READONLY | NOSCRIPT | NO_MULTI | MOVABLEKEYS;
    QuintetHistory = 246, "quintet.history", -2, Past, Server, (1, 1, 1), Positions, READONLY | NOSCRIPT | NO_MULTI;
    QuintetDiff = 247, "quintet.diff", -3, Past, Server, (0, 0, 0), None, READONLY | NOSCRIPT | NO_MULTI;
    QuintetRetain = 248, "quintet.retain", -1, Write, Server, (0, 0, 0), Everything, WRITE | ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS;
}

impl Op {
    /// Facts about the command.
    #[must_use]
    pub fn spec(self) -> &'static CommandSpec {
        &COMMANDS[self as usize - 1]
    }
}
