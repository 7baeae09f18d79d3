use super::*;

pub(crate) fn identity(from: u16, to: u16) -> PeerIdentity {
    PeerIdentity {
        cluster: ClusterId(0xabc),
        epoch: EpochNumber(1),
        groups: 1,
        members: 3,
        protocol: "multipaxos".to_owned(),
        from: Peer::Replica(ReplicaId(from)),
        to: ReplicaId(to),
        incarnation: Incarnation(1),
        boot: Boot(4),
        directory: 9,
        session: 4 << 32 | 7,
        lane: Lane::Bulk,
        redis: "10.0.0.1:7001".to_owned(),
        address: "10.0.0.1:7201".to_owned(),
        descriptor: Bytes::from_static(b"options"),
    }
}

#[test]
fn identity_is_refused_when_its_redis_address_is_none() {
    for bad in [
        "10.0.0.1",
        "a b:1",
        "a\r\nrole:master\r\n:7001",
        &"a".repeat(9000),
    ] {
        let mut bad_one = identity(0, 1);
        bad_one.redis = bad.to_owned();
        let decoded = PeerIdentity::decode_all(bad_one.encode_to_bytes());
        assert_eq!(decoded, Err(DecodeError::Bad("redis address")), "{bad}");
    }
    let mut none = identity(0, 1);
    none.redis = String::new();
    assert_eq!(PeerIdentity::decode_all(none.encode_to_bytes()), Ok(none));
}

const CLUSTER: ClusterId = ClusterId(0xabc);

fn key(secret: u8) -> PeerKey {
    PeerKey::new(&[secret; 32], CLUSTER)
}

/// Two sides with these secrets, and the initiator's challenge.
fn sides(secrets: [u8; 2]) -> (Handshake, Handshake, Vec<u8>) {
    let (initiator, challenge) = Handshake::initiate(key(secrets[0]), [1; 32]);
    (
        initiator,
        Handshake::accept(key(secrets[1]), [2; 32]),
        challenge,
    )
}

/// The step that a whole packet makes.
fn take(side: &mut Handshake, bytes: &[u8]) -> Step {
    match side.advance(bytes) {
        Ok(Some((step, length))) if length == bytes.len() => step,
        other => panic!("{other:?}"),
    }
}

fn sent(step: Step) -> Vec<u8> {
    match step {
        Step::Send(bytes) | Step::Proven(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Both proven.
fn proven() -> (Handshake, Handshake) {
    let (mut initiator, mut acceptor, challenge) = sides([7, 7]);
    let answer = sent(take(&mut acceptor, &challenge));
    assert!(!acceptor.is_proven() && !initiator.is_proven());
    let proof = sent(take(&mut initiator, &answer));
    assert!(initiator.is_proven() && !acceptor.is_proven());
    assert_eq!(take(&mut acceptor, &proof), Step::Proven(Vec::new()));
    assert!(acceptor.is_proven());
    (initiator, acceptor)
}

#[test]
fn peers_with_one_secret_exchange_identities_after_proofs() {
    let (mut initiator, mut acceptor) = proven();
    let (first, second) = (identity(0, 1), identity(1, 0));
    let packet = initiator.identity(&first).expect("proven");
    assert_eq!(take(&mut acceptor, &packet), Step::Identity(first));
    let packet = acceptor.identity(&second).expect("proven");
    assert_eq!(
        take(&mut initiator, &packet),
        Step::Identity(second.clone())
    );
    // Either side may still refuse, and tell nothing else.
    let refusal = Refusal {
        fatal: true,
        reason: "no\u{7}".to_owned(),
    };
    let shown = Refusal {
        fatal: true,
        reason: "no ".to_owned(),
    };
    let packet = initiator.refusal(&refusal).expect("proven");
    assert_eq!(take(&mut acceptor, &packet), Step::Refusal(shown));
    let again = acceptor.identity(&second).expect("proven");
    assert_eq!(
        initiator.advance(&again),
        Err(HandshakeError::Malformed),
        "a second identity"
    );
}

#[test]
fn both_sides_derive_the_same_keys_and_each_direction_its_own() {
    let (initiator, acceptor) = proven();
    let of = |side: &Handshake, sends| side.link_key().expect("proven").derive("use", sends);
    assert_eq!(of(&initiator, true), of(&acceptor, false));
    assert_eq!(of(&initiator, false), of(&acceptor, true));
    assert_ne!(of(&initiator, true), of(&initiator, false));
    let link = initiator.link_key().expect("proven");
    assert_ne!(link.derive("use", true), link.derive("another", true));
    let text = format!("{initiator:?}");
    assert!(
        text.contains("PeerKey") && !text.contains("key: ["),
        "{text}"
    );
}

#[test]
fn packets_wait_for_their_end_and_damaged_ones_fail() {
    let (mut first, second) = proven();
    let packet = second.identity(&identity(1, 0)).expect("proven");
    for cut in 0..packet.len() {
        assert_eq!(first.advance(&packet[..cut]), Ok(None), "cut at {cut}");
    }
    for at in 0..packet.len() {
        let mut damaged = packet.clone();
        damaged[at] ^= 0x10;
        let result = first.advance(&damaged);
        // A longer packet than came is waited for, and its checksum is looked at then.
        assert!(
            result.is_err() || (result == Ok(None) && (12..16).contains(&at)),
            "byte {at}: {result:?}"
        );
    }
    let mut acceptor = sides([7, 7]).1;
    let error = acceptor.advance(b"GET / HTTP/1.1");
    assert_eq!(error, Err(HandshakeError::Magic));
}

#[test]
fn long_packets_are_refused_by_their_header() {
    let kinds = [
        (Kind::Challenge, 33),
        (Kind::Challenge, u32::MAX),
        (Kind::Proof, 32),
    ];
    for (kind, length) in kinds {
        let mut header = packet(kind, &[]);
        header[12..16].copy_from_slice(&u32::to_le_bytes(length));
        let mut acceptor = sides([7, 7]).1;
        let error = acceptor.advance(&header);
        assert_eq!(error, Err(HandshakeError::Malformed), "{kind:?} {length}");
    }
    let (mut proven, _) = proven();
    let mut header = packet(Kind::Identity, &[]);
    header[12..16].copy_from_slice(&u32::to_le_bytes(BODY_MAX as u32 + 1));
    assert_eq!(proven.advance(&header), Err(HandshakeError::Malformed));
}

#[test]
fn other_formats_are_named() {
    let (mut initiator, mut acceptor, mut challenge) = sides([7, 7]);
    challenge[8] = 1;
    let error = acceptor.advance(&challenge).expect_err("of format 1");
    assert_eq!(error, HandshakeError::Format(1));
    assert_eq!(
        error.to_string(),
        format!("format version mismatch: ours {FORMAT}, theirs 1")
    );
    // The answer of a program of another format, with the same beginning.
    let mut answer = Handshake::denied();
    answer[8..10].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    let refused = HandshakeError::Format(FORMAT + 1);
    assert_eq!(initiator.advance(&answer), Err(refused));
}

#[test]
fn wrong_secret_proves_nothing_on_either_side() {
    let (mut initiator, mut acceptor, challenge) = sides([7, 8]);
    let answer = sent(take(&mut acceptor, &challenge));
    assert_eq!(initiator.advance(&answer), Err(HandshakeError::Proof));
    assert!(!initiator.is_proven() && initiator.link_key().is_none());
    let denied = Handshake::denied();
    assert_eq!(acceptor.advance(&denied), Err(HandshakeError::Denied));
    assert!(!acceptor.is_proven() && acceptor.link_key().is_none());
    // An initiator that sends its proof anyway.
    let (mut other, _, _) = sides([8, 8]);
    let (mut acceptor, challenge) = (sides([7, 7]).1, sides([8, 8]).2);
    take(&mut acceptor, &challenge);
    let answer = sent(take(&mut sides([8, 8]).1, &challenge));
    let proof = sent(take(&mut other, &answer));
    assert_eq!(acceptor.advance(&proof), Err(HandshakeError::Proof));
}

#[test]
fn cluster_without_secret_is_kept_apart_by_its_id() {
    let open = |cluster| PeerKey::new(&[0; 32], ClusterId(cluster)).0;
    assert_eq!(open(1), open(1));
    assert_ne!(open(1), open(2));
    assert_ne!(open(1), key(7).0);
    // With one secret, clusters are told apart by their identities, with both ids.
    assert_eq!(key(7).0, PeerKey::new(&[7; 32], ClusterId(1)).0);
}

#[test]
fn identity_is_sent_only_after_proof_of_peer() {
    let (initiator, mut acceptor, challenge) = sides([7, 7]);
    take(&mut acceptor, &challenge);
    let refusal = Refusal {
        fatal: false,
        reason: String::new(),
    };
    for side in [&initiator, &acceptor] {
        assert_eq!(side.identity(&identity(0, 1)), None);
        assert_eq!(side.refusal(&refusal), None);
    }
}

#[test]
fn identity_and_refusal_of_an_unproven_side_are_not_read() {
    let (true_initiator, true_acceptor) = proven();
    let refusal = Refusal {
        fatal: true,
        reason: "stop".to_owned(),
    };
    let packets = [
        true_initiator.identity(&identity(0, 1)).expect("proven"),
        true_acceptor.refusal(&refusal).expect("proven"),
        packet(Kind::Refusal, &[&refusal.encode_to_bytes(), &[0; TAG]]),
    ];
    for packet in &packets {
        let (mut initiator, mut acceptor, challenge) = sides([7, 7]);
        assert_eq!(initiator.advance(packet), Err(HandshakeError::Malformed));
        assert_eq!(acceptor.advance(packet), Err(HandshakeError::Malformed));
        let mut acceptor = sides([7, 7]).1;
        take(&mut acceptor, &challenge);
        assert_eq!(acceptor.advance(packet), Err(HandshakeError::Malformed));
    }
}

#[test]
fn own_challenge_and_own_proof_sent_back_prove_nothing() {
    let (mut initiator, _, challenge) = sides([7, 7]);
    let nonce = &challenge[HEADER..];
    let answer = packet(Kind::Answer, &[nonce, &[0; TAG]]);
    assert_eq!(initiator.advance(&answer), Err(HandshakeError::Reflected));

    // The stranger lets the acceptor make a proof and sends it back.
    let (_, mut acceptor, challenge) = sides([7, 7]);
    let answer = sent(take(&mut acceptor, &challenge));
    let back = packet(Kind::Proof, &[&answer[HEADER + NONCE..]]);
    assert_eq!(acceptor.advance(&back), Err(HandshakeError::Proof));
    let mut acceptor = sides([7, 7]).1;
    let back = packet(Kind::Challenge, &[&answer[HEADER..HEADER + NONCE]]);
    assert_eq!(acceptor.advance(&back), Err(HandshakeError::Reflected));
}

#[test]
fn recorded_proofs_and_identities_fail_under_another_nonce() {
    let (mut initiator, mut acceptor, challenge) = sides([7, 7]);
    let answer = sent(take(&mut acceptor, &challenge));
    let proof = sent(take(&mut initiator, &answer));
    let told = initiator.identity(&identity(0, 1)).expect("proven");

    let mut later = Handshake::accept(key(7), [3; 32]);
    take(&mut later, &challenge);
    assert_eq!(later.advance(&proof), Err(HandshakeError::Proof));
    let (mut later, _) = Handshake::initiate(key(7), [4; 32]);
    assert_eq!(later.advance(&answer), Err(HandshakeError::Proof));

    // A proven side, with what another link was told.
    let (mut other, second) = Handshake::initiate(key(7), [5; 32]);
    let mut later = Handshake::accept(key(7), [6; 32]);
    let answer = sent(take(&mut later, &second));
    let proof = sent(take(&mut other, &answer));
    take(&mut later, &proof);
    assert_eq!(later.advance(&told), Err(HandshakeError::Tag));
    // And with its own identity sent back.
    let own = later.identity(&identity(1, 0)).expect("proven");
    assert_eq!(later.advance(&own), Err(HandshakeError::Tag));
}

#[test]
fn every_mismatch_is_named_with_both_sides() {
    let ours = identity(1, 2);
    let theirs = identity(2, 1);
    assert_eq!(ours.check(&theirs), Ok(()));
    let reason = |change: fn(&mut PeerIdentity)| {
        let mut theirs = theirs.clone();
        change(&mut theirs);
        ours.check(&theirs).expect_err("refused").reason
    };
    let text = reason(|it| it.cluster = ClusterId(0xdef));
    assert!(
        text.starts_with("cluster id mismatch: ours 0") && text.contains("def"),
        "{text}"
    );
    let same = reason(|it| it.from = Peer::Replica(ReplicaId(1)));
    assert_eq!(same, "duplicate node id: both are replica 1");
    assert!(reason(|it| it.to = ReplicaId(0)).contains("wrong address"));
    let mut later = theirs.clone();
    (later.epoch, later.protocol) = (EpochNumber(2), "chain".to_owned());
    assert_eq!(ours.check(&later), Ok(()), "it is told over the link");
    assert!(reason(|it| it.protocol = "chain".to_owned()).contains("'chain'"));
    assert!(reason(|it| it.members = 5).contains("membership mismatch"));
    assert!(reason(|it| it.from = Peer::Replica(ReplicaId(3))).contains("not a member"));
}

/// Inputs that are also fuzzed: good packets of another key, cut, changed and in any state.
#[test]
fn stranger_proves_nothing_in_any_state() {
    let samples = crate::fuzzing::handshake_samples();
    assert!(samples.iter().all(|sample| sample.len() > HEADER));
    for sample in &samples {
        for choice in 0..8 {
            let mut bytes = sample.clone();
            bytes[0] = choice;
            crate::fuzzing::handshake(&bytes);
            for at in 1..bytes.len() {
                crate::fuzzing::handshake(&bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 1 << (at % 8);
                crate::fuzzing::handshake(&changed);
            }
        }
    }
}
