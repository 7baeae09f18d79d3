//! Random commands from templates.

use quintet_store::Random;

/// Draws words for commands.
pub struct Words(pub Random);

impl Words {
    /// Any one of these.
    pub fn one<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.0.below(words.len())]
    }

    /// Any one of these templates, expanded.
    pub fn any(&mut self, templates: &[&str]) -> Vec<String> {
        let template = self.one(templates);
        self.expand(template)
    }

    /// Expands a template: `K` a key, `M` a member or element, `S` a score, `B` a bound of scores,
    /// `N` a bound of names, `I` an index, `C` a count, `#` a small number; `M+` one or more, and
    /// `a|b|` any of them, nothing included.
    pub fn expand(&mut self, template: &str) -> Vec<String> {
        let mut command = Vec::new();
        for word in template.split(' ') {
            if let Some(group) = word.strip_suffix('+') {
                for _ in 0..=self.0.below(3) {
                    for part in group.split(',') {
                        command.push(self.word(part));
                    }
                }
            } else if word.contains('|') {
                let choices: Vec<&str> = word.split('|').collect();
                let choice = self.one(&choices);
                let parts = choice.split(',').filter(|part| !part.is_empty());
                let parts: Vec<String> = parts.map(|part| self.word(part)).collect();
                command.extend(parts);
            } else {
                command.push(self.word(word));
            }
        }
        command
    }

    fn word(&mut self, kind: &str) -> String {
        let word = match kind {
            "H" => self.one(&["h1", "h2", "h3", "s1"]),
            "L" => self.one(&["l1", "l2", "l3", "h1"]),
            "S" => self.one(&["s1", "s2", "s3", "l1"]),
            "Z" => self.one(&["z1", "z2", "z3", "z4", "s1"]),
            "M" => self.one(&[
                "a",
                "b",
                "c",
                "d",
                "e",
                "f",
                "7",
                "-1",
                "",
                "longer member",
                "1.5",
            ]),
            "F" => self.one(&[
                "0",
                "1",
                "-1",
                "2.5",
                "1.5",
                "-0",
                "1e3",
                "inf",
                "-inf",
                "nan",
                "x",
                "0x10",
                "3.1",
                "1e-7",
                "123456789012345678",
            ]),
            "B" => self.one(&[
                "0", "(0", "1", "(1", "-1", "2.5", "(2.5", "inf", "-inf", "+inf", "(inf", "x", "",
                "1000",
            ]),
            "N" => self.one(&[
                "-", "+", "[a", "(a", "[c", "(c", "[d", "[", "(", "x", "[7", "(longer",
            ]),
            "I" => self.one(&["0", "1", "2", "-1", "-2", "-100", "100", "3", "x", "5"]),
            "C" => self.one(&["0", "1", "2", "5", "100", "-1", "x"]),
            "#" => self.one(&["1", "2", "3", "1", "2", "0", "x", "-1"]),
            literal => literal,
        };
        word.to_owned()
    }
}

/// Commands on hashes.
pub const HASHES: &[&str] = &[
    "HSET H M,M+",
    "HSET H M,M+",
    "HSET H M M M",
    "HMSET H M,M+",
    "HSETNX H M M",
    "HGET H M",
    "HMGET H M+",
    "HGETALL H",
    "HDEL H M+",
    "HLEN H",
    "HSTRLEN H M",
    "HEXISTS H M",
    "HKEYS H",
    "HVALS H",
    "HINCRBY H M I",
    "HINCRBYFLOAT H M F",
    "HINCRBYFLOAT H M F",
    "HSCAN H 0 MATCH,*|COUNT,C|MATCH,[a-c]|x|COUNT|",
    "HSET H M",
];

/// Commands on lists.
pub const LISTS: &[&str] = &[
    "LPUSH L M+",
    "RPUSH L M+",
    "RPUSH L M+",
    "LPUSHX L M+",
    "RPUSHX L M+",
    "LPOP L C|C,C|",
    "RPOP L C|",
    "LLEN L",
    "LRANGE L I I",
    "LINDEX L I",
    "LSET L I M",
    "LINSERT L BEFORE|after|x M M",
    "LREM L I M",
    "LTRIM L I I",
    "LPOS L M RANK,I| COUNT,C| MAXLEN,C|x|",
    "LMOVE L L LEFT|right|x LEFT|RIGHT",
    "RPOPLPUSH L L",
    "LMPOP # L+ LEFT|RIGHT|x| COUNT,C|x|COUNT|",
];

/// Commands on sets.
pub const SETS: &[&str] = &[
    "SADD S M+",
    "SADD S M+",
    "SREM S M+",
    "SMEMBERS S",
    "SISMEMBER S M",
    "SMISMEMBER S M+",
    "SCARD S",
    "SMOVE S S M",
    "SINTER S+",
    "SUNION S+",
    "SDIFF S+",
    "SINTERSTORE S S+",
    "SUNIONSTORE S S+",
    "SDIFFSTORE S S+",
    "SINTERCARD # S+ LIMIT,C|x|LIMIT|",
    "SSCAN S 0 COUNT 100 MATCH,*|MATCH,[a-c]|x|COUNT,0|",
    "SPOP S 100|0|-1|x|1,2",
];

/// Commands on sorted sets.
pub const SORTED_SETS: &[&str] = &[
    "ZADD Z F,M+",
    "ZADD Z F,M+",
    "ZADD Z NX|XX|GT|LT|nx,xx|gt,lt|gt,nx| CH|INCR| F,M+",
    "ZADD Z F",
    "ZINCRBY Z F M",
    "ZREM Z M+",
    "ZCARD Z",
    "ZSCORE Z M",
    "ZMSCORE Z M+",
    "ZRANK Z M",
    "ZREVRANK Z M",
    "ZCOUNT Z B B",
    "ZRANGE Z I I REV|WITHSCORES|LIMIT,0,1|x| WITHSCORES|REV|",
    "ZRANGE Z B B BYSCORE REV|| LIMIT,I,I| WITHSCORES|",
    "ZRANGE Z B B BYSCORE BYLEX|BYSCORE|REV",
    "ZRANGESTORE Z Z I I REV|WITHSCORES|",
    "ZRANGESTORE Z Z B B BYSCORE REV| LIMIT,I,I|",
    "ZREVRANGE Z I I WITHSCORES|x|",
    "ZRANGEBYSCORE Z B B WITHSCORES|LIMIT,I,I|LIMIT,I|",
    "ZREVRANGEBYSCORE Z B B WITHSCORES|LIMIT,I,I|rev|",
    "ZREMRANGEBYRANK Z I I",
    "ZREMRANGEBYSCORE Z B B",
    "ZPOPMIN Z C|C,C|",
    "ZPOPMAX Z C|",
    "ZMPOP # Z+ MIN|max|x| COUNT,C|x|COUNT|COUNT,1,COUNT,1|",
    "ZUNION 1 Z WITHSCORES|WEIGHTS,F|AGGREGATE,MIN| WITHSCORES|",
    "ZUNION 2 Z Z WEIGHTS,F,F|AGGREGATE,MIN|AGGREGATE,max|AGGREGATE,x| WITHSCORES|x|",
    "ZUNIONSTORE Z # Z+ AGGREGATE,MIN|WITHSCORES|",
    "ZUNIONSTORE Z 2 Z Z WEIGHTS,F,F|",
    "ZINTER 2 Z Z WEIGHTS,F,F|AGGREGATE,SUM| WITHSCORES|",
    "ZINTERSTORE Z 2 Z Z WEIGHTS,F,F|WEIGHTS,F| AGGREGATE,MAX|",
    "ZINTERCARD # Z+ LIMIT,C|x|",
    "ZDIFF # Z+ WITHSCORES|WEIGHTS,1|",
    "ZDIFFSTORE Z # Z+ WITHSCORES|",
    "ZSCAN Z 0 MATCH,*|COUNT,C|MATCH,[a-c]|x|",
];

/// On a key whose members all have the same score, where ranges of names mean something.
pub const NAMES: &[&str] = &[
    "ZADD n 0,M+",
    "ZADD n 0,M+",
    "ZREM n M",
    "ZLEXCOUNT n N N",
    "ZRANGE n N N BYLEX REV| LIMIT,I,I| WITHSCORES||",
    "ZRANGESTORE m n N N BYLEX REV| LIMIT,I,I|",
    "ZRANGEBYLEX n N N LIMIT,I,I|WITHSCORES||",
    "ZREVRANGEBYLEX n N N LIMIT,I,I||",
    "ZREMRANGEBYLEX n N N",
    "ZRANGE m 0 -1 WITHSCORES",
];
