//! The cables between replicas on loopback: one small proxy for all links, whose bytes can be
//! held up in one direction, and whose connections can be reset.
//!
//! ```text
//!   replica 0 ──dials──► listener (0 → 1) ══ pipe ══► replica 1
//!                           cut 0 → 1: bytes wait    reset: both ends see ECONNRESET,
//!                           cut 1 → 0: answers wait   what was in progress is lost
//! ```
//!
//! A cut holds bytes back and delivers them when it heals, as retransmission does; a reset loses
//! them. One thread serves all pipes; each holds a bounded number of bytes, and what is not read
//! stays in the sockets, so that a slow side slows the other.

use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// Directions in which nothing gets through: from, to.
pub type Cuts = BTreeSet<(u16, u16)>;

const WAKE: Token = Token(0);
const HELD_MAX: usize = 256 << 10;
const PIPES_MAX: usize = 1024;

/// One listener: who dials it, whom it leads to.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// The replica that dials.
    pub from: u16,
    /// The replica that is dialled.
    pub to: u16,
    /// Where the dialler connects.
    pub listen: SocketAddr,
    /// Where the dialled one listens.
    pub target: SocketAddr,
}

#[derive(Debug, Default)]
struct Orders {
    cuts: Option<Cuts>,
    resets: Vec<(u16, u16)>,
    stop: bool,
}

/// All cables; cut off when dropped.
#[derive(Debug)]
pub struct Proxy {
    orders: Arc<Mutex<Orders>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens for all cables.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn start(cables: &[Cable]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let mut listeners = Vec::new();
        for (index, cable) in cables.iter().enumerate() {
            let mut listener = TcpListener::bind(cable.listen)?;
            poll.registry()
                .register(&mut listener, Token(index + 1), Interest::READABLE)?;
            listeners.push((listener, *cable));
        }
        let orders = Arc::new(Mutex::new(Orders::default()));
        let switchboard = Switchboard {
            poll,
            orders: Arc::clone(&orders),
            token_next: listeners.len() + 1,
            listeners,
            pipes: BTreeMap::new(),
            tokens: BTreeMap::new(),
            cuts: Cuts::new(),
        };
        let thread = std::thread::Builder::new()
            .name("cables".to_owned())
            .spawn(move || switchboard.run())?;
        Ok(Self {
            orders,
            waker,
            thread: Some(thread),
        })
    }

    /// From now on exactly these directions are cut.
    pub fn cut(&self, cuts: &Cuts) {
        self.order(|orders| orders.cuts = Some(cuts.clone()));
    }

    /// Resets every connection between these two.
    pub fn reset(&self, one: u16, other: u16) {
        self.order(|orders| orders.resets.push((one, other)));
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // The thread looks every now and then by itself.
        let _ = self.waker.wake();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.order(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to clean up.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Side {
    stream: TcpStream,
    /// Bytes from the other side that this one has not taken yet.
    held: Vec<u8>,
    /// The other side will send no more, and this side was told.
    finished: bool,
}

#[derive(Debug)]
struct Pipe {
    from: u16,
    to: u16,
    /// The dialler's side, then the dialled one's.
    sides: [Side; 2],
    /// Which sides have sent their last byte.
    ended: [bool; 2],
}

/// The end of a pipe.
#[derive(PartialEq, Eq)]
enum Fate {
    Open,
    Finished,
    Broken,
}

impl Pipe {
    fn is_cut(&self, source: usize, cuts: &Cuts) -> bool {
        let direction = if source == 0 {
            (self.from, self.to)
        } else {
            (self.to, self.from)
        };
        cuts.contains(&direction)
    }

    /// Moves what can be moved.
    fn pump(&mut self, cuts: &Cuts, chunk: &mut [u8]) -> Fate {
        for source in [0, 1] {
            if !self.is_cut(source, cuts) && self.pump_from(source, chunk).is_err() {
                return Fate::Broken;
            }
        }
        if self.sides.iter().all(|side| side.finished) {
            return Fate::Finished;
        }
        Fate::Open
    }

    fn pump_from(&mut self, source: usize, chunk: &mut [u8]) -> io::Result<()> {
        let other = 1 - source;
        loop {
            while !self.sides[other].held.is_empty() {
                let side = &mut self.sides[other];
                match side.stream.write(&side.held) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        side.held.drain(..written);
                    }
                    Err(error) if waits(&error) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if self.ended[source] {
                let side = &mut self.sides[other];
                if !side.finished {
                    side.finished = true;
                    // A side that is gone already needs not be told.
                    let _ = side.stream.shutdown(std::net::Shutdown::Write);
                }
                return Ok(());
            }
            let room = chunk.len().min(HELD_MAX);
            match self.sides[source].stream.read(&mut chunk[..room]) {
                Ok(0) => self.ended[source] = true,
                Ok(read) => self.sides[other].held.extend_from_slice(&chunk[..read]),
                Err(error) if waits(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes both sides so that both see a reset.
    fn reset(&self) {
        for side in &self.sides {
            let socket = socket2::SockRef::from(&side.stream);
            // One that is closed already is as good.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

/// Not now; a socket that still connects says so, too.
fn waits(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
    )
}

struct Switchboard {
    poll: Poll,
    orders: Arc<Mutex<Orders>>,
    listeners: Vec<(TcpListener, Cable)>,
    pipes: BTreeMap<usize, Pipe>,
    /// Which pipe a token belongs to.
    tokens: BTreeMap<Token, usize>,
    token_next: usize,
    cuts: Cuts,
}

impl Switchboard {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut chunk = vec![0; 64 << 10];
        loop {
            match self
                .poll
                .poll(&mut events, Some(Duration::from_millis(200)))
            {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
            let mut orders = {
                let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *orders)
            };
            if orders.stop {
                return;
            }
            for (one, other) in orders.resets.drain(..) {
                self.reset(one, other);
            }
            let mut touched: BTreeSet<usize> = BTreeSet::new();
            if let Some(cuts) = orders.cuts {
                self.cuts = cuts;
                touched.extend(self.pipes.keys());
            }
            for event in &events {
                let token = event.token();
                if token == WAKE {
                    continue;
                }
                if token.0 <= self.listeners.len() {
                    touched.extend(self.accept(token.0 - 1));
                } else if let Some(pipe) = self.tokens.get(&token) {
                    touched.insert(*pipe);
                }
            }
            for number in touched {
                self.pump(number, &mut chunk);
            }
        }
    }

    fn pump(&mut self, number: usize, chunk: &mut [u8]) {
        let Some(pipe) = self.pipes.get_mut(&number) else {
            return;
        };
        match pipe.pump(&self.cuts, chunk) {
            Fate::Open => {}
            Fate::Finished => self.remove(number),
            Fate::Broken => {
                pipe.reset();
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: usize) {
        self.pipes.remove(&number);
        self.tokens.retain(|_, pipe| *pipe != number);
    }

    fn reset(&mut self, one: u16, other: u16) {
        let pair = [(one, other), (other, one)];
        let hit: Vec<usize> = (self.pipes.iter())
            .filter(|(_, pipe)| pair.contains(&(pipe.from, pipe.to)))
            .map(|(number, _)| *number)
            .collect();
        for number in hit {
            if let Some(pipe) = self.pipes.get(&number) {
                pipe.reset();
            }
            self.remove(number);
        }
    }

    fn accept(&mut self, listener: usize) -> Vec<usize> {
        let mut made = Vec::new();
        loop {
            let (socket, cable) = &self.listeners[listener];
            match socket.accept() {
                Ok((stream, _)) if self.pipes.len() < PIPES_MAX => {
                    let cable = *cable;
                    // Without a target the dialler sees its connection closed, as it would
                    // without a proxy.
                    if let Ok(number) = self.connect(stream, cable) {
                        made.push(number);
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return made,
            }
        }
    }

    fn connect(&mut self, dialler: TcpStream, cable: Cable) -> io::Result<usize> {
        let number = self.token_next;
        self.token_next += 2;
        let dialled = TcpStream::connect(cable.target)?;
        let side = |stream| Side {
            stream,
            held: Vec::new(),
            finished: false,
        };
        let mut pipe = Pipe {
            from: cable.from,
            to: cable.to,
            sides: [side(dialler), side(dialled)],
            ended: [false; 2],
        };
        for (index, side) in pipe.sides.iter_mut().enumerate() {
            // Only latency is lost without it.
            let _ = side.stream.set_nodelay(true);
            let token = Token(number + index);
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll
                .registry()
                .register(&mut side.stream, token, both)?;
            self.tokens.insert(token, number);
        }
        self.pipes.insert(number, pipe);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener as Listener, TcpStream as Stream};

    /// A proxy with one cable; the dialler's end and the dialled one's.
    fn pair() -> (Proxy, Stream, Stream) {
        let target = Listener::bind("127.0.0.1:0").unwrap();
        let free = Listener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let cable = Cable {
            from: 0,
            to: 1,
            listen,
            target: target.local_addr().unwrap(),
        };
        let proxy = Proxy::start(&[cable]).unwrap();
        let dialler = Stream::connect(listen).unwrap();
        let (dialled, _) = target.accept().unwrap();
        (proxy, dialler, dialled)
    }

    fn read(stream: &mut Stream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn cut_holds_one_direction_only_and_healing_delivers() {
        let (proxy, mut dialler, mut dialled) = pair();
        dialler.write_all(b"one").unwrap();
        assert_eq!(read(&mut dialled, 3), b"one");
        proxy.cut(&Cuts::from([(0, 1)]));
        // An answer that came back after the cut was ordered: the order was obeyed before it.
        dialled.write_all(b"sync").unwrap();
        assert_eq!(read(&mut dialler, 4), b"sync");
        dialler.write_all(b"two").unwrap();
        dialled.write_all(b"back").unwrap();
        assert_eq!(read(&mut dialler, 4), b"back");
        dialled.set_nonblocking(true).unwrap();
        let held = dialled.read(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(held, Err(io::ErrorKind::WouldBlock));
        dialled.set_nonblocking(false).unwrap();
        proxy.cut(&Cuts::new());
        assert_eq!(read(&mut dialled, 3), b"two");
    }

    #[test]
    fn reset_reaches_both_ends() {
        let (proxy, mut dialler, mut dialled) = pair();
        dialler.write_all(b"one").unwrap();
        assert_eq!(read(&mut dialled, 3), b"one");
        proxy.reset(1, 0);
        for stream in [&mut dialler, &mut dialled] {
            let error = stream.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[test]
    fn end_of_one_side_is_forwarded_after_its_bytes() {
        let (_proxy, mut dialler, mut dialled) = pair();
        dialler.write_all(b"last").unwrap();
        drop(dialler);
        let mut bytes = Vec::new();
        dialled.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"last");
    }
}
