//! Profiles of machines as files.
//!
//! ```text
//!   lab calibrate ──► FILE.toml: each cost with where it comes from ──► lab run --profile FILE.toml
//! ```

use quintet_cli::{Failure, Outcome};
use quintet_simulator::performance::{Costs, Placement, Profile};
use serde::{Deserialize, Serialize};
use std::fs;

/// The profiles that come with the program; the first is used where none is named.
pub const BUILT_IN: [(&str, &str); 9] = [
    (
        "two-cores",
        include_str!("../../../lab/profiles/two-cores.toml"),
    ),
    (
        "own-cores",
        include_str!("../../../lab/profiles/own-cores.toml"),
    ),
    ("chora", include_str!("../../../lab/profiles/chora.toml")),
    (
        "derecho",
        include_str!("../../../lab/profiles/derecho.toml"),
    ),
    ("nezha", include_str!("../../../lab/profiles/nezha.toml")),
    (
        "nezha-exchange",
        include_str!("../../../lab/profiles/nezha-exchange.toml"),
    ),
    (
        "nezha-redis",
        include_str!("../../../lab/profiles/nezha-redis.toml"),
    ),
    (
        "racs-lan",
        include_str!("../../../lab/profiles/racs-lan.toml"),
    ),
    (
        "racs-wan",
        include_str!("../../../lab/profiles/racs-wan.toml"),
    ),
];

/// The one cell that a profile's costs are fitted to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineFile {
    /// The paper, its figure or table, and what it shows.
    pub source: String,
    /// The scenario with that cell.
    pub scenario: String,
    /// The protocol.
    pub protocol: String,
    /// The sweep's value.
    pub value: u64,
    /// Operations per second.
    pub throughput: u64,
}

/// A profile as it stands in a file. All times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// Which machine, and when.
    pub machine: String,
    /// Cores that all share; ignored when each replica has its own.
    pub cores: usize,
    /// `shared` or `own`.
    pub placement: String,
    /// How long a sleeping core takes to begin.
    pub wake: u64,
    /// How long a replica looks for work before it sleeps.
    pub spin: u64,
    /// The duration of a frame between two processes besides CPU time.
    pub hop: u64,
    /// Quantiles of a synchronisation's latency, at equal steps from the least to the greatest.
    pub sync: Vec<u64>,
    /// How much longer for each KiB.
    pub sync_kib: u64,
    /// CPU time.
    pub costs: CostsFile,
    /// The targets of the fit; none where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<BaselineFile>,
}

macro_rules! costs_file {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// CPU time in nanoseconds, see [`Costs`].
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct CostsFile {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl From<&CostsFile> for Costs {
            fn from(file: &CostsFile) -> Self {
                Self { $($name: file.$name,)+ }
            }
        }

        impl From<&Costs> for CostsFile {
            fn from(costs: &Costs) -> Self {
                Self { $($name: costs.$name,)+ }
            }
        }
    };
}

costs_file! {
    /// A turn of the event loop.
    turn,
    /// A frame taken in.
    receive,
    /// Each KiB of it.
    receive_kib,
    /// One write to a peer.
    send,
    /// Each frame in it.
    send_frame,
    /// Each KiB of it.
    send_kib,
    /// A client's request taken in.
    request,
    /// A reply sent.
    reply,
    /// Each KiB of both.
    client_kib,
    /// A batch submitted or finished.
    batch,
    /// A command executed.
    execute,
    /// Each KiB of it.
    execute_kib,
    /// A synchronisation.
    sync,
    /// Each KiB of it.
    sync_kib,
    /// Falling asleep and being woken.
    #[serde(default)]
    sleep,
    /// A request in the load generator.
    generator,
    /// A turn of the generator.
    generator_turn,
}

impl ProfileFile {
    /// The costs that the backend uses.
    ///
    /// # Errors
    /// When the placement is neither.
    pub fn profile(&self) -> Result<Profile, String> {
        Ok(Profile {
            cores: self.cores,
            placement: match self.placement.as_str() {
                "shared" => Placement::Shared,
                "own" => Placement::Own,
                other => {
                    return Err(format!("placement '{other}' is neither 'shared' nor 'own'"));
                }
            },
            costs: Costs::from(&self.costs),
            wake: self.wake,
            spin: self.spin,
            hop: self.hop,
            sync: self.sync.clone(),
            sync_kib: self.sync_kib,
        })
    }

    /// The same profile with a machine's name.
    pub fn of(profile: &Profile, machine: String) -> Self {
        Self {
            machine,
            cores: profile.cores,
            placement: match profile.placement {
                Placement::Shared => "shared",
                Placement::Own => "own",
            }
            .to_owned(),
            wake: profile.wake,
            spin: profile.spin,
            hop: profile.hop,
            sync: profile.sync.clone(),
            sync_kib: profile.sync_kib,
            costs: CostsFile::from(&profile.costs),
            baseline: None,
        }
    }
}

/// Reads a profile: one that comes with the program, the first of them when `name` is empty, or a
/// file.
///
/// # Errors
/// When there is none, or with what is wrong in it.
pub fn load(name: &str) -> Outcome<(ProfileFile, Profile)> {
    let known = BUILT_IN
        .iter()
        .find(|(known, _)| *known == name || name.is_empty());
    let text = match (known, name) {
        (Some((_, text)), _) => (*text).to_owned(),
        (None, path) => fs::read_to_string(path).map_err(|error| {
            let names = BUILT_IN.map(|(known, _)| known).join(", ");
            Failure::usage(format!("{path}: {error}")).help(format!(
                "profiles are {names}, which come with the program, or a file that 'quintet lab \
                 calibrate' wrote"
            ))
        })?,
    };
    let file: ProfileFile = toml::from_str(&text)
        .map_err(|error| quintet_cli::toml_error::failure(&error, &text, name))?;
    let profile = file
        .profile()
        .map_err(|why| Failure::usage(format!("{name}: {why}")))?;
    Ok((file, profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_survives_its_file() {
        let (file, profile) = load("").unwrap();
        assert_eq!(ProfileFile::of(&profile, file.machine.clone()), file);
        let text = toml::to_string(&file).unwrap();
        assert_eq!(toml::from_str::<ProfileFile>(&text).unwrap(), file);
        let (_, own) = load("own-cores").unwrap();
        let placement = Placement::Own;
        let cores = own.cores;
        let expected = Profile {
            cores,
            placement,
            ..profile
        };
        assert_eq!(own, expected, "costs are measured once");
        assert!(load("nowhere.toml").is_err());
        for (name, _) in BUILT_IN {
            load(name).unwrap();
        }
    }
}
