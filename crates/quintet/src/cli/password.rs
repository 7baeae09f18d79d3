//! The cluster's password, for commands that ask replicas' admin HTTP.

use clap::Args;

// No documentation comment: clap would print it in place of a command's.
#[derive(Args, Debug)]
pub struct Password {
    /// The cluster's password; better given by the environment, where others do not see it
    #[arg(
        long,
        env = "QUINTET_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    password: Option<String>,
}

impl Password {
    pub fn as_deref(&self) -> Option<&str> {
        self.password.as_deref()
    }
}
