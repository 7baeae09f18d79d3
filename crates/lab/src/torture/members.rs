//! Changes of the cluster: replicas that are replaced, more of them, fewer again, another protocol.
//!
//! ```text
//!   replace   kill -9 ──► its data are gone ──► quintet join --replace ──► the old data come back: exit 7
//!   grow      quintet join ──► one member more          shrink   quintet member remove ──► exit 7
//!   protocol  quintet protocol switch NAME, perhaps with the leader killed meanwhile
//! ```
//!
//! Nothing of it excuses anything but the broken connections of those that were killed: a cluster
//! that changes continues.

use super::{
    cluster::{Joins, PASSWORD, shown},
    driver::{BREAKS, Driver, Halt, Step, TIMEOUT, Watch},
    faults::Kind,
    network::{NetworkKind, REPLICAS_MAX},
    timeline::Trouble,
};
use quintet_protocols::PROTOCOLS;
use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// This many members more than at first.
const MORE_MAX: u16 = 2;
/// How a replica ends that is told that it is no member.
const NO_MEMBER: i32 = 7;
/// Clients of one that is no member may see this until it ends.
const OUTSIDE: &[Trouble] = &[Trouble::NoQuorum, Trouble::Silence, Trouble::Connection];
/// Between two tries of a change that was refused.
const AGAIN: Duration = Duration::from_millis(300);

impl Driver<'_> {
    /// A member is replaced, comes or goes.
    pub(super) fn change_members(&mut self, watch: Watch<'_>) -> Step {
        let first = usize::from(self.plan.replicas);
        let now = self.cluster.replicas.len();
        // Proxies have the numbers behind those of the first members, and namespaces are laid once.
        let fixed = self.plan.proxies > 0 || self.plan.network == NetworkKind::Namespaces;
        let most = usize::from((self.plan.replicas + MORE_MAX).min(REPLICAS_MAX));
        match self.random.below(3) {
            0 if !fixed && now < most => self.grow(watch),
            1 if now > first => self.shrink(watch),
            _ => self.replace(watch),
        }
    }

    fn seeds(&self, without: u16) -> Vec<String> {
        let others = self.cluster.replicas.iter().filter(|it| it.id != without);
        others.map(|it| it.addresses.peer.to_string()).collect()
    }

    fn replace(&mut self, watch: Watch<'_>) -> Step {
        let id = match self.random.chance(500) {
            true => self.leader_or_any(),
            false => self.random.below(self.cluster.replicas.len() as u64) as u16,
        };
        let hit = BTreeSet::from([id]);
        self.begin(Kind::Members, "replace", &hit);
        let excuses = self.excuse(&hit, BREAKS);
        let seeds = self.seeds(id);
        let replica = &mut self.cluster.replicas[usize::from(id)];
        replica.kill();
        let (data, earlier) = (replica.data(), replica.joins.take());
        let old = replica.directory.join("data-old");
        // A small file system is not renamed.
        let kept = !self.small_disks.contains(&id) && fs::rename(&data, &old).is_ok();
        fs::create_dir_all(&data)?;
        for left in fs::read_dir(&data)? {
            let left = left?.path();
            match left.is_dir() {
                true => fs::remove_dir_all(left)?,
                false => fs::remove_file(left)?,
            }
        }
        let members = self.cluster.replicas.len() as u16;
        let is_removed = members > 2 && self.random.chance(400);
        if is_removed {
            // The next new member gets the first vacant row, and this is the only one.
            let others = self.random.below(u64::from(members) - 1) as u16;
            let asked = (id + 1 + others) % members;
            self.change(&["member", "remove", &id.to_string()], asked, None, watch)?;
            self.count("members replace, removed first");
        }
        let replica = &mut self.cluster.replicas[usize::from(id)];
        replica.joins = Some(Joins {
            seeds,
            replaces: (!is_removed).then_some(id),
        });
        let down = self.draw_ms(0, 1500);
        self.wait(down, watch)?;
        let interrupted = self.random.chance(250);
        self.cluster.start(id)?;
        if interrupted {
            let moment = self.draw_ms(0, 400);
            self.cluster.replicas[usize::from(id)].may_end = true;
            self.wait(moment, watch)?;
            self.count("members replace, interrupted");
            self.cluster.replicas[usize::from(id)].kill();
        }
        self.joined(id, watch)?;
        if kept {
            self.old_data_are_refused(id, earlier, watch)?;
            fs::remove_dir_all(&old)?;
        }
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Waits until a replica that joins serves; one that was refused, as a link was not known to be
    /// broken yet, asks again.
    fn joined(&mut self, id: u16, watch: Watch<'_>) -> Step {
        let at = usize::from(id);
        self.cluster.replicas[at].may_end = true;
        let what = format!("replica {id} becomes a member and serves");
        self.until(&what, watch, |driver| {
            if !driver.cluster.replicas[at].runs() {
                // That it cannot be started shows in the end.
                let _ = driver.cluster.start(id);
                driver.cluster.replicas[at].may_end = true;
            }
            driver.cluster.replicas[at].is_ready().then_some(())
        })?;
        self.cluster.replicas[at].may_end = false;
        Ok(())
    }

    /// The directory of one that was replaced is found again: its replica stops by itself.
    fn old_data_are_refused(&mut self, id: u16, joined: Option<Joins>, watch: Watch<'_>) -> Step {
        if !self.random.chance(400) {
            return Ok(());
        }
        self.recover(watch)?;
        self.count("members replace, old data");
        let at = usize::from(id);
        let replica = &mut self.cluster.replicas[at];
        replica.kill();
        let (data, new) = (replica.data(), replica.directory.join("data-new"));
        let old = replica.directory.join("data-old");
        fs::rename(&data, &new)?;
        fs::rename(&old, &data)?;
        let joins = std::mem::replace(&mut replica.joins, joined);
        self.cluster.start(id)?;
        self.cluster.replicas[at].may_end = true;
        // No client uses it until it is told to.
        let excuses = self.excuse(&BTreeSet::from([id]), OUTSIDE);
        let what = format!("replica {id} is told that another has its place");
        let status = self.until(&what, watch, |driver| driver.cluster.replicas[at].ended)?;
        self.end_excuses(&excuses);
        self.note_exit("members: old data", status);
        if status.code() != Some(NO_MEMBER) {
            let text = self.cluster.replicas[at].exit_message();
            return Err(Halt::Violation(format!(
                "{text} ({}); one that was replaced ends with code {NO_MEMBER}",
                shown(status)
            )));
        }
        let replica = &mut self.cluster.replicas[at];
        replica.joins = joins;
        fs::rename(&data, &old)?;
        fs::rename(&new, &data)?;
        self.cluster.start(id)?;
        Ok(())
    }

    fn grow(&mut self, watch: Watch<'_>) -> Step {
        self.begin(Kind::Members, "grow", &BTreeSet::new());
        let joins = Joins {
            seeds: self.seeds(u16::MAX),
            replaces: None,
        };
        let id = self.cluster.add(self.plan, joins)?;
        self.cluster.start(id)?;
        self.joined(id, watch)?;
        self.end(watch)
    }

    fn shrink(&mut self, watch: Watch<'_>) -> Step {
        let id = self.cluster.replicas.len() as u16 - 1;
        self.begin(Kind::Members, "shrink", &BTreeSet::from([id]));
        let at = usize::from(id);
        self.cluster.replicas[at].may_end = true;
        let asked = self.random.below(id.into()) as u16;
        self.change(&["member", "remove", &id.to_string()], asked, None, watch)?;
        let what = format!("replica {id} stops, which is no member any more");
        let status = self.until(&what, watch, |driver| driver.cluster.replicas[at].ended)?;
        self.note_exit("members: removed", status);
        if status.code() != Some(NO_MEMBER) {
            let text = self.cluster.replicas[at].exit_message();
            return Err(Halt::Violation(format!(
                "{text}; one that was removed ends with code {NO_MEMBER}"
            )));
        }
        if let Some(removed) = self.cluster.replicas.pop() {
            fs::rename(
                &removed.directory,
                self.plan.directory.join(format!(
                    "removed-{}-{}",
                    removed.id,
                    self.counts.values().sum::<u64>()
                )),
            )?;
        }
        self.end(watch)
    }

    /// The cluster continues with another protocol.
    pub(super) fn change_protocol(&mut self, watch: Watch<'_>) -> Step {
        let statuses = self.cluster.replicas.iter().find_map(|it| it.status());
        let Some(now) = statuses.map(|status| status.protocol) else {
            return Ok(());
        };
        let (members, datagrams) = (self.cluster.replicas.len(), self.plan.transport == "udp");
        let fits = PROTOCOLS.iter().filter(|entry| {
            let streams = datagrams && entry.needs_streams;
            entry.info.name != now && entry.info.replicas_min <= members && !streams
        });
        let names: Vec<&str> = fits.map(|entry| entry.info.name).collect();
        let name = names[self.random.index(names.len())];
        let killed = match self.random.chance(300) && members > 2 {
            true => Some(self.leader_or_any()),
            false => None,
        };
        let hit: BTreeSet<u16> = killed.into_iter().collect();
        self.begin(Kind::Protocol, name, &hit);
        let excuses = self.excuse(&hit, BREAKS);
        let others: Vec<u16> = self
            .members()
            .into_iter()
            .filter(|id| !hit.contains(id))
            .collect();
        let asked = others[self.random.index(others.len())];
        self.change(&["protocol", "switch", name], asked, killed, watch)?;
        let what = format!("all members continue with {name}");
        self.until(&what, watch, |driver| {
            let replicas = driver.cluster.replicas.iter();
            let statuses: Option<Vec<_>> = replicas.map(|replica| replica.status()).collect();
            let statuses = statuses?;
            let epoch = statuses.first()?.epoch;
            let all = |it: &super::cluster::Status| it.protocol == name && it.epoch == epoch;
            statuses.iter().all(all).then_some(())
        })?;
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    /// Asks a replica for a change, again and again if need be, until it is made. Soon after the first
    /// question another replica is killed, if one is to be, and started again.
    fn change(
        &mut self,
        words: &[&str],
        asked: u16,
        mut killed: Option<u16>,
        watch: Watch<'_>,
    ) -> Step {
        let admin = format!(
            "http://{}",
            self.cluster.replicas[usize::from(asked)].addresses.admin
        );
        let begun = Instant::now();
        loop {
            let mut command = Command::new(&self.plan.program);
            command.args(words).args(["--admin", &admin, "-o", "json"]);
            command
                .env("QUINTET_PASSWORD", PASSWORD)
                .stdin(Stdio::null());
            let mut child = command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(id) = killed.take() {
                let moment = self.draw_ms(0, 150);
                self.wait(moment, watch)?;
                self.count("protocol, with a replica killed");
                self.cluster.replicas[usize::from(id)].kill();
                let down = self.draw_ms(50, 2000);
                self.wait(down, watch)?;
                self.cluster.start(id)?;
            }
            self.until("a change is answered", watch, |_| {
                child.try_wait().ok().flatten()
            })?;
            let output = child.wait_with_output()?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            self.count("change refused at first");
            if begun.elapsed() > TIMEOUT {
                return Err(Halt::Violation(format!(
                    "not within {} s: {}: {said}",
                    TIMEOUT.as_secs(),
                    words.join(" ")
                )));
            }
            self.wait(AGAIN, watch)?;
        }
    }
}
