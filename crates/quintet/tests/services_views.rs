//! Services that are told of the members of their shards.

use quintet::groups::{
    CallContext, CallError, Client, Group, Persistent, PersistentMap, Service, Shard, ShardView,
    Version, service,
};
use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(30);

/// Keeps who its members were, and when.
#[derive(Default, Service)]
struct Crew {
    members: Persistent<Vec<usize>>,
    views: PersistentMap<(u64, u64), (Vec<usize>, Version)>,
    disorder: Persistent<u64>,
    last: Persistent<(u64, u64)>,
}

type Views = Vec<((u64, u64), (Vec<usize>, Version))>;

#[service]
impl Crew {
    #[ordered]
    fn touch(&mut self, context: &mut CallContext) -> Version {
        context.version()
    }
    #[query]
    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }
    #[query]
    fn views(&self) -> (u64, Views) {
        let all = self.views.iter().map(|(key, view)| (*key, view.clone()));
        (*self.disorder, all.collect())
    }
    #[view]
    fn crew_is(&mut self, context: &mut CallContext, view: &ShardView) {
        let number = (view.epoch(), view.number());
        *self.disorder += u64::from(number <= *self.last);
        *self.last = number;
        *self.members = view.members().to_vec();
        let told = (view.members().to_vec(), context.version());
        self.views.insert(number, told);
    }
}

/// Waits until the shard has been told of these members.
fn wait_for(crew: &Shard<Crew>, members: &[usize], why: &str) {
    wait_until(crew, why, |known| known == members);
}

/// Waits until the shard has been told of such members.
fn wait_until(crew: &Shard<Crew>, why: &str, are: impl Fn(&[usize]) -> bool) {
    let ends = Instant::now() + LONG;
    loop {
        let known = crew.query().members().wait();
        if known.as_deref().is_ok_and(&are) {
            return;
        }
        assert!(Instant::now() < ends, "{why}: {known:?}");
        std::thread::yield_now();
    }
}

/// All of these members know the same, in order.
fn compare(crew: &Shard<Crew>, members: &[usize]) -> Views {
    // At this version all have executed the same.
    let made = crew.ordered().touch().wait().expect("executed");
    let told = members.iter().map(|member| {
        let there = crew.member(*member);
        there.at(made).views().wait().expect("told")
    });
    let told: Vec<_> = told.collect();
    assert!(told.windows(2).all(|two| two[0] == two[1]), "{told:?}");
    let (disorder, views) = told.into_iter().next().expect("some member");
    assert_eq!(disorder, 0, "{views:?}");
    views
}

#[test]
fn every_protocol_tells_a_shard_of_its_members_at_the_beginning() {
    for protocol in quintet::protocols() {
        let group = Group::local(3).protocol(protocol);
        let group = group.one::<Crew>("crew").start().expect("it starts");
        group.wait_ready(LONG).expect("it answers");
        let crew = group.shard::<Crew>("crew", 0).expect("there is one");
        wait_for(&crew, &[0, 1, 2], protocol);
        compare(&crew, &[0, 1, 2]);
    }
}

#[test]
fn shard_is_told_when_a_member_dies_and_returns() {
    for protocol in quintet::protocols() {
        let entry = quintet_protocols::find(protocol).expect("registered");
        if entry.changes_members {
            member_dies_and_returns(protocol);
        }
    }
}

fn member_dies_and_returns(protocol: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let group = Group::local(3).directory(directory.path());
    let group = group.protocol(protocol).one::<Crew>("crew");
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let crew = group.shard::<Crew>("crew", 0).expect("there is one");
    wait_for(&crew, &[0, 1, 2], "at the beginning");
    group.stop_member(0);
    wait_for(&crew, &[1, 2], &format!("{protocol}: when one has died"));
    let before = compare(&crew, &[1, 2]);
    group.restart_member(0).expect("it starts");
    wait_for(
        &crew,
        &[0, 1, 2],
        &format!("{protocol}: when it has returned"),
    );
    let views = compare(&crew, &[0, 1, 2]);
    assert_eq!(views[..before.len()], before[..]);
    let (_, at) = &before.last().expect("told").1;
    assert_eq!(crew.at(*at).members().wait(), Ok(vec![1, 2]));
}

const SHARDS: &str = r#"
[[subgroup]]
name = "crew"
service = "Crew"
shards = 2
members = { min = 1, max = 2 }
"#;

#[test]
fn shards_of_a_layout_are_told_of_their_own_members() {
    let group = Group::local(5).layout(SHARDS).serve::<Crew>();
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let crews = group.all::<Crew>("crew").expect("two");
    let members = |number: usize| {
        let status = group.status().into_iter();
        let newest = status.max_by_key(|it| it.view).expect("one runs");
        let members = newest.groups[number].members.iter();
        members.copied().map(usize::from).collect::<Vec<_>>()
    };
    for (number, crew) in crews.iter().enumerate() {
        let are = |known: &[usize]| known == members(number);
        wait_until(crew, "at the beginning", are);
    }
    let dies = members(0)[0];
    group.stop_member(dies);
    // Another one takes its place.
    wait_until(&crews[0], "when one has died", |known| {
        known == members(0) && !known.contains(&dies) && known.len() == 2
    });
    for (number, crew) in crews.iter().enumerate() {
        let views = compare(crew, &members(number));
        assert!(!views.is_empty());
    }
}

#[test]
fn heralds_of_several_processes_tell_each_view_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let listeners = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let listeners: Vec<_> = listeners.collect();
    let address = |it: &TcpListener| it.local_addr().expect("bound").to_string();
    let addresses: Vec<_> = listeners.iter().map(address).collect();
    drop(listeners);
    let start = |id: u16| {
        let data = directory.path().join(id.to_string());
        let group = Group::member("crew", id, &addresses, data).one::<Crew>("crew");
        group.start().expect("it starts")
    };
    let mut groups: Vec<Group> = (0..3).map(start).collect();
    for group in &groups {
        group.wait_ready(LONG).expect("it answers");
    }
    let crew = groups[2].shard::<Crew>("crew", 0).expect("there is one");
    wait_for(&crew, &[0, 1, 2], "at the beginning");
    // The herald that tells as a rule dies with its member.
    drop(groups.remove(0));
    wait_for(&crew, &[1, 2], "when one has died");
    groups.push(start(0));
    wait_for(&crew, &[0, 1, 2], "when it has returned");
    let (disorder, views) = crew.query().views().wait().expect("told");
    assert_eq!(disorder, 0, "{views:?}");
}

/// Protocol, number, data and addresses of a member that is to run in this process.
const MEMBER: &str = "QUINTET_TEST_MEMBER";
const RUNS: &str = "member_runs_until_it_is_killed_where_a_test_says_so";

#[test]
fn member_runs_until_it_is_killed_where_a_test_says_so() {
    let Ok(words) = std::env::var(MEMBER) else {
        return;
    };
    let words: Vec<_> = words.split(' ').collect();
    let [protocol, id, data, calls, peers @ ..] = &words[..] else {
        panic!("{words:?}");
    };
    let group = Group::member("crew", id.parse().expect("a number"), peers, data);
    let group = group.protocol(*protocol).one::<Crew>("crew");
    let group = group.start().expect("it starts");
    let _server = group.serve_calls(*calls).expect("it listens");
    loop {
        std::thread::park();
    }
}

/// A process; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_processes_are_told_as_members_that_left() {
    for protocol in quintet::protocols() {
        let entry = quintet_protocols::find(protocol).expect("registered");
        if entry.changes_members {
            processes_are_killed(protocol);
        }
    }
}

fn processes_are_killed(protocol: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let listeners = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let listeners: Vec<_> = listeners.collect();
    let address = |it: &TcpListener| it.local_addr().expect("bound").to_string();
    let addresses: Vec<_> = listeners.iter().map(address).collect();
    drop(listeners);
    let (peers, calls) = addresses.split_at(3);
    let start = |id: usize| {
        let data = directory.path().join(id.to_string());
        let (data, calls, peers) = (data.display(), &calls[id], peers.join(" "));
        let words = format!("{protocol} {id} {data} {calls} {peers}");
        let mut member = Command::new(std::env::current_exe().expect("this program"));
        member.args(["--exact", RUNS]).env(MEMBER, words);
        let member = member.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Process(member.expect("it starts"))
    };
    let mut members: Vec<_> = (0..3).map(start).collect();
    let ends = Instant::now() + LONG;
    let client = loop {
        match Client::connect(calls) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < ends, "{protocol}: {error}"),
        }
        std::thread::yield_now();
    };
    let crew = client.shard::<Crew>("crew", 0).expect("there is one");
    let why = |what: &str| format!("{protocol}: {what}");
    wait_for(&crew, &[0, 1, 2], &why("at the beginning"));
    // The one whose herald tells as a rule, then another.
    for dies in [0, 2] {
        members.remove(dies);
        let left: Vec<_> = (0..3).filter(|it| *it != dies).collect();
        wait_for(&crew, &left, &why("when one was killed"));
        members.insert(dies, start(dies));
        wait_for(&crew, &[0, 1, 2], &why("when it has returned"));
    }
    let (disorder, views) = crew.query().views().wait().expect("told");
    assert_eq!(disorder, 0, "{views:?}");
}

#[test]
fn clients_cannot_tell_a_shard_of_its_members() {
    use quintet::runtime::resp_client::{Reply, command, read};
    use std::io::{BufReader, Write};
    let group = Group::local(3).one::<Crew>("crew").start();
    let group = group.expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let server = group.serve_calls("127.0.0.1:0").expect("it listens");
    let mut stream = std::net::TcpStream::connect(server.address()).expect("it accepts");
    let told = quintet_groups::view::tell(&quintet_groups::view::Told {
        number: (9, 9),
        members: vec![7],
    });
    let sent = stream.write_all(&command(&[b"QUINTET.RAW", b"0", b"ordered", &told]));
    sent.expect("sent");
    let answer = read(&mut BufReader::new(stream), 1 << 20).expect("an answer");
    assert!(
        matches!(&answer, Reply::Error(text) if text.contains("no call of a client")),
        "{answer:?}"
    );
    let crew = group.shard::<Crew>("crew", 0).expect("there is one");
    wait_for(&crew, &[0, 1, 2], "at the beginning");
    assert_eq!(
        crew.at(Version(99)).members().wait(),
        Err(CallError::NotYet)
    );
}
