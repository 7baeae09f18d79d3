//! Which card a datagram goes to, as the kernel knows it.
//!
//! ```text
//!   address ──► /proc/…/net/route ──► itself, or a gateway ──► /proc/…/net/arp ──► its MAC
//! ```
//!
//! Nothing is learned from what comes in: anybody on the same wire could say whose card it has. The
//! kernel asks for those that TCP connections go to, which every peer has, and keeps asking.

use super::packet::Mac;
use std::{collections::BTreeMap, io::Read, net::Ipv4Addr};

/// Of longer tables only the beginning is looked at.
const TABLE_MAX: u64 = 1 << 20;
/// This many answers are kept, those that there is none to as well.
const KNOWN_MAX: usize = 1024;

/// The way to other hosts through one interface.
#[derive(Debug)]
pub(super) struct Neighbours {
    interface: String,
    known: BTreeMap<Ipv4Addr, Option<Mac>>,
}

impl Neighbours {
    pub const fn new(interface: String) -> Self {
        Self {
            interface,
            known: BTreeMap::new(),
        }
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The card that datagrams to an address go to, if the way there leads through this interface.
    pub fn find(&mut self, address: Ipv4Addr) -> Option<Mac> {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        // Of the thread's own network, which need not be that of the process.
        let table = |name| {
            let mut text = String::new();
            let file = std::fs::File::open(format!("/proc/thread-self/net/{name}")).ok()?;
            file.take(TABLE_MAX).read_to_string(&mut text).ok()?;
            Some(text)
        };
        let found = table("route")
            .and_then(|routes| next_hop(&routes, &self.interface, address))
            .and_then(|hop| card(&table("arp")?, &self.interface, hop));
        if self.known.len() < KNOWN_MAX {
            self.known.insert(address, found);
        }
        found
    }

    /// For tests: an answer that stays.
    #[cfg(test)]
    pub fn know(&mut self, address: Ipv4Addr, mac: Option<Mac>) {
        self.known.insert(address, mac);
    }

    /// Everything is looked up again.
    pub fn forget(&mut self) {
        self.known.clear();
    }
}

/// Where a packet to an address goes first, if it leaves by the interface: itself, or a gateway.
fn next_hop(routes: &str, interface: &str, address: Ipv4Addr) -> Option<Ipv4Addr> {
    // Numbers in hexadecimal, of addresses as they lie in memory.
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let target = u32::from_ne_bytes(address.octets());
    let mut best: Option<(u32, std::cmp::Reverse<u32>, Ipv4Addr, bool)> = None;
    for line in routes.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[name, to, gateway, _, _, _, metric, mask, ..] = &fields[..] else {
            continue;
        };
        let (Some(to), Some(gateway), Some(mask), Ok(metric)) =
            (number(to), number(gateway), number(mask), metric.parse())
        else {
            continue;
        };
        if target & mask != to {
            continue;
        }
        let hop = if gateway == 0 {
            address
        } else {
            Ipv4Addr::from(gateway.to_ne_bytes())
        };
        let route = (
            mask.count_ones(),
            std::cmp::Reverse(metric),
            hop,
            name == interface,
        );
        if best
            .as_ref()
            .is_none_or(|best| (route.0, route.1) > (best.0, best.1))
        {
            best = Some(route);
        }
    }
    best.filter(|(.., here)| *here).map(|(_, _, hop, _)| hop)
}

/// The card of a neighbour that has answered.
fn card(table: &str, interface: &str, hop: Ipv4Addr) -> Option<Mac> {
    const COMPLETE: u32 = 2;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[address, _, flags, mac, _, name] = &fields[..] else {
            return None;
        };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        let here = name == interface && address.parse() == Ok(hop) && flags & COMPLETE != 0;
        here.then(|| parse_mac(mac)).flatten()
    })
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    const ROUTES: &str = "\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0
eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0
eth1 0001000A 00000000 0001 0 0 5 00FFFFFF 0 0 0
eth0 0001000A 0900000A 0003 0 0 9 00FFFFFF 0 0 0
eth0 nonsense
";

    #[test]
    #[cfg(target_endian = "little")]
    fn longest_route_wins_then_lowest_metric_with_gateway() {
        let hop = |interface, address: [u8; 4]| next_hop(ROUTES, interface, address.into());
        assert_eq!(hop("eth0", [10, 0, 0, 7]), Some([10, 0, 0, 7].into()));
        assert_eq!(hop("eth0", [192, 0, 2, 1]), Some([10, 0, 0, 1].into()));
        assert_eq!(hop("eth0", [10, 0, 1, 7]), None, "it goes by eth1");
        assert_eq!(hop("eth1", [10, 0, 1, 7]), Some([10, 0, 1, 7].into()));
        assert_eq!(next_hop("", "eth0", [10, 0, 0, 7].into()), None);
    }

    #[test]
    fn neighbours_count_that_have_answered_on_this_interface() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.0.0.7         0x1         0x2         02:00:00:00:00:0a     *        eth0
10.0.0.8         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.0.9         0x1         0x2         02:00:00:00:00:zz     *        eth0
short line
";
        let found = |interface, last| card(table, interface, [10, 0, 0, last].into());
        assert_eq!(found("eth0", 7), Some([2, 0, 0, 0, 0, 10]));
        assert_eq!(found("eth1", 7), None);
        assert_eq!(found("eth0", 8), None, "no neighbour has answered");
        assert_eq!(found("eth0", 9), None);
        assert_eq!(found("eth0", 10), None);
    }
}
