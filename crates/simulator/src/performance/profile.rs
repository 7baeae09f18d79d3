//! A machine as the performance model sees it.
//!
//! ```text
//!   turn = fixed + per frame in/out (+ bytes) + per request in/out + per command + per batch
//!   asleep longer than `spin` ──► the next turn begins `wake` later and costs `Costs::sleep` more
//!   journal: a core for `Costs::sync`, then the disk for a drawn latency; its bytes queue for the
//!   disk, which the replicas of one machine share
//! ```

/// The processes that share cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Replicas, their journals and the load generator share all cores of one machine.
    Shared,
    /// Each replica, its journal and each thread of the generator has a core of its own.
    Own,
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A turn of a replica's event loop, whatever it does.
    pub turn: u64,
    /// A frame taken in …
    pub receive: u64,
    /// … and each KiB of it.
    pub receive_kib: u64,
    /// Frames for one peer sent in one turn, together: a system call …
    pub send: u64,
    /// … each frame …
    pub send_frame: u64,
    /// … and each KiB.
    pub send_kib: u64,
    /// A client's request taken in.
    pub request: u64,
    /// A reply sent to a client.
    pub reply: u64,
    /// Each KiB of requests and replies.
    pub client_kib: u64,
    /// A batch submitted or finished: what ordering costs however many requests it has.
    pub batch: u64,
    /// A command executed, at each replica.
    pub execute: u64,
    /// Each KiB of commands executed.
    pub execute_kib: u64,
    /// A synchronisation of the journal, beside waiting for it …
    pub sync: u64,
    /// … and each KiB of it.
    pub sync_kib: u64,
    /// Falling asleep and being woken on a core that has nothing else to do.
    pub sleep: u64,
    /// A request in the load generator, sent and answered.
    pub generator: u64,
    /// A turn of the generator's event loop.
    pub generator_turn: u64,
}

/// See the module. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Cores of the machine; for [`Placement::Shared`].
    pub cores: usize,
    /// The processes that share them.
    pub placement: Placement,
    /// CPU time.
    pub costs: Costs,
    /// How long a sleeping core takes to begin.
    pub wake: u64,
    /// How long a replica looks for work before it sleeps.
    pub spin: u64,
    /// The time of a frame or a request between two processes besides CPU time.
    pub hop: u64,
    /// How long a synchronisation takes: quantiles at equal steps from the least to the greatest.
    pub sync: Vec<u64>,
    /// How much longer for each KiB.
    pub sync_kib: u64,
}

impl Default for Profile {
    /// Two cores of a virtual machine, about as `lab calibrate` measured them.
    fn default() -> Self {
        Self {
            cores: 2,
            placement: Placement::Shared,
            costs: Costs {
                turn: 1_500,
                receive: 1_500,
                receive_kib: 100,
                send: 3_500,
                send_frame: 200,
                send_kib: 150,
                request: 2_200,
                reply: 2_600,
                client_kib: 200,
                batch: 1_500,
                execute: 350,
                execute_kib: 60,
                sync: 8_000,
                sync_kib: 100,
                sleep: 0,
                generator: 5_000,
                generator_turn: 1_500,
            },
            wake: 27_000,
            spin: 100_000,
            hop: 1_000,
            sync: vec![70_000, 88_000, 95_000, 110_000, 170_000],
            sync_kib: 700,
        }
    }
}
