//! An AF_XDP socket: memory and rings shared with the kernel.
//!
//! ```text
//!                      memory: frames of 4 KiB, half of them to receive, half to send
//!   kernel ◄─ fill ──── free ones to receive into      ──── send ─► kernel, the interface
//!          ── receive ─► written by the kernel          ◄─ completed ── sent, free again
//! ```
//!
//! A ring has one side that writes entries and then its count, and one that reads them and then its
//! own count. The kernel shares memory without a copy where the driver of the interface can, and
//! copies where it cannot. Program, map and attachment are descriptors of this process: when it
//! ends, however it does, the interface is as it was.
//!
//! All that is `unsafe` about AF_XDP is in this file.

use super::{Card, packet::Mac, program};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpRingOffset, XdpUmemReg,
            XdpUmemRegFlags,
        },
    },
};
use std::{
    ffi::CStr,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

/// The room in one frame's memory, less the kernel's headroom.
pub(super) const FRAME_MAX: usize = FRAME - 256;
const FRAME: usize = 4096;
/// This many frames can come, and as many be sent, before either side looks.
const FRAMES: u32 = 2048;
const MEMORY: usize = 2 * FRAMES as usize * FRAME;
/// The queue of the interface whose frames are taken. The kernel gets frames of other queues.
const QUEUE: u32 = 0;
/// The program asks for the queue's socket in a map of this many.
const QUEUES: u32 = 64;
/// A copying kernel sends 32 frames when asked once; so often it is asked in a row.
const PUSHES_MAX: u32 = 2 * FRAMES / 32;

/// An interface, and the card behind it.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub name: String,
    pub mac: Mac,
    index: u32,
}

/// A failure with what it means and what to do.
fn refused(what: &str, error: impl Into<io::Error>, help: &str) -> io::Error {
    let error = error.into();
    io::Error::new(
        error.kind(),
        format!("transport: 'af-xdp': {what}: {error}; {help}, or use transport = \"udp\""),
    )
}

impl Interface {
    /// The one with this address.
    ///
    /// # Errors
    /// When there is none with a card of Ethernet.
    pub fn with(address: Ipv4Addr) -> io::Result<Self> {
        let list = InterfaceList::read()?;
        let named = list.iter().find(|entry| entry.address == Some(address));
        let name = named.map(|entry| entry.name);
        let card = list
            .iter()
            .find(|entry| Some(entry.name) == name && entry.card.is_some());
        let (Some(name), Some((index, mac))) = (name, card.and_then(|entry| entry.card)) else {
            return Err(io::Error::other(format!(
                "transport: 'af-xdp': no network interface with an Ethernet card has the address \
                 {address}; set peer_listen to one of an interface, or use transport = \"udp\""
            )));
        };
        let name = name.to_string_lossy().into_owned();
        Ok(Self { name, mac, index })
    }
}

/// The kernel's record of one address of an interface.
struct InterfaceEntry<'a> {
    name: &'a CStr,
    address: Option<Ipv4Addr>,
    card: Option<(u32, Mac)>,
}

/// The C library's list of interfaces.
struct InterfaceList(*mut libc::ifaddrs);

impl InterfaceList {
    fn read() -> io::Result<Self> {
        let mut first = ptr::null_mut();
        // SAFETY: the call writes one pointer to where it is told, which is a local variable.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(first))
    }

    fn iter(&self) -> impl Iterator<Item = InterfaceEntry<'_>> {
        let mut next = self.0;
        std::iter::from_fn(move || {
            // SAFETY: the list's pointers are null or valid until it is freed, which `self` does
            // when nothing borrows it any more.
            let entry = unsafe { next.as_ref()? };
            next = entry.ifa_next;
            // SAFETY: as above; names end with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            let (mut address, mut card) = (None, None);
            if !entry.ifa_addr.is_null() {
                // SAFETY: not null, and every address begins with its family.
                let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
                if family == libc::AF_INET {
                    // SAFETY: of this family they are of this type; it may be aligned otherwise.
                    let it = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                    address = Some(Ipv4Addr::from(it.sin_addr.s_addr.to_ne_bytes()));
                } else if family == libc::AF_PACKET {
                    // SAFETY: as above.
                    let it = unsafe { entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
                    if it.sll_halen == 6 && it.sll_hatype == libc::ARPHRD_ETHER {
                        let mac = it.sll_addr.first_chunk().copied();
                        card = mac.map(|mac| (it.sll_ifindex as u32, mac));
                    }
                }
            }
            Some(InterfaceEntry {
                name,
                address,
                card,
            })
        })
    }
}

impl Drop for InterfaceList {
    fn drop(&mut self) {
        // SAFETY: it was made by the call that this one belongs to, and is not used again.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

// --- the program in the kernel ---------------------------------------------------------------

/// The arguments of bpf(2): the beginning of the kernel's `union bpf_attr`, as words.
#[repr(C, align(8))]
struct Question([u32; 32]);

impl Question {
    const fn new() -> Self {
        Self([0; 32])
    }

    const fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at] = value;
        self
    }

    /// A pointer, which takes two words.
    fn pointer<T: ?Sized>(mut self, at: usize, to: &T) -> Self {
        let bytes = (ptr::from_ref(to).cast::<u8>() as u64).to_ne_bytes();
        let (low, high) = bytes.split_at(4);
        for (word, half) in self.0[at..].iter_mut().zip([low, high]) {
            *word = u32::from_ne_bytes(half.try_into().expect("half of eight bytes"));
        }
        self
    }

    /// Asks; the answer is a descriptor or zero.
    ///
    /// # Safety
    /// Pointers must be to what the command reads, in the lengths that the question says.
    unsafe fn ask(&self, command: i64) -> Result<i32, Errno> {
        let length = size_of::<Self>();
        // SAFETY: the kernel reads this many bytes of a structure that outlasts the call; the rest
        // is the caller's.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const self.0, length) };
        if answer < 0 {
            let code = io::Error::last_os_error().raw_os_error();
            return Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)));
        }
        Ok(answer as i32)
    }

    /// Asks for something that is answered by a new descriptor.
    ///
    /// # Safety
    /// As [`Self::ask`], and the command must be one of these.
    unsafe fn ask_for_descriptor(&self, command: i64) -> Result<OwnedFd, Errno> {
        // SAFETY: the caller's.
        let descriptor = unsafe { self.ask(command)? };
        // SAFETY: the kernel has just made it, and it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROGRAM_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const MAP_OF_SOCKETS: u32 = 17;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// In the driver, before the kernel makes a packet of a frame; or behind it, for every driver.
const IN_DRIVER: u32 = 1 << 2;
const GENERIC: u32 = 1 << 1;

fn descriptor(of: impl AsFd) -> u32 {
    of.as_fd().as_raw_fd() as u32
}

const RIGHTS: &str = "it takes Linux 5.9 or newer and the capabilities CAP_NET_ADMIN, CAP_NET_RAW \
                      and CAP_BPF (or root)";

fn create_map() -> io::Result<OwnedFd> {
    let question = Question::new()
        .word(0, MAP_OF_SOCKETS)
        .word(1, 4)
        .word(2, 4)
        .word(3, QUEUES);
    // SAFETY: the question has no pointers, and a map is a descriptor.
    let map = unsafe { question.ask_for_descriptor(MAP_CREATE) };
    map.map_err(|error| refused("the kernel makes no map of sockets", error, RIGHTS))
}

fn load(ours: SocketAddrV4, map: &OwnedFd) -> io::Result<OwnedFd> {
    let program = program::assemble(ours, map.as_raw_fd());
    let question = Question::new()
        .word(0, PROGRAM_XDP)
        .word(1, program.len() as u32)
        .pointer(2, &program[0])
        .pointer(4, c"MIT OR Apache-2.0".to_bytes_with_nul());
    // SAFETY: this many instructions, and a text that ends with a zero; both live through the call.
    let loaded = unsafe { question.ask_for_descriptor(PROGRAM_LOAD) };
    loaded.map_err(|error| refused("the kernel does not take the program", error, RIGHTS))
}

/// The socket gets what comes by the queue.
fn enter(map: &OwnedFd, socket: &OwnedFd) -> io::Result<()> {
    let value = descriptor(socket);
    let question = Question::new()
        .word(0, descriptor(map))
        .pointer(2, &QUEUE)
        .pointer(4, &value);
    // SAFETY: key and value are of the four bytes that the map was made for.
    let done = unsafe { question.ask(MAP_UPDATE) };
    done.map(drop)
        .map_err(|error| refused("the kernel does not enter the socket", error, RIGHTS))
}

fn attach(program: &OwnedFd, interface: &Interface, how: u32) -> Result<OwnedFd, Errno> {
    let question = Question::new()
        .word(0, descriptor(program))
        .word(1, interface.index)
        .word(2, ATTACH_XDP)
        .word(3, how);
    // SAFETY: the question has no pointers, and a link is a descriptor.
    unsafe { question.ask_for_descriptor(LINK_CREATE) }
}

// --- memory and rings ------------------------------------------------------------------------

/// Memory shared with the kernel.
#[derive(Debug)]
struct Mapped {
    at: NonNull<u8>,
    length: usize,
}

impl Mapped {
    /// New memory for frames.
    fn new(length: usize) -> Result<Self, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        Self::at(at.cast(), length)
    }

    /// One of the socket's rings.
    fn of(socket: &OwnedFd, length: usize, offset: u64) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let at = unsafe { mmap(ptr::null_mut(), length, access, flags, socket, offset) }?;
        Self::at(at.cast(), length)
    }

    fn at(at: *mut u8, length: usize) -> Result<Self, Errno> {
        let at = NonNull::new(at).ok_or(Errno::NOMEM)?;
        Ok(Self { at, length })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is this value's own mapping, and nothing that borrowed it is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.length) };
    }
}

/// The entry of rings for whole frames: a place in the memory and a length. Others have the place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    length: u32,
    options: u32,
}

/// A ring, from either side.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapped,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    /// The count that this side has written or read, whether the other has been told or not.
    mine: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(socket: &OwnedFd, at: XdpRingOffset, page: u64) -> Result<Self, Errno> {
        let offset = |value: u64| usize::try_from(value).map_err(|_| Errno::OVERFLOW);
        let entries = offset(at.desc)?;
        let flags = offset(at.flags.ok_or(Errno::NOSYS)?)?;
        let length = entries + FRAMES as usize * size_of::<T>();
        let (producer, consumer) = (offset(at.producer)?, offset(at.consumer)?);
        let counts = [producer, consumer, flags];
        let within = |at: &usize| at.is_multiple_of(4) && at + 4 <= length;
        if !counts.iter().all(within) || !entries.is_multiple_of(align_of::<T>()) {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            memory: Mapped::of(socket, length, page)?,
            producer,
            consumer,
            flags,
            entries,
            mine: 0,
            kind: std::marker::PhantomData,
        })
    }

    fn count(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` has seen that it lies in the mapping and is aligned; both sides only use it
        // atomically, and the mapping exists as long as `self`.
        unsafe { AtomicU32::from_ptr(self.memory.at.as_ptr().add(at).cast()) }
    }

    fn entry(&self, number: u32) -> *mut T {
        let index = (number & (FRAMES - 1)) as usize;
        // SAFETY: the mapping has this many entries behind this offset.
        unsafe {
            self.memory
                .at
                .as_ptr()
                .add(self.entries)
                .cast::<T>()
                .add(index)
        }
    }

    /// Whether the kernel wants to be told that something was written.
    fn wants_wake_up(&self) -> bool {
        const NEED_WAKE_UP: u32 = 1;
        self.count(self.flags).load(Ordering::Relaxed) & NEED_WAKE_UP != 0
    }

    /// For who writes: whether the other side has read all.
    fn all_read(&self) -> bool {
        self.count(self.consumer).load(Ordering::Acquire) == self.mine
    }

    /// For who writes: an entry more. There must be a place for it: no ring is ever given more
    /// frames than it has entries.
    fn write(&mut self, value: T) {
        // SAFETY: the entry lies in the mapping; the other side does not read it before `publish`.
        unsafe { self.entry(self.mine).write(value) };
        self.mine = self.mine.wrapping_add(1);
    }

    /// For who writes: the other side may read all that was written.
    fn publish(&self) {
        self.count(self.producer)
            .store(self.mine, Ordering::Release);
    }

    /// For who reads: the next entry, if there is one.
    fn read(&mut self) -> Option<T> {
        if self.count(self.producer).load(Ordering::Acquire) == self.mine {
            return None;
        }
        // SAFETY: the entry lies in the mapping, and the other side has written it before its count.
        let value = unsafe { self.entry(self.mine).read() };
        self.mine = self.mine.wrapping_add(1);
        // The value has been copied: its place may be written again.
        self.count(self.consumer)
            .store(self.mine, Ordering::Release);
        Some(value)
    }
}

/// An AF_XDP socket on one queue of an interface.
#[derive(Debug)]
pub(super) struct Socket {
    // The order is that in which they go: first no more frames come, last the memory.
    _attached: OwnedFd,
    _program: OwnedFd,
    _map: OwnedFd,
    fill: Ring<u64>,
    receive: Ring<Entry>,
    send: Ring<Entry>,
    completed: Ring<u64>,
    socket: OwnedFd,
    memory: Mapped,
    /// Where frames can be written to.
    free: Vec<u64>,
    written: bool,
    mode: &'static str,
}

// SAFETY: the pointers are to mappings of its own, which any thread may use, one at a time.
unsafe impl Send for Socket {}

impl Socket {
    /// Takes the datagrams to an address and port off an interface.
    ///
    /// # Errors
    /// When the kernel, the rights of this process or the interface do not allow it.
    pub fn open(interface: &Interface, ours: SocketAddrV4) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, None)
            .map_err(|error| refused("the kernel opens no socket", error, RIGHTS))?;
        let (memory, rings) = Self::share(&socket).map_err(|error| {
            let help = "the limit of locked memory (ulimit -l) must leave 16 MiB";
            refused("no memory can be shared with the kernel", error, help)
        })?;
        let map = create_map()?;
        let program = load(ours, &map)?;
        let (attached, generic) = match attach(&program, interface, IN_DRIVER) {
            Ok(attached) => (attached, false),
            Err(Errno::BUSY) => return Err(Self::taken(interface)),
            Err(_) => match attach(&program, interface, GENERIC) {
                Ok(attached) => (attached, true),
                Err(Errno::BUSY) => return Err(Self::taken(interface)),
                Err(error) => {
                    let what = format!("interface {} takes no program", interface.name);
                    return Err(refused(&what, error, RIGHTS));
                }
            },
        };
        let wake = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let at = |flags| SocketAddrXdp::new(flags, interface.index, QUEUE);
        // Behind the driver there are only copies; in it the kernel copies where it must.
        let first = if generic {
            wake | SocketAddrXdpFlags::XDP_COPY
        } else {
            wake
        };
        bind(&socket, &at(first))
            .or_else(|_| bind(&socket, &at(wake | SocketAddrXdpFlags::XDP_COPY)))
            .map_err(|error| {
                let what = format!("no socket on queue {QUEUE} of {}", interface.name);
                refused(&what, error, "another process may have it")
            })?;
        let shares = sockopt::xdp_options(&socket)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        enter(&map, &socket)?;
        let (mut fill, receive, send, completed) = rings;
        (0..FRAMES).for_each(|frame| fill.write(u64::from(frame) * FRAME as u64));
        fill.publish();
        Ok(Self {
            _attached: attached,
            _program: program,
            _map: map,
            fill,
            receive,
            send,
            completed,
            socket,
            memory,
            free: (FRAMES..2 * FRAMES)
                .map(|frame| u64::from(frame) * FRAME as u64)
                .collect(),
            written: false,
            mode: match (generic, shares) {
                (true, _) => "generic, copying",
                (false, false) => "in the driver, copying",
                (false, true) => "in the driver, without copies",
            },
        })
    }

    /// How the kernel and this process share frames.
    pub const fn mode(&self) -> &'static str {
        self.mode
    }

    fn taken(interface: &Interface) -> io::Error {
        io::Error::other(format!(
            "transport: 'af-xdp': interface {} has an XDP program already, of another replica or \
             process (ip link show {}); give each replica an interface of its own, or use \
             transport = \"udp\"",
            interface.name, interface.name
        ))
    }

    #[allow(clippy::type_complexity, reason = "the four rings of one socket")]
    fn share(
        socket: &OwnedFd,
    ) -> Result<(Mapped, (Ring<u64>, Ring<Entry>, Ring<Entry>, Ring<u64>)), Errno> {
        let memory = Mapped::new(MEMORY)?;
        let registration = XdpUmemReg {
            addr: memory.at.as_ptr() as u64,
            len: MEMORY as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(socket, registration)?;
        sockopt::set_xdp_umem_fill_ring_size(socket, FRAMES)?;
        sockopt::set_xdp_umem_completion_ring_size(socket, FRAMES)?;
        sockopt::set_xdp_rx_ring_size(socket, FRAMES)?;
        sockopt::set_xdp_tx_ring_size(socket, FRAMES)?;
        let at = sockopt::xdp_mmap_offsets(socket)?;
        let fill = Ring::new(socket, at.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let receive = Ring::new(socket, at.rx, libc::XDP_PGOFF_RX_RING as u64)?;
        let send = Ring::new(socket, at.tx, libc::XDP_PGOFF_TX_RING as u64)?;
        let completed = Ring::new(socket, at.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
        Ok((memory, (fill, receive, send, completed)))
    }

    /// Memory for frames that have been sent is free again.
    fn reclaim(&mut self) {
        while self.free.len() < FRAMES as usize
            && let Some(address) = self.completed.read()
        {
            self.free.push(address & !(FRAME as u64 - 1));
        }
    }
}

impl Card for Socket {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> bool {
        let Some(entry) = self.receive.read() else {
            return false;
        };
        let (at, length) = (entry.address as usize, entry.length as usize);
        assert!(
            at + length <= MEMORY && at % FRAME + length <= FRAME,
            "the kernel gives back what it was given"
        );
        // SAFETY: within the mapping, and the kernel does not write there until the frame is in the
        // fill ring again.
        let frame = unsafe { std::slice::from_raw_parts(self.memory.at.as_ptr().add(at), length) };
        read(frame);
        self.fill.write((at - at % FRAME) as u64);
        self.fill.publish();
        true
    }

    fn send(&mut self, length: usize, write: &mut dyn FnMut(&mut [u8])) -> bool {
        assert!(length <= FRAME_MAX, "what is sent fits into a frame");
        if self.free.is_empty() {
            self.flush();
        }
        let Some(address) = self.free.pop() else {
            return false;
        };
        let at = address as usize;
        assert!(
            at + FRAME <= MEMORY,
            "the kernel gives back what it was given"
        );
        // SAFETY: within the mapping, and the kernel does not touch a frame that is free.
        let frame =
            unsafe { std::slice::from_raw_parts_mut(self.memory.at.as_ptr().add(at), length) };
        write(frame);
        self.send.write(Entry {
            address,
            length: length as u32,
            options: 0,
        });
        self.written = true;
        true
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.written) {
            self.send.publish();
        }
        let mut pushes = 0;
        while !self.send.all_read() && self.send.wants_wake_up() && pushes < PUSHES_MAX {
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => pushes += 1,
                // No memory, or the interface is down: what is left goes with the next frames.
                Err(error) => {
                    tracing::debug!(%error, "frames are not sent");
                    break;
                }
            }
        }
        self.reclaim();
        if self.fill.wants_wake_up() {
            let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
            let _ = poll(&mut waiting, Some(&Timespec::default()));
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
