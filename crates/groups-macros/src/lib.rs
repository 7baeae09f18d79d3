//! The macros of `quintet::groups`.
//!
//! ```text
//!   #[derive(Service)] struct Counter { value: Persistent<u64> }
//!       ──► impl Service: fork, each, each_mut;  Counter::VALUE
//!
//!   #[service] impl Counter { #[ordered] fn add(&mut self, by: u64) -> u64 … }
//!       ──► the methods as they are, impl Methods: dispatch by number,
//!           CounterOrdered and CounterQuery: handles with one method per tagged one
//! ```
//!
//! All errors of an item are reported at once.

mod derive;
mod methods;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Makes a struct a service: its fields are `Persistent`, `PersistentMap`, `Volatile` or
/// `VolatileMap`.
///
/// For each field there is a constant of its name in capital letters, which names it for
/// `Shard::history`. A field is known by its name: `#[service(was = "old")]` keeps what another name
/// had.
#[proc_macro_derive(Service, attributes(service))]
pub fn derive_service(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as syn::DeriveInput);
    derive::expand(&input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes the tagged methods of an `impl` block callable through a group: `#[ordered]`, `#[query]` and
/// `#[gather]`. One with `#[view]` is called by the members, when those of its shard have changed.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::ItemImpl);
    methods::expand(&arguments.into(), item)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Errors that are reported together.
#[derive(Default)]
struct Errors(Option<syn::Error>);

impl Errors {
    fn add(&mut self, at: &dyn quote::ToTokens, message: &str) {
        let error = syn::Error::new_spanned(at, message);
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The number of a name, equal in every build: FNV-1a.
fn number_of(name: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, step)
}

/// Reports a name whose number another one has already.
fn check_number(number: u32, at: &dyn quote::ToTokens, known: &mut Vec<u32>, errors: &mut Errors) {
    if known.contains(&number) {
        errors.add(
            at,
            "another name of this service has the same number: rename one",
        );
    }
    known.push(number);
}

/// Types whose content differs between members, or whose order does.
const DIFFERENT: [(&str, &str); 4] = [
    (
        "HashMap",
        "the order of a HashMap differs between members: use a BTreeMap",
    ),
    (
        "HashSet",
        "the order of a HashSet differs between members: use a BTreeSet",
    ),
    (
        "Instant",
        "an Instant differs between members: use the time of the CallContext",
    ),
    (
        "SystemTime",
        "clocks differ between members: use the time of the CallContext",
    ),
];

/// Reports the names in a type that a service must not have.
fn check_names(of: &syn::Type, errors: &mut Errors) {
    let tokens = quote::ToTokens::to_token_stream(of);
    check_tokens(tokens, of, errors);
}

fn check_tokens(tokens: proc_macro2::TokenStream, of: &syn::Type, errors: &mut Errors) {
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Group(group) => check_tokens(group.stream(), of, errors),
            proc_macro2::TokenTree::Ident(name) => {
                let found = DIFFERENT.iter().find(|(it, _)| name == it);
                if let Some((_, message)) = found {
                    errors.add(of, message);
                }
            }
            _ => {}
        }
    }
}
