//! Writing replies: final RESP2 or RESP3 bytes, appended to one buffer.
//!
//! ```text
//!              RESP2              RESP3
//!   null       $-1                _
//!   map of n   *2n                %n
//!   set of n   *n                 ~n
//!   double     $4 3.25            ,3.25
//!   boolean    :1                 #t
//! ```

use crate::numbers::{write_double, write_integer};

/// The reply of one command in the making.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    bytes_max: usize,
    resp3: bool,
    overflow: bool,
}

impl<'a> Reply<'a> {
    /// A reply that is appended to `out` and may take `bytes_max` bytes.
    #[must_use]
    pub const fn new(out: &'a mut Vec<u8>, resp3: bool, bytes_max: usize) -> Self {
        let start = out.len();
        Self {
            out,
            start,
            bytes_max,
            resp3,
            overflow: false,
        }
    }

    /// A reply of no bounded size, for replies that the writer itself knows to be short.
    #[must_use]
    pub const fn unbounded(out: &'a mut Vec<u8>, resp3: bool) -> Self {
        Self::new(out, resp3, usize::MAX)
    }

    /// Whether the client speaks RESP3.
    #[must_use]
    pub const fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// Whether nothing has been written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.len() == self.start
    }

    /// Whether the reply has grown beyond its limit, so that going on is of no use.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        self.overflow
    }

    /// Replaces what has been written by an error. `text` begins with its code and holds no line
    /// end (one that does is cut into spaces).
    pub fn fail(&mut self, text: &str) {
        self.out.truncate(self.start);
        self.overflow = false;
        self.error(text);
    }

    /// The reply is known to be longer than it may be before it is made.
    pub const fn fail_too_large(&mut self) {
        self.overflow = true;
    }

    /// Must be called at the end: a reply that has grown too large becomes an error.
    pub fn finish(&mut self) {
        if !self.may_grow() {
            let text = format!(
                "ERR reply exceeds what limits.value_bytes_max allows ({})",
                self.bytes_max
            );
            self.fail(&text);
        }
    }

    /// Whether more may be written: nothing is, once the limit is exceeded.
    #[inline]
    fn may_grow(&mut self) -> bool {
        self.overflow |= self.out.len() - self.start > self.bytes_max;
        !self.overflow
    }

    #[inline]
    fn line(&mut self, kind: u8, number: i64) {
        if !self.may_grow() {
            return;
        }
        self.out.push(kind);
        write_integer(self.out, number);
        self.out.extend_from_slice(b"\r\n");
    }

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A status line, without line ends.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// An error inside the reply; see [`Self::fail`] for one that replaces it.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let clean = |byte: u8| {
            if byte == b'\r' || byte == b'\n' {
                b' '
            } else {
                byte
            }
        };
        self.out.extend(text.bytes().map(clean));
        self.out.extend_from_slice(b"\r\n");
    }

    /// A whole number.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.line(b':', number);
    }

    /// A count as a whole number.
    #[inline]
    pub fn count(&mut self, count: usize) {
        self.line(b':', count as i64);
    }

    /// `:1` or `:0`, in RESP3 too, as most of Redis's yes-or-no replies are.
    #[inline]
    pub fn yes(&mut self, yes: bool) {
        self.out
            .extend_from_slice(if yes { b":1\r\n" } else { b":0\r\n" });
    }

    /// A string of any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.overflow || self.out.len() - self.start + bytes.len() > self.bytes_max {
            self.overflow = true;
            return;
        }
        self.out.reserve(bytes.len() + 16);
        self.line(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string, or null.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// A whole number as a string.
    pub fn bulk_integer(&mut self, number: i64) {
        let mut digits = Vec::with_capacity(20);
        write_integer(&mut digits, number);
        self.bulk(&digits);
    }

    /// Nothing, where a string would stand.
    #[inline]
    pub fn null(&mut self) {
        if !self.may_grow() {
            return;
        }
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Nothing, where an array would stand.
    pub fn null_array(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The head of an array of `len` elements, which follow.
    pub fn array(&mut self, len: usize) {
        self.line(b'*', len as i64);
    }

    /// The head of a map of `pairs` keys with their values, which follow in turn.
    pub fn map(&mut self, pairs: usize) {
        if self.resp3 {
            self.line(b'%', pairs as i64);
        } else {
            self.line(b'*', 2 * pairs as i64);
        }
    }

    /// The head of a set of `len` elements, which follow.
    pub fn set(&mut self, len: usize) {
        self.line(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// A number with a fraction.
    pub fn double(&mut self, number: f64) {
        if self.resp3 {
            if !self.may_grow() {
                return;
            }
            self.out.push(b',');
            write_double(self.out, number);
            self.out.extend_from_slice(b"\r\n");
        } else {
            let mut digits = Vec::with_capacity(24);
            write_double(&mut digits, number);
            self.bulk(&digits);
        }
    }

    /// A number with a fraction that has been written in digits.
    pub fn decimal(&mut self, digits: &[u8]) {
        if !self.resp3 {
            return self.bulk(digits);
        }
        if self.may_grow() {
            self.out.push(b',');
            self.out.extend_from_slice(digits);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Yes or no as a type of its own in RESP3.
    pub fn boolean(&mut self, yes: bool) {
        if self.resp3 {
            self.out
                .extend_from_slice(if yes { b"#t\r\n" } else { b"#f\r\n" });
        } else {
            self.yes(yes);
        }
    }

    /// A text of a format of three letters (`txt`, `mkd`), a plain string in RESP2.
    pub fn verbatim(&mut self, format: &str, text: &[u8]) {
        if self.resp3 {
            if self.out.len() - self.start + text.len() > self.bytes_max {
                self.overflow = true;
                return;
            }
            self.line(b'=', text.len() as i64 + 4);
            self.out.extend_from_slice(format.as_bytes());
            self.out.push(b':');
            self.out.extend_from_slice(text);
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text);
        }
    }

    /// Bytes that are a whole reply already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Begins an array whose length is known only later; give what this returns to
    /// [`Self::end_array`].
    #[must_use]
    pub fn begin_array(&mut self) -> usize {
        self.out.len()
    }

    /// Ends an array of `len` elements that was begun by [`Self::begin_array`].
    pub fn end_array(&mut self, begun: usize, len: usize) {
        let mut head = Vec::with_capacity(16);
        head.push(b'*');
        write_integer(&mut head, len as i64);
        head.extend_from_slice(b"\r\n");
        self.out.splice(begun..begun, head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resp3: bool, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::unbounded(&mut out, resp3));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_protocols_are_written() {
        let all = |reply: &mut Reply<'_>| {
            reply.null();
            reply.null_array();
            reply.map(1);
            reply.set(2);
            reply.double(3.25);
            reply.boolean(true);
            reply.verbatim("txt", b"ab");
            reply.integer(i64::MIN);
        };
        assert_eq!(
            written(false, all),
            "$-1\r\n*-1\r\n*2\r\n*2\r\n$4\r\n3.25\r\n:1\r\n$2\r\nab\r\n:-9223372036854775808\r\n"
        );
        assert_eq!(
            written(true, all),
            "_\r\n_\r\n%1\r\n~2\r\n,3.25\r\n#t\r\n=6\r\ntxt:ab\r\n:-9223372036854775808\r\n"
        );
    }

    #[test]
    fn array_may_be_counted_afterwards() {
        let text = written(false, |reply| {
            reply.integer(7);
            let begun = reply.begin_array();
            reply.bulk(b"a");
            reply.bulk(b"b");
            reply.end_array(begun, 2);
        });
        assert_eq!(text, ":7\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    }

    #[test]
    fn reply_that_grows_too_large_becomes_an_error() {
        let mut out = b"+before\r\n".to_vec();
        let mut reply = Reply::new(&mut out, false, 100);
        for _ in 0..50 {
            reply.bulk(b"0123456789");
        }
        reply.finish();
        assert_eq!(
            out,
            b"+before\r\n-ERR reply exceeds what limits.value_bytes_max allows (100)\r\n"
        );
    }

    #[test]
    fn error_is_one_line() {
        assert_eq!(
            written(false, |reply| reply.error("ERR a\r\nb")),
            "-ERR a  b\r\n"
        );
    }
}
