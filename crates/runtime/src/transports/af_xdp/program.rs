//! The program that the kernel runs for every frame that an interface receives.
//!
//! ```text
//!   frame ──► IPv4, no options, no fragment, UDP, to this address and port?
//!               │ yes                                      │ no
//!               ▼                                          ▼
//!   the socket of the frame's queue, if there is one     the kernel, as without it
//! ```
//!
//! A few instructions of eBPF, put together here: no compiler for it is needed, and all that it does
//! can be read below. The kernel proves before it takes it that it reads nothing beyond a frame.

use std::net::SocketAddrV4;

/// `XDP_PASS`: the frame continues into the kernel.
const PASS: i32 = 2;
/// The kernel's function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// Registers: the result, the arguments of functions, and the frame.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;

/// Operations: class, size or kind, and where the operand comes from (RFC 9669).
const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const LOAD_WIDE: u8 = 0x18;
const MOVE_NUMBER: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
const AND_NUMBER: u8 = 0x57;
const JUMP_ABOVE: u8 = 0x2d;
const JUMP_UNEQUAL_WORD: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// In a wide load's source: the number is a descriptor of a map.
const IS_MAP: u8 = 1;

/// Where the kernel's description of a frame has its beginning, its end, and its queue.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

/// One instruction as the kernel reads it.
const fn instruction(operation: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    let registers = (from << 4 | to) as u64;
    operation as u64 | registers << 8 | (offset as u16 as u64) << 16 | (number as u32 as u64) << 32
}

/// The program for one address and port, and a map from queues to sockets.
pub(super) fn assemble(ours: SocketAddrV4, map: i32) -> Vec<u64> {
    // Numbers of a frame are compared as they lie in memory.
    let half = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
    let address = u32::from_ne_bytes(ours.ip().octets()) as i32;
    let port = half(ours.port().to_be_bytes());
    // The bytes of a frame to read, their place, the mask, and the required value.
    let checks = [
        (LOAD_HALF, 12, -1, half([0x08, 0x00])),
        (LOAD_BYTE, 14, -1, 0x45),
        (LOAD_BYTE, 23, -1, 17),
        (LOAD_HALF, 20, half([0x3f, 0xff]), 0),
        (LOAD_WORD, 30, -1, address),
        (LOAD_HALF, 36, -1, port),
    ];
    let mut program = vec![
        instruction(LOAD_WORD, R2, R1, CONTEXT_DATA, 0),
        instruction(LOAD_WORD, R3, R1, CONTEXT_END, 0),
        instruction(MOVE_REGISTER, R4, R2, 0, 0),
        instruction(ADD_NUMBER, R4, 0, 0, 42),
        instruction(JUMP_ABOVE, R4, R3, 0, 0),
    ];
    for (load, at, mask, wanted) in checks {
        program.push(instruction(load, R5, R2, at, 0));
        if mask != -1 {
            program.push(instruction(AND_NUMBER, R5, 0, 0, mask));
        }
        program.push(instruction(JUMP_UNEQUAL_WORD, R5, 0, 0, wanted));
    }
    program.extend([
        instruction(LOAD_WORD, R2, R1, CONTEXT_QUEUE, 0),
        instruction(LOAD_WIDE, R1, IS_MAP, 0, map),
        0,
        // The result when the queue has no socket.
        instruction(MOVE_NUMBER, R3, 0, 0, PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    // Every jump goes to the end: on with the frame, into the kernel.
    let pass = program.len();
    for (at, word) in program.iter_mut().enumerate() {
        let operation = *word as u8;
        if operation == JUMP_ABOVE || operation == JUMP_UNEQUAL_WORD {
            *word |= ((pass - at - 1) as u64) << 16;
        }
    }
    program.extend([
        instruction(MOVE_NUMBER, R0, 0, 0, PASS),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_ends_at_pass_instruction() {
        let ours = SocketAddrV4::new([10, 0, 0, 1].into(), 7201);
        let program = assemble(ours, 5);
        let pass = program.len() - 2;
        assert_eq!(program[pass], instruction(MOVE_NUMBER, R0, 0, 0, PASS));
        let jumps = program.iter().enumerate().filter(|(_, word)| {
            let operation = **word as u8;
            operation == JUMP_ABOVE || operation == JUMP_UNEQUAL_WORD
        });
        let ends: Vec<usize> = jumps
            .map(|(at, word)| at + 1 + (word >> 16 & 0xffff) as usize)
            .collect();
        assert_eq!(ends, vec![pass; 7]);
    }
}
