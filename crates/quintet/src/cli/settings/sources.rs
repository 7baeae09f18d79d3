//! Reading the file, the environment and the flags into a draft.

use super::{Draft, remedy_for_key, schema};
use crate::cli::origin::Origin;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use quintet_cli::{Exit, Failure, Outcome, programs, protocols::assignment, suggest};
use std::{
    ffi::OsString,
    io::ErrorKind,
    ops::Range,
    path::{Path, PathBuf},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

const HEADING: &str = "Overrides (stronger than the file and the environment)";

/// Variables of the programs that are no keys.
const OTHERS: [&str; 3] = ["QUINTET_LOG", programs::LAB.1, programs::QUINTET.1];

/// The table of a protocol's options.
const OPTIONS: &str = "options";

/// One flag for every key of the configuration, and `--set` for the protocol's options.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    keys: Vec<(&'static str, String, String)>,
    options: Vec<(String, String)>,
}

impl Overrides {
    pub(super) fn apply(&self, draft: &mut Draft) -> Outcome {
        for (name, flag, text) in &self.keys {
            draft.set(name, text, Origin::Flag(flag.clone()))?;
        }
        for (name, value) in &self.options {
            draft.set_option(name, value, Origin::Flag(format!("set {name}={value}")));
        }
        Ok(())
    }
}

impl Args for Overrides {
    fn augment_args(mut command: Command) -> Command {
        for key in schema::KEYS {
            command = command.arg(
                Arg::new(key.name)
                    .long(key.flag())
                    .value_name("VALUE")
                    .help(key.help)
                    .help_heading(HEADING)
                    .action(ArgAction::Set),
            );
        }
        command.arg(
            Arg::new("set")
                .long("set")
                .value_name("OPTION=VALUE")
                .help("An option of the protocol, see 'quintet protocols'; may be repeated")
                .help_heading(HEADING)
                .value_parser(assignment)
                .action(ArgAction::Append),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut overrides = Self::default();
        overrides.update_from_arg_matches(matches)?;
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for key in schema::KEYS {
            if let Some(text) = matches.get_one::<String>(key.name) {
                self.keys.push((key.name, key.flag(), text.clone()));
            }
        }
        let options = matches.get_many::<(String, String)>("set");
        self.options.extend(options.into_iter().flatten().cloned());
        Ok(())
    }
}

/// Takes the variables that are keys. A `QUINTET_…` that is none is only warned of: others may
/// have named it.
pub(super) fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
    draft: &mut Draft,
) -> Outcome {
    for (name, text) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with("QUINTET_")) else {
            continue;
        };
        let origin = Origin::Environment(name.to_owned());
        let text = text
            .to_str()
            .ok_or_else(|| Failure::usage(format!("{name}: the value is not UTF-8")))?;
        if let Some(key) = schema::KEYS.iter().find(|key| key.variable() == name) {
            draft.set(key.name, text, origin)?;
        } else if name == "QUINTET_OPTIONS" {
            for one in text.split(',').filter(|one| !one.trim().is_empty()) {
                let (option, value) = assignment(one)
                    .map_err(|reason| Failure::usage(format!("{name}: {reason}")))?;
                draft.set_option(&option, &value, origin.clone());
            }
        } else if !OTHERS.contains(&name) {
            let plain = |name: &str| name.trim_start_matches("QUINTET_").to_lowercase();
            let known: Vec<String> = schema::KEYS
                .iter()
                .map(|key| plain(&key.variable()))
                .collect();
            let meant = suggest::nearest(&plain(name), known.iter().map(String::as_str))
                .map_or(String::new(), |near| {
                    format!(" (did you mean QUINTET_{}?)", near.to_uppercase())
                });
            tracing::warn!("environment variable {name} is no setting of quintet; ignored{meant}");
        }
    }
    Ok(())
}

/// Reads a TOML file.
pub(super) fn file(path: &Path, draft: &mut Draft) -> Outcome {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::NotFound => "there is no such file".to_owned(),
            ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
            _ => error.to_string(),
        };
        Failure::usage(format!("{}: {reason}", path.display()))
    })?;
    let reader = Reader { path, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| reader.line(&span));
        Failure::usage(format!(
            "{}:{line}: {}",
            path.display(),
            error.message().trim_end()
        ))
    })?;
    reader.table(table.get_ref(), "", draft)?;
    // A path in a file is meant from where the file is, wherever the replica is started.
    if matches!(draft.origin("data"), Origin::File(..)) && draft.config.data.is_relative() {
        draft.config.data = directory_of(path)?.join(&draft.config.data);
    }
    Ok(())
}

/// The directory of a file, as an absolute path.
fn directory_of(path: &Path) -> Outcome<PathBuf> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let directory = std::path::absolute(directory).or_else(|_| std::env::current_dir());
    directory.map_err(|error| Failure::new(Exit::Failed, error))
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File(self.path.to_owned(), self.line(span))
    }

    fn table(&self, table: &DeTable<'_>, prefix: &str, draft: &mut Draft) -> Outcome {
        for (name, value) in table {
            let origin = self.origin(&name.span());
            let key = match prefix {
                "" => name.get_ref().to_string(),
                _ => format!("{prefix}.{}", name.get_ref()),
            };
            match value.get_ref() {
                DeValue::Table(inner) if prefix.is_empty() && is_section(&key) => {
                    self.table(inner, &key, draft)?;
                }
                _ if prefix == OPTIONS => {
                    let text = self.text_of(value, &key)?;
                    draft.set_option(name.get_ref(), &text, origin);
                }
                _ if schema::find(&key).is_none() => {
                    let what = if value.get_ref().is_table() {
                        "section"
                    } else {
                        "key"
                    };
                    return Err(Failure::usage(format!("{origin}: unknown {what} '{key}'"))
                        .help(remedy_for_key(&key)));
                }
                _ => {
                    let mut text = self.text_of(value, &key)?;
                    if key == "layout" && text != "none" && Path::new(&text).is_relative() {
                        let path = directory_of(self.path)?.join(&text);
                        text = path.display().to_string();
                    }
                    draft.set(&key, &text, origin)?;
                }
            }
        }
        Ok(())
    }

    fn text_of(&self, value: &Spanned<DeValue<'_>>, key: &str) -> Outcome<String> {
        Ok(match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(yes) => yes.to_string(),
            DeValue::Array(items) if key == "members" => {
                let items: Result<Vec<_>, _> = items
                    .iter()
                    .map(|item| self.text_of(item, "members[]"))
                    .collect();
                items?.join(",")
            }
            other => {
                let origin = self.origin(&value.span());
                return Err(Failure::usage(format!(
                    "{origin}: {key}: a value of type {} is not accepted here",
                    other.type_str()
                )));
            }
        })
    }
}

fn is_section(name: &str) -> bool {
    name == OPTIONS
        || schema::KEYS.iter().any(|key| {
            key.name
                .split_once('.')
                .is_some_and(|(section, _)| section == name)
        })
}
