//! Reading a layout: how keys are divided among groups.

use quintet_cli::{Failure, Outcome, toml_error};
use quintet_runtime::layout::LayoutFile;
use std::{fs, path::Path};

/// Reads a layout file.
///
/// # Errors
/// With the line of a fault, where the text is no layout.
pub fn read(path: &Path) -> Outcome<LayoutFile> {
    let file = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("layout: {file}: {error}")))?;
    parse(&text, path)
}

/// The same of a text that was read from there.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, path: &Path) -> Outcome<LayoutFile> {
    let file = path.display().to_string();
    let layout: LayoutFile =
        toml::from_str(text).map_err(|error| toml_error::failure(&error, text, &file))?;
    Ok(LayoutFile {
        path: path.to_path_buf(),
        ..layout
    })
}
