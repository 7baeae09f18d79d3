mod bypass;
mod groups;
#[cfg(feature = "bugs")]
mod injected;
mod random_faults;
mod wire;
