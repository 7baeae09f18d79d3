//! A program on a machine of the performance model: a replica, or a frontend without one.
//!
//! ```text
//!   clients ──► replica: Node with its embedded frontend ──► other replicas
//!   clients ──► proxy:   Client, the same frontend alone ──► all replicas
//! ```
//!
//! Both take the same inputs and give the same outputs, so that a proxy has turns, costs, batches
//! and links as a replica has.

use quintet_replica::{
    Client, ClientFrame, Effect, EpochNumber, FrontendId, GroupId, Input, Node, Output, Peer,
    Recipients, RecoveredBytes, Wake, World as Outside, client_frame, read_client_frame,
};

/// See the module.
pub(super) enum Program {
    /// A replica.
    Replica(Box<Node>),
    /// A frontend on its own.
    Proxy(FrontendId, Box<dyn Client>),
}

impl Program {
    /// Whose batches these are.
    pub fn frontend(&self) -> FrontendId {
        match self {
            Self::Replica(node) => node.frontend(),
            Self::Proxy(id, _) => *id,
        }
    }

    /// The replica, if it is one.
    pub fn node(&self) -> Option<&Node> {
        match self {
            Self::Replica(node) => Some(node),
            Self::Proxy(..) => None,
        }
    }

    /// How what was submitted here was committed, by path.
    pub fn paths(&self, world: &dyn Outside) -> Vec<(&'static str, u64)> {
        match self {
            Self::Replica(node) => node.status(world).protocol.paths,
            Self::Proxy(_, client) => client.paths(),
        }
    }

    /// Something came.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn on_input(
        &mut self,
        input: Input,
        world: &dyn Outside,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        match self {
            Self::Replica(node) => {
                (node.on_input(input, world, outputs)).map_err(|error| error.to_string())
            }
            Self::Proxy(_, client) => {
                let mut effects = Vec::new();
                let done = give(client.as_mut(), input, world, &mut effects);
                outputs.extend(effects.into_iter().filter_map(output));
                done
            }
        }
    }

    /// Begins with the contents of the disk.
    ///
    /// # Errors
    /// When they are malformed.
    pub fn start(
        &mut self,
        recovered: RecoveredBytes,
        world: &dyn Outside,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        match self {
            Self::Replica(node) => {
                (node.start(recovered, world, outputs)).map_err(|error| error.to_string())
            }
            Self::Proxy(..) => Ok(()),
        }
    }

    /// Effects of the protocol in this group that another group's input has had.
    pub fn carry_out_foreign(
        &mut self,
        effects: Vec<Effect>,
        world: &dyn Outside,
        outputs: &mut Vec<Output>,
    ) {
        if let Self::Replica(node) = self {
            node.carry_out_foreign(effects.into_iter(), world, outputs);
        }
    }

    /// Nothing waits any more.
    pub fn on_idle(&mut self, world: &dyn Outside, outputs: &mut Vec<Output>) -> Wake {
        match self {
            Self::Replica(node) => node.on_idle(world, outputs),
            Self::Proxy(..) => Wake::Sleep,
        }
    }
}

fn give(
    client: &mut dyn Client,
    input: Input,
    world: &dyn Outside,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    match input {
        Input::Frame {
            from: Peer::Replica(from),
            frame,
            ..
        } => match read_client_frame(frame)
            .map_err(|error| error.to_string())?
            .1
        {
            ClientFrame::Message(message) => client.on_message(from, message, world, effects),
            // No epoch ends here, and no world tells of a quorum.
            ClientFrame::Epoch(_) | ClientFrame::Quorum { .. } => Ok(()),
            ClientFrame::Reply(batch, header, results) => {
                client.on_reply(from, batch, (header, results), world, effects)
            }
        }
        .map_err(|error| error.to_string())?,
        Input::Link(Peer::Replica(to), link) => client.on_link(to, link, world, effects),
        Input::Timer(key) => client.on_timer(key.timer, world, effects),
        Input::Submit(submission) => client.submit(submission, world, effects),
        _ => {}
    }
    Ok(())
}

/// Converts a frontend's effect into the output of a node.
fn output(effect: Effect) -> Option<Output> {
    Some(match effect {
        Effect::Send {
            to: to @ Recipients::Replicas(_),
            lane,
            frame,
        } => Output::Send {
            to,
            lane,
            frame: client_frame(GroupId(0), EpochNumber(1), frame),
        },
        Effect::SetTimer { key, at } => Output::SetTimer { key, at },
        Effect::CancelTimer { key } => Output::CancelTimer { key },
        Effect::Done { batch, outcome } => Output::Done { batch, outcome },
        Effect::Mark(branch) => Output::Mark(branch),
        _ => return None,
    })
}
