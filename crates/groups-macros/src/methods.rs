//! `#[service]`.

use crate::{Errors, check_names, check_number, number_of};
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Attribute, FnArg, Ident, ImplItem, ImplItemFn, ItemImpl, Pat, ReturnType, Type, TypeReference,
    spanned::Spanned,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Ordered,
    Query,
    Gather,
    View,
}

impl Tag {
    /// Those that are called through handles.
    const CALLED: [Self; 3] = [Self::Ordered, Self::Query, Self::Gather];
    const ALL: [Self; 4] = [Self::Ordered, Self::Query, Self::Gather, Self::View];

    /// As it is written.
    const fn word(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Query => "query",
            Self::Gather => "gather",
            Self::View => "view",
        }
    }

    /// The variant of `MethodKind`, and the suffix of the handle.
    fn kind(self) -> Ident {
        format_ident!(
            "{}",
            match self {
                Self::Ordered => "Ordered",
                Self::Query => "Query",
                Self::Gather => "Gather",
                Self::View => "View",
            }
        )
    }
}

/// A method that can be called.
struct Tagged {
    tag: Tag,
    name: Ident,
    docs: Vec<Attribute>,
    has_context: bool,
    has_place: bool,
    arguments: Vec<(Ident, Type)>,
    answer: Type,
}

const VIEW_ARGUMENTS: &str =
    "a #[view] method takes `&ShardView`, and before it `&mut CallContext` if it needs one";

pub fn expand(arguments: &TokenStream, mut item: ItemImpl) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    if !arguments.is_empty() {
        errors.add(arguments, "it takes no arguments");
    }
    if item.trait_.is_some() {
        errors.add(
            &item.self_ty,
            "a service's methods stand in an `impl` of its own",
        );
    }
    if !item.generics.params.is_empty() {
        errors.add(&item.generics, "a service has no generic parameters");
    }
    let name = match &*item.self_ty {
        Type::Path(path) => path.path.get_ident().cloned(),
        _ => None,
    };
    if name.is_none() {
        errors.add(&item.self_ty, "a service is named by a single word");
    }
    let mut methods = Vec::new();
    for member in &mut item.items {
        if let ImplItem::Fn(method) = member {
            methods.extend(take_tagged(method, &mut errors));
        }
    }
    let is_called = |method: &Tagged| method.tag != Tag::View;
    if !methods.iter().any(is_called) {
        errors.add(
            &item.self_ty,
            "there is no method with #[ordered], #[query] or #[gather]",
        );
    }
    for second in methods.iter().filter(|it| !is_called(it)).skip(1) {
        errors.add(&second.name, "a service has one #[view] method");
    }
    let mut numbers = Vec::new();
    for method in &methods {
        check_number(method.number(), &method.name, &mut numbers, &mut errors);
    }
    errors.finish()?;
    let Some(name) = name else {
        return Ok(TokenStream::new());
    };
    Ok(generate(&name, &methods, &item))
}

/// Takes the tag off a method and checks what stands behind it.
fn take_tagged(method: &mut ImplItemFn, errors: &mut Errors) -> Option<Tagged> {
    let mut tags = Vec::new();
    method.attrs.retain(|attribute| {
        let mut all = Tag::ALL.into_iter();
        let Some(tag) = all.find(|tag| attribute.path().is_ident(tag.word())) else {
            return true;
        };
        if attribute.meta.require_path_only().is_err() {
            errors.add(attribute, "the tag takes no arguments");
        }
        tags.push(tag);
        false
    });
    let tag = *tags.first()?;
    if let Some(cfg) = method.attrs.iter().find(|it| it.path().is_ident("cfg")) {
        let message = "a tagged method is there in every build: members compare them";
        errors.add(cfg, message);
    }
    let signature = &method.sig;
    if tags.len() > 1 {
        errors.add(&signature.ident, "a method has one tag");
    }
    if signature.asyncness.is_some() {
        let message = "a handler runs at its place in the order and must not wait";
        errors.add(&signature.asyncness, message);
    }
    if !signature.generics.params.is_empty() {
        errors.add(
            &signature.generics,
            "a tagged method has no generic parameters",
        );
    }
    if signature.unsafety.is_some() {
        errors.add(&signature.unsafety, "a tagged method is safe to call");
    }
    let mut inputs = signature.inputs.iter();
    match (tag, inputs.next()) {
        (Tag::Ordered | Tag::View, Some(FnArg::Receiver(it)))
            if it.reference.is_some() && it.mutability.is_some() && it.colon_token.is_none() => {}
        (Tag::Query | Tag::Gather, Some(FnArg::Receiver(it)))
            if it.reference.is_some() && it.mutability.is_none() && it.colon_token.is_none() => {}
        (Tag::Ordered | Tag::View, first) => {
            let at: &dyn ToTokens = first.map_or(&signature.ident as _, |it| it as _);
            let message = match tag {
                Tag::View => "a #[view] method takes `&mut self`: it is executed in order",
                _ => "an #[ordered] method takes `&mut self`: it is for changes",
            };
            errors.add(at, message);
        }
        (Tag::Query | Tag::Gather, first) => {
            let at: &dyn ToTokens = first.map_or(&signature.ident as _, |it| it as _);
            let message = format!("a #[{}] takes `&self`: it changes nothing", tag.word());
            errors.add(at, &message);
        }
    }
    let (mut has_context, mut has_place, mut has_view) = (false, false, false);
    let mut arguments = Vec::new();
    for (place, input) in inputs.enumerate() {
        let FnArg::Typed(input) = input else {
            continue;
        };
        if is_reference_to(&input.ty, "CallContext") {
            if place > 0 || !matches!(tag, Tag::Ordered | Tag::View) {
                let message =
                    "a CallContext is the first argument of an #[ordered] or #[view] method";
                errors.add(&input.ty, message);
            }
            has_context = true;
            continue;
        }
        if is_reference_to(&input.ty, "Place") {
            if place > 0 || !matches!(tag, Tag::Query | Tag::Gather) {
                let message = "a Place is the first argument of a #[query] or a #[gather]: what is \
                               ordered is the same at each member";
                errors.add(&input.ty, message);
            }
            has_place = true;
            continue;
        }
        if tag == Tag::View {
            if has_view || !is_reference_to(&input.ty, "ShardView") {
                errors.add(&input.ty, VIEW_ARGUMENTS);
            }
            has_view = true;
            continue;
        }
        check_names(&input.ty, errors);
        check_references(&input.ty, errors);
        match &*input.pat {
            Pat::Ident(pattern) if pattern.subpat.is_none() && pattern.by_ref.is_none() => {
                arguments.push((pattern.ident.clone(), (*input.ty).clone()));
            }
            pattern => errors.add(pattern, "an argument is a name, and no other pattern"),
        }
    }
    if tag == Tag::Gather && !has_place {
        let message = "the first argument of a #[gather] is `place: &Place`: without it all members \
                       answer the same";
        errors.add(&signature.ident, message);
    }
    if tag == Tag::View && !has_view {
        errors.add(&signature.ident, VIEW_ARGUMENTS);
    }
    if let (Tag::View, ReturnType::Type(_, of)) = (tag, &signature.output) {
        errors.add(of, "a #[view] method has no answer: no caller waits for it");
    }
    let answer = match &signature.output {
        ReturnType::Default => syn::parse_quote!(()),
        ReturnType::Type(_, of) => {
            check_names(of, errors);
            if has_reference(of) {
                errors.add(
                    of,
                    "an answer goes to another process: it holds no reference",
                );
            }
            (**of).clone()
        }
    };
    let docs = method.attrs.iter().filter(|it| it.path().is_ident("doc"));
    Some(Tagged {
        tag,
        name: signature.ident.clone(),
        docs: docs.cloned().collect(),
        has_context,
        has_place,
        arguments,
        answer,
    })
}

/// Whether it is a reference to the type of this name.
fn is_reference_to(of: &Type, name: &str) -> bool {
    let Type::Reference(TypeReference { elem, .. }) = of else {
        return false;
    };
    matches!(&**elem, Type::Path(path)
        if path.path.segments.last().is_some_and(|last| last.ident == name))
}

/// `&str` and `&[u8]` are read where the command lies; no other references are.
fn check_references(of: &Type, errors: &mut Errors) {
    let inner = match of {
        Type::Reference(it) if it.mutability.is_none() && it.lifetime.is_none() => &it.elem,
        _ if has_reference(of) => {
            return errors.add(of, "references are `&str` and `&[u8]` without a lifetime");
        }
        _ => return,
    };
    let text = inner.to_token_stream().to_string().replace(' ', "");
    if text != "str" && text != "[u8]" {
        errors.add(
            of,
            "references are `&str` and `&[u8]`: take this one by value",
        );
    }
}

fn has_reference(of: &Type) -> bool {
    fn any(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            proc_macro2::TokenTree::Group(group) => any(group.stream()),
            proc_macro2::TokenTree::Punct(it) => it.as_char() == '&' || it.as_char() == '\'',
            _ => false,
        })
    }
    any(of.to_token_stream())
}

impl Tagged {
    /// Name and types of the arguments: what the method is known by.
    fn key(&self) -> String {
        let types = self.arguments.iter().map(|(_, of)| text_of(of));
        format!("{}({})", self.name, types.collect::<Vec<_>>().join(","))
    }

    fn signature(&self) -> String {
        let tag = self.tag.word();
        // Members of which one answers with its place and another one without refuse each other; a gather
        // always has one.
        let place = match self.has_place && self.tag == Tag::Query {
            true => " at a place",
            false => "",
        };
        format!("{tag}{place} {} -> {}", self.key(), text_of(&self.answer))
    }

    fn number(&self) -> u32 {
        number_of(&self.key())
    }

    /// Its description.
    fn row(&self) -> TokenStream {
        let (number, name, signature) = (self.number(), self.name.to_string(), self.signature());
        let terms = number_of(&signature);
        let (kind, has_place) = (self.tag.kind(), self.has_place);
        quote! {
            ::quintet::groups::Method {
                number: #number,
                name: #name,
                signature: #signature,
                terms: #terms,
                kind: ::quintet::groups::MethodKind::#kind,
                has_place: #has_place,
            }
        }
    }

    /// The items of the one that is told of views.
    fn view(&self) -> TokenStream {
        let (row, name) = (self.row(), &self.name);
        let context = self.has_context.then(|| quote!(__context,));
        quote! {
            const VIEW: Option<::quintet::groups::Method> = Some(#row);
            fn call_view(
                &mut self,
                __context: &mut ::quintet::groups::CallContext<'_>,
                __view: &::quintet::groups::ShardView,
            ) {
                self.#name(#context __view);
            }
        }
    }

    /// Its arm where a call is read from JSON.
    fn json_arm(&self) -> TokenStream {
        let (name, number, signature) = (self.name.to_string(), self.number(), self.signature());
        let kind = self.tag.kind();
        let kind = quote!(::quintet::groups::MethodKind::#kind);
        let read = match self.arguments.is_empty() {
            true => quote!(::quintet::groups::macros::call_of_empty_json),
            false => {
                let types = self.arguments.iter().map(|(_, of)| match &*text_of(of) {
                    "&str" => quote!(String),
                    "&[u8]" => quote!(::quintet::groups::macros::JsonBytes),
                    _ => quote!(#of),
                });
                quote!(::quintet::groups::macros::call_of_json::<(#(#types,)*)>)
            }
        };
        quote!(#name => #read(#number, #kind, #signature, arguments),)
    }

    /// Its arm in the dispatch.
    fn arm(&self) -> TokenStream {
        let (name, number) = (&self.name, self.number());
        let names: Vec<_> = self.arguments.iter().map(|(name, _)| name).collect();
        let types: Vec<_> = self.arguments.iter().map(|(_, of)| of).collect();
        let context = self.has_context.then(|| quote!(__context,));
        let place = self.has_place.then(|| quote!(__place?,));
        // Errors point at the type.
        let put = quote_spanned!(self.answer.span() => ::quintet::groups::macros::answer);
        quote! {
            #number => {
                let (#(#names,)*): (#(#types,)*) =
                    ::quintet::groups::macros::arguments(__arguments)?;
                let __answer = self.#name(#context #place #(#names),*);
                #put(&__answer, __reply);
                Some(())
            }
        }
    }

    /// Its method of the handle.
    fn handle(&self) -> TokenStream {
        let (name, number, answer) = (&self.name, self.number(), &self.answer);
        let names: Vec<_> = self.arguments.iter().map(|(name, _)| name).collect();
        let types: Vec<_> = self.arguments.iter().map(|(_, of)| of).collect();
        let values = self.encoded();
        let docs = match self.docs.is_empty() {
            true => {
                let text = format!("Calls `{name}`.");
                quote!(#[doc = #text])
            }
            false => {
                let docs = &self.docs;
                quote!(#(#docs)*)
            }
        };
        let call = match self.tag {
            Tag::Ordered => format_ident!("call_ordered"),
            Tag::Query if self.has_place => format_ident!("call_at_place"),
            Tag::Query => format_ident!("call_query"),
            Tag::Gather | Tag::View => format_ident!("call_gather"),
        };
        let call = quote_spanned!(answer.span() => #call);
        let pending = match self.tag {
            Tag::Gather => format_ident!("Replies"),
            _ => format_ident!("Pending"),
        };
        quote! {
            #docs
            pub fn #name(&self #(, #names: #types)*) -> ::quintet::groups::#pending<#answer> {
                self.shard.#call(#number, &(#(#values,)*))
            }
        }
    }
}

impl Tagged {
    /// The arguments as they are encoded. Serde knows a slice of bytes as numbers, one by one.
    fn encoded(&self) -> Vec<TokenStream> {
        let encoded = |(name, of): &(Ident, Type)| match &*text_of(of) {
            "&[u8]" => quote!(::quintet::groups::macros::RawBytes(#name)),
            _ => quote!(&#name),
        };
        self.arguments.iter().map(encoded).collect()
    }

    /// Its method of the calls as values.
    fn value(&self, service: &Ident) -> TokenStream {
        let (name, number) = (&self.name, self.number());
        let names: Vec<_> = self.arguments.iter().map(|(name, _)| name).collect();
        let types: Vec<_> = self.arguments.iter().map(|(_, of)| of).collect();
        let values = self.encoded();
        let text = format!("A call of `{name}`.");
        quote! {
            #[doc = #text]
            #[must_use]
            pub fn #name(self #(, #names: #types)*) -> ::quintet::groups::CallOf<#service> {
                ::quintet::groups::CallOf::new(#number, &(#(#values,)*))
            }
        }
    }
}

/// A type without the spaces of its tokens.
fn text_of(of: &Type) -> String {
    of.to_token_stream().to_string().replace(' ', "")
}

fn generate(service: &Ident, methods: &[Tagged], item: &ItemImpl) -> TokenStream {
    let of = |tag: Tag| methods.iter().filter(move |it| it.tag == tag);
    let views = of(Tag::View).map(|it| it.view());
    let called = methods.iter().filter(|it| it.tag != Tag::View);
    let rows = called.clone().map(Tagged::row);
    let (ordered_arms, query_arms) = (
        of(Tag::Ordered).map(Tagged::arm),
        of(Tag::Query).chain(of(Tag::Gather)).map(Tagged::arm),
    );
    let handles = [
        (Tag::Ordered, "ordered methods"),
        (Tag::Query, "queries"),
        (Tag::Gather, "methods that every member answers"),
    ]
    .map(|(tag, what)| {
        let handle = format_ident!("{service}{}", tag.kind());
        let text = format!("Calls of the {what} of [`{service}`].");
        let calls = of(tag).map(Tagged::handle);
        quote! {
            #[doc = #text]
            #[derive(Debug)]
            pub struct #handle {
                shard: ::quintet::groups::Shard<#service>,
            }

            impl From<::quintet::groups::Shard<#service>> for #handle {
                fn from(shard: ::quintet::groups::Shard<#service>) -> Self {
                    Self { shard }
                }
            }

            #[allow(dead_code, private_interfaces, clippy::too_many_arguments)]
            impl #handle {
                #(#calls)*
            }
        }
    });
    let read_json = called.clone().map(Tagged::json_arm);
    let to_json = called.map(|it| {
        let (number, answer) = (it.number(), &it.answer);
        let write = quote_spanned!(answer.span() => ::quintet::groups::macros::answer_to_json);
        quote!(#number => #write::<#answer>(value),)
    });
    let calls = format_ident!("{service}Calls");
    let values = of(Tag::Ordered).map(|it| it.value(service));
    let text = format!("Calls of the ordered methods of [`{service}`] as values.");
    let values = quote! {
        #[doc = #text]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct #calls;

        #[allow(dead_code)]
        impl #service {
            /// Calls as values, to be handed off.
            pub const fn calls() -> #calls {
                #calls
            }
        }

        #[allow(dead_code, private_interfaces, clippy::too_many_arguments, clippy::unused_self)]
        impl #calls {
            #(#values)*
        }
    };
    let [ordered, query, gather] = Tag::CALLED.map(|tag| format_ident!("{service}{}", tag.kind()));
    quote! {
        #item

        #[allow(unused_variables, private_interfaces)]
        impl ::quintet::groups::Methods for #service {
            const METHODS: &'static [::quintet::groups::Method] = &[#(#rows),*];
            #(#views)*

            fn call_of_json(
                method: &str,
                arguments: &str,
            ) -> Option<Result<::quintet::groups::JsonCall, String>> {
                Some(match method {
                    #(#read_json)*
                    _ => return None,
                })
            }

            fn answer_to_json(method: u32, value: &[u8]) -> Option<String> {
                match method {
                    #(#to_json)*
                    _ => None,
                }
            }

            fn call_ordered(
                &mut self,
                __context: &mut ::quintet::groups::CallContext<'_>,
                __method: u32,
                __arguments: &[u8],
                __reply: &mut Vec<u8>,
            ) -> Option<()> {
                match __method {
                    #(#ordered_arms)*
                    _ => None,
                }
            }

            fn call_query(
                &self,
                __place: Option<&::quintet::groups::Place>,
                __method: u32,
                __arguments: &[u8],
                __reply: &mut Vec<u8>,
            ) -> Option<()> {
                match __method {
                    #(#query_arms)*
                    _ => None,
                }
            }
        }

        ::quintet::groups::macros::handles! {
            #(#handles)*

            #[allow(private_interfaces)]
            impl ::quintet::groups::Handles for #service {
                type Ordered = #ordered;
                type Query = #query;
                type Gather = #gather;
            }
        }

        #values
    }
}
