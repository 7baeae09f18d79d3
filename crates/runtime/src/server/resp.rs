//! Reading Redis's protocol: commands as arrays of bulk strings, or inline as people type them.
//!
//! ```text
//!   *2\r\n $3\r\n GET\r\n $1\r\n k\r\n          arguments are ranges of the read buffer
//!   GET k\r\n                                   arguments are unquoted into a buffer of their own
//!
//!   Start ──'*'──► Bulks ──last──► Command(length) ──► Start
//!     │              └─argument too long─► Discard ──last──► TooLarge ──► Start
//!     └──any other──► a line ──► Command(length)
//! ```
//!
//! The parser remembers where it stopped, so that a command arriving in many pieces is read once.
//! Nothing is allocated for what a client only announces.

/// The largest input of a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest argument that is accepted, in bytes.
    pub argument_bytes_max: usize,
    /// The longest command that is accepted, in bytes.
    pub command_bytes_max: usize,
}

/// Redis's `proto-max-bulk-len`: a longer argument ends the connection.
pub const BULK_BYTES_MAX: i64 = 512 << 20;
/// The longest line: an inline command, or the head of an array or a bulk string.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// The most arguments, and the longest, before the client has authenticated itself.
const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;
const UNAUTHENTICATED_BYTES_MAX: i64 = 16 << 10;
/// Room for arguments that is not kept after the command.
const ARGUMENTS_KEPT: usize = 4096;

/// Input after which nothing more can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The count of an array is no number or too large.
    #[error("invalid multibulk length")]
    ArrayLength,
    /// The length of a bulk string is no number, negative or too large.
    #[error("invalid bulk length")]
    BulkLength,
    /// Something else where a bulk string should begin.
    #[error("expected '$', got '{}'", printable(*.0))]
    Expected(u8),
    /// An inline command without an end.
    #[error("too big inline request")]
    InlineTooBig,
    /// An array's head without an end.
    #[error("too big mbulk count string")]
    ArrayHeadTooBig,
    /// A bulk string's head without an end.
    #[error("too big bulk count string")]
    BulkHeadTooBig,
    /// An inline command with a quote that does not end, or not before a space.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// Too many arguments before authentication.
    #[error("unauthenticated multibulk length")]
    ArrayUnauthenticated,
    /// Too long an argument before authentication.
    #[error("unauthenticated bulk length")]
    BulkUnauthenticated,
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' {
        char::from(byte)
    } else {
        '?'
    }
}

/// Why a command was read to its end and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// An argument has this many bytes.
    Argument(usize),
    /// The whole command has at least this many bytes.
    Command(usize),
}

/// How far the parser has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing more can be said before more bytes have arrived.
    Incomplete,
    /// That many bytes at the front belong to a command that is not wanted: drop them and call
    /// again.
    Discard(usize),
    /// That many bytes at the front were a command that is too large; drop them.
    TooLarge(usize, TooLarge),
    /// That many bytes at the front are a command; it may be empty, and then it gets no reply.
    Command(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Reading the head (`None`) or the body of a bulk string; `left` with it are to come.
    Bulks {
        left: u32,
        body: Option<usize>,
    },
    /// Dropping `skip` bytes, then `left` bulk strings.
    Discard {
        left: u32,
        skip: usize,
        reason: TooLarge,
    },
}

/// Reads the commands of one connection. Between two calls the input may only grow at its end, or
/// lose at its front what [`Step`] said.
#[derive(Debug)]
pub struct Parser {
    state: State,
    /// Where to continue, from the front of the input.
    at: usize,
    /// The input must be at least this long before it is worth looking.
    need: usize,
    /// Start and length of each argument.
    arguments: Vec<(u32, u32)>,
    /// The arguments of an inline command.
    line: Vec<u8>,
    inline: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            state: State::Start,
            at: 0,
            need: 1,
            arguments: Vec::new(),
            line: Vec::new(),
            inline: false,
        }
    }
}

impl Parser {
    /// Looks at the input, which begins with the command in progress.
    ///
    /// # Errors
    /// When the connection cannot continue; the parser must not be used any more.
    #[inline]
    pub fn step(
        &mut self,
        input: &[u8],
        limits: &Limits,
        authenticated: bool,
    ) -> Result<Step, ProtocolError> {
        if input.len() < self.need {
            return Ok(Step::Incomplete);
        }
        if self.state == State::Start {
            self.arguments.clear();
            if input[0] != b'*' {
                return self.inline(input);
            }
            let Some((count, after)) = self.head(input, 0, ProtocolError::ArrayHeadTooBig)? else {
                return Ok(Step::Incomplete);
            };
            let count = count.ok_or(ProtocolError::ArrayLength)?;
            if count > i64::from(i32::MAX) {
                return Err(ProtocolError::ArrayLength);
            }
            if count > UNAUTHENTICATED_ARGUMENTS_MAX && !authenticated {
                return Err(ProtocolError::ArrayUnauthenticated);
            }
            self.inline = false;
            if count <= 0 {
                return Ok(self.ended(after));
            }
            self.state = State::Bulks {
                left: count as u32,
                body: None,
            };
            self.at = after;
        }
        match self.state {
            State::Discard { left, skip, reason } => {
                self.discard(input, left, skip, reason, authenticated)
            }
            _ => self.bulks(input, limits, authenticated),
        }
    }

    /// How many arguments the command has, its name included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Whether the command is an empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arguments.is_empty()
    }

    /// An argument of the command that [`Step::Command`] has announced, 0 being its name. `input`
    /// is what [`Self::step`] got.
    #[must_use]
    #[inline]
    pub fn argument<'a>(&'a self, input: &'a [u8], index: usize) -> &'a [u8] {
        let (start, length) = self.arguments[index];
        let bytes = if self.inline { &self.line } else { input };
        &bytes[start as usize..][..length as usize]
    }

    /// Whether a command has begun and not ended.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.state != State::Start
    }

    /// How many more bytes the argument in progress needs at least.
    #[must_use]
    pub const fn missing(&self, input: usize) -> usize {
        self.need.saturating_sub(input)
    }

    fn ended(&mut self, length: usize) -> Step {
        self.state = State::Start;
        self.at = 0;
        self.need = 1;
        Step::Command(length)
    }

    /// The number in the line that begins with one letter at `from`, and where the next line
    /// begins. `Ok(None)`: the line has not ended yet. `Some((None, _))`: it holds no number.
    #[inline]
    fn head(
        &mut self,
        input: &[u8],
        from: usize,
        too_big: ProtocolError,
    ) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
        let line = &input[from + 1..];
        let Some(end) = line
            .iter()
            .take(LINE_BYTES_MAX)
            .position(|byte| *byte == b'\r')
        else {
            if line.len() >= LINE_BYTES_MAX {
                return Err(too_big);
            }
            self.need = input.len() + 1;
            return Ok(None);
        };
        let after = from + 1 + end + 2;
        if input.len() < after {
            self.need = after;
            return Ok(None);
        }
        Ok(Some((number(&line[..end]), after)))
    }

    fn bulk_length(
        &self,
        length: Option<i64>,
        authenticated: bool,
    ) -> Result<usize, ProtocolError> {
        let length = length.ok_or(ProtocolError::BulkLength)?;
        if !(0..=BULK_BYTES_MAX).contains(&length) {
            return Err(ProtocolError::BulkLength);
        }
        if length > UNAUTHENTICATED_BYTES_MAX && !authenticated {
            return Err(ProtocolError::BulkUnauthenticated);
        }
        Ok(length as usize)
    }

    #[inline]
    fn bulks(
        &mut self,
        input: &[u8],
        limits: &Limits,
        authenticated: bool,
    ) -> Result<Step, ProtocolError> {
        let State::Bulks { mut left, mut body } = self.state else {
            return Ok(Step::Incomplete);
        };
        let mut at = self.at;
        loop {
            let length = match body {
                Some(length) => length,
                None => {
                    self.state = State::Bulks { left, body };
                    self.at = at;
                    match input.get(at) {
                        None => {
                            self.need = at + 1;
                            return Ok(Step::Incomplete);
                        }
                        Some(b'$') => {}
                        Some(other) => return Err(ProtocolError::Expected(*other)),
                    }
                    let too_big = ProtocolError::BulkHeadTooBig;
                    let Some((length, after)) = self.head(input, at, too_big)? else {
                        return Ok(Step::Incomplete);
                    };
                    let length = self.bulk_length(length, authenticated)?;
                    at = after;
                    let reason = if length > limits.argument_bytes_max {
                        Some(TooLarge::Argument(length))
                    } else if at + length > limits.command_bytes_max {
                        Some(TooLarge::Command(at + length))
                    } else {
                        None
                    };
                    if let Some(reason) = reason {
                        self.arguments = Vec::new();
                        self.state = State::Discard {
                            left: left - 1,
                            skip: length + 2,
                            reason,
                        };
                        self.at = 0;
                        self.need = 1;
                        return Ok(Step::Discard(at));
                    }
                    length
                }
            };
            let after = at + length + 2;
            if input.len() < after {
                self.state = State::Bulks {
                    left,
                    body: Some(length),
                };
                self.at = at;
                self.need = after;
                return Ok(Step::Incomplete);
            }
            self.arguments.push((at as u32, length as u32));
            at = after;
            body = None;
            left -= 1;
            if left == 0 {
                return Ok(self.ended(at));
            }
        }
    }

    fn discard(
        &mut self,
        input: &[u8],
        left: u32,
        skip: usize,
        reason: TooLarge,
        authenticated: bool,
    ) -> Result<Step, ProtocolError> {
        let skipped = skip.min(input.len());
        if skip > 0 {
            self.state = State::Discard {
                left,
                skip: skip - skipped,
                reason,
            };
            if skip > skipped || left > 0 {
                self.need = 1;
                return Ok(Step::Discard(skipped));
            }
        }
        if left == 0 {
            self.ended(0);
            return Ok(Step::TooLarge(skipped, reason));
        }
        if input[0] != b'$' {
            return Err(ProtocolError::Expected(input[0]));
        }
        let Some((length, after)) = self.head(input, 0, ProtocolError::BulkHeadTooBig)? else {
            return Ok(Step::Incomplete);
        };
        let skip = self.bulk_length(length, authenticated)? + 2;
        self.state = State::Discard {
            left: left - 1,
            skip,
            reason,
        };
        self.need = 1;
        Ok(Step::Discard(after))
    }

    fn inline(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        let rest = &input[self.at..];
        let Some(end) = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|end| self.at + end)
        else {
            if input.len() > LINE_BYTES_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            self.at = input.len();
            self.need = input.len() + 1;
            return Ok(Step::Incomplete);
        };
        if end > LINE_BYTES_MAX {
            return Err(ProtocolError::InlineTooBig);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.line.clear();
        self.inline = true;
        split_line(line, &mut self.line, &mut self.arguments).ok_or(ProtocolError::Quotes)?;
        Ok(self.ended(end + 1))
    }

    /// Gives back memory that an unusually large command took.
    pub fn shrink(&mut self) {
        if self.state == State::Start && self.arguments.capacity() > ARGUMENTS_KEPT {
            self.arguments = Vec::new();
        }
        if self.line.capacity() > LINE_BYTES_MAX {
            self.line = Vec::new();
        }
    }
}

/// A whole number exactly as Redis writes one: no sign but `-`, no zeros in front, no spaces.
#[inline]
fn number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 18 => {}
        _ => return None,
    }
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

/// Splits an inline command at spaces and undoes its quotes; `None` when they do not match.
fn split_line(line: &[u8], out: &mut Vec<u8>, arguments: &mut Vec<(u32, u32)>) -> Option<()> {
    let space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = out.len();
        loop {
            rest = match rest {
                [] => break,
                [first, ..] if space(*first) => break,
                [b'"', tail @ ..] => double_quoted(tail, out)?,
                [b'\'', tail @ ..] => single_quoted(tail, out)?,
                [first, tail @ ..] => {
                    out.push(*first);
                    tail
                }
            };
        }
        arguments.push((start as u32, (out.len() - start) as u32));
    }
}

fn after_quote(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [] | [b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, ..] => Some(rest),
        _ => None,
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    loop {
        rest = match rest {
            [] => return None,
            [b'"', tail @ ..] => return after_quote(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.push((digit(*high)? * 16 + digit(*low)?) as u8);
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                tail
            }
            [first, tail @ ..] => {
                out.push(*first);
                tail
            }
        };
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\'', tail @ ..] => return after_quote(tail),
            [b'\\', b'\'', tail @ ..] => {
                out.push(b'\'');
                tail
            }
            [first, tail @ ..] => {
                out.push(*first);
                tail
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        argument_bytes_max: 1000,
        command_bytes_max: 3000,
    };

    #[derive(Debug, PartialEq, Eq)]
    enum Read {
        Command(Vec<Vec<u8>>),
        TooLarge(TooLarge),
        Error(ProtocolError),
    }

    /// Feeds `pieces` one after the other and gives all that was read.
    fn read_all(pieces: &[&[u8]]) -> Vec<Read> {
        let mut parser = Parser::default();
        let mut input = Vec::new();
        let mut read = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match parser.step(&input, &LIMITS, true) {
                    Ok(Step::Incomplete) => break,
                    Ok(Step::Discard(length)) => drop(input.drain(..length)),
                    Ok(Step::TooLarge(length, reason)) => {
                        input.drain(..length);
                        read.push(Read::TooLarge(reason));
                    }
                    Ok(Step::Command(length)) => {
                        let all = 0..parser.len();
                        let command: Vec<_> = all
                            .map(|index| parser.argument(&input, index).to_vec())
                            .collect();
                        input.drain(..length);
                        if !command.is_empty() {
                            read.push(Read::Command(command));
                        }
                    }
                    Err(error) => {
                        read.push(Read::Error(error));
                        return read;
                    }
                }
            }
        }
        read
    }

    fn command(arguments: &[&str]) -> Read {
        Read::Command(
            arguments
                .iter()
                .map(|argument| argument.as_bytes().to_vec())
                .collect(),
        )
    }

    fn error_of(bytes: &[u8]) -> String {
        match read_all(&[bytes]).pop() {
            Some(Read::Error(error)) => error.to_string(),
            other => panic!("no error but {other:?}"),
        }
    }

    #[test]
    fn arrays_and_lines_become_commands() {
        let bytes =
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\nset k 'a b'\n";
        assert_eq!(
            read_all(&[bytes]),
            [
                command(&["GET", "k"]),
                command(&["PING"]),
                command(&[""]),
                command(&["set", "k", "a b"])
            ]
        );
    }

    #[test]
    fn quotes_are_undone() {
        let bytes = b"set \"a\\x41\\n\\q\" 'it\\'s' \"\" a'b c'\r\n";
        assert_eq!(
            read_all(&[bytes]),
            [command(&["set", "aA\nq", "it's", "", "ab c"])]
        );
        for bad in ["set \"a", "set 'a", "set \"a\"b", "set 'a'b", "\""] {
            assert_eq!(
                error_of(format!("{bad}\r\n").as_bytes()),
                "unbalanced quotes in request"
            );
        }
    }

    #[test]
    fn invalid_input_is_named() {
        for length in [
            "2000000000",
            "-10",
            "text",
            "",
            "+5",
            "05",
            "99999999999999999999",
        ] {
            let bytes = format!("*1\r\n${length}\r\n");
            assert_eq!(
                error_of(bytes.as_bytes()),
                "invalid bulk length",
                "{length}"
            );
        }
        for count in ["x", "", "2147483648", "1 ", "-0"] {
            let bytes = format!("*{count}\r\n");
            assert_eq!(
                error_of(bytes.as_bytes()),
                "invalid multibulk length",
                "{count}"
            );
        }
        assert_eq!(error_of(b"*1\r\nfoo\r\n"), "expected '$', got 'f'");
        assert_eq!(error_of(&vec![b'a'; 70_000]), "too big inline request");
        let mut line = vec![b'a'; 70_000];
        line.extend_from_slice(b"\r\n");
        assert_eq!(error_of(&line), "too big inline request");
        let mut head = b"*".to_vec();
        head.resize(70_000, b'1');
        assert_eq!(error_of(&head), "too big mbulk count string");
        let mut head = b"*1\r\n$".to_vec();
        head.resize(70_000, b'1');
        assert_eq!(error_of(&head), "too big bulk count string");
    }

    #[test]
    fn announced_size_allocates_nothing() {
        let mut parser = Parser::default();
        let input = b"*1000000000\r\n$3\r\nSET\r\n$500000000\r\n";
        let limits = Limits {
            argument_bytes_max: usize::MAX / 4,
            command_bytes_max: usize::MAX / 4,
        };
        assert_eq!(parser.step(input, &limits, true), Ok(Step::Incomplete));
        assert!(parser.arguments.capacity() < 64);
        assert_eq!(parser.missing(input.len()), 500_000_002);
    }

    #[test]
    fn strangers_may_send_little() {
        let step = |input: &[u8]| Parser::default().step(input, &LIMITS, false);
        assert_eq!(step(b"*11\r\n"), Err(ProtocolError::ArrayUnauthenticated));
        assert_eq!(
            step(b"*1\r\n$20000\r\n"),
            Err(ProtocolError::BulkUnauthenticated)
        );
        assert_eq!(step(b"*1\r\n$4\r\nPING\r\n"), Ok(Step::Command(14)));
    }

    #[test]
    fn argument_too_long_is_dropped_and_the_next_command_is_read() {
        let mut bytes = b"*3\r\n$3\r\nSET\r\n$2000\r\n".to_vec();
        bytes.resize(bytes.len() + 2000, b'v');
        bytes.extend_from_slice(b"\r\n$1\r\nx\r\n*1\r\n$4\r\nPING\r\n");
        let expected = [Read::TooLarge(TooLarge::Argument(2000)), command(&["PING"])];
        assert_eq!(read_all(&[&bytes]), expected);
        let bytewise: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(read_all(&bytewise), expected);
        let mut bytes = b"*4\r\n".to_vec();
        for _ in 0..4 {
            bytes.extend_from_slice(b"$900\r\n");
            bytes.resize(bytes.len() + 900, b'v');
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"PING\r\n");
        let read = read_all(&[&bytes]);
        assert!(
            matches!(read[0], Read::TooLarge(TooLarge::Command(_))),
            "{read:?}"
        );
        assert_eq!(read[1], command(&["PING"]));
    }

    fn any_command() -> impl Strategy<Value = Vec<u8>> {
        let argument = prop::collection::vec(any::<u8>(), 0..30);
        let array = prop::collection::vec(argument, 0..5).prop_map(|arguments| {
            let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
            for argument in arguments {
                bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                bytes.extend_from_slice(&argument);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes
        });
        let huge = Just({
            let mut bytes = b"*2\r\n$1500\r\n".to_vec();
            bytes.resize(bytes.len() + 1500, b'v');
            bytes.extend_from_slice(b"\r\n$1\r\nx\r\n");
            bytes
        });
        let line = "[a-z]{1,5}( ('[a-z ]{0,4}'|\"[a-z ]{0,4}\"|[a-z]{1,4})){0,3}\r?\n"
            .prop_map(String::into_bytes);
        prop_oneof![6 => array, 2 => line, 1 => huge]
    }

    proptest! {
        #[test]
        fn any_split_reads_the_same(
            commands in prop::collection::vec(any_command(), 0..6),
            cuts in prop::collection::vec(1usize..40, 1..30),
        ) {
            let bytes = commands.concat();
            let whole = read_all(&[&bytes]);
            let errors = whole.iter().any(|read| matches!(read, Read::Error(_)));
            prop_assert!(!errors, "{:?}", whole);
            let mut pieces = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, tail) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            prop_assert_eq!(read_all(&pieces), whole);
        }

        #[test]
        fn no_bytes_make_it_panic(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    prop::collection::vec(
                        prop::sample::select(b"*$\r\n0123456789-\"'\\x ".to_vec()), 0..40),
                ],
                0..10,
            ),
        ) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            read_all(&pieces);
        }
    }
}
