//! Asking a replica how its cluster works, or for a change of that, over admin HTTP.

use crate::cli::{demo, password::Password, progress, status};
use clap::Args;
use quintet_cli::{Exit, Failure, Outcome, http, output::Format};
use quintet_runtime::{ASK_ANOTHER, CHANGE_MAX, ChangeReport, ChangeRequest};
use std::{path::PathBuf, time::Duration};

/// Longer than a replica waits for a change.
const TIMEOUT: Duration = Duration::from_secs(CHANGE_MAX.as_secs() + 10);

// No documentation comment: clap would print it in place of a command's.
#[derive(Args, Debug)]
pub struct At {
    /// The admin address of any replica
    #[arg(long, value_name = "URL", value_parser = http::authority)]
    admin: Option<String>,

    #[command(flatten)]
    pub password: Password,

    /// A demo's directory, to ask one of its replicas
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY, conflicts_with = "admin")]
    dir: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

impl At {
    /// Asks the replicas that are known until one answers.
    pub fn ask(&self, request: Option<&ChangeRequest>) -> Outcome<ChangeReport> {
        let addresses = match &self.admin {
            Some(address) => vec![address.clone()],
            None => status::addresses_of_demo(&self.dir)?,
        };
        ask_any(&addresses, request)
    }
}

/// Asks replicas at these addresses until one answers: how the cluster works, or for a change of
/// that, telling meanwhile how it comes along.
///
/// # Errors
/// The refusal of the one that answered, or why none did.
pub fn ask_any(addresses: &[String], request: Option<&ChangeRequest>) -> Outcome<ChangeReport> {
    let body = request.map(|request| serde_json::to_string(request).unwrap_or_default());
    let mut last = String::new();
    for address in addresses {
        let body = body.as_deref().unwrap_or_default();
        let asked = match request {
            None => http::get(address, "/change", TIMEOUT),
            Some(_) => progress::post(address, "/change", body, TIMEOUT),
        };
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) => {
                last = format!("{address}: {error}");
                continue;
            }
        };
        let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
        if answer.code == 409 && text.contains(ASK_ANOTHER) {
            last = format!("{address}: {text}");
            continue;
        }
        return match answer.code {
            200 => serde_json::from_slice(&answer.body)
                .map_err(|error| Failure::new(Exit::Failed, format!("{address}: {error}"))),
            401 => Err(Failure::usage(format!("{address}: it needs the password"))
                .help("set QUINTET_PASSWORD or --password")),
            404 => Err(Failure::new(
                Exit::Refused,
                format!("{address}: it is of a version that changes no protocol"),
            )),
            _ => Err(Failure::new(Exit::Failed, format!("{address}: {text}"))),
        };
    }
    Err(Failure::new(Exit::Unreachable, last)
        .help("name a replica that runs with --admin http://127.0.0.1:7101"))
}
