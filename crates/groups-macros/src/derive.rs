//! `#[derive(Service)]`.

use crate::{Errors, check_names, check_number, number_of};
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{Data, DeriveInput, Fields, LitStr, Type};

fn names_volatile(of: &Type) -> bool {
    matches!(of, Type::Path(path) if path.path.segments.last().is_some_and(|last| {
        last.ident == "Volatile" || last.ident == "VolatileMap"
    }))
}

pub fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    if !input.generics.params.is_empty() {
        errors.add(&input.generics, "a service has no generic parameters");
    }
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().collect(),
            Fields::Unit => Vec::new(),
            Fields::Unnamed(fields) => {
                errors.add(fields, "the fields of a service have names");
                Vec::new()
            }
        },
        _ => {
            errors.add(&input.ident, "a service is a struct");
            Vec::new()
        }
    };
    let mut numbers = Vec::new();
    for field in &fields {
        check_names(&field.ty, &mut errors);
        let name = field.ident.as_ref().map(ToString::to_string);
        let mut name = name.unwrap_or_default();
        for attribute in field
            .attrs
            .iter()
            .filter(|it| it.path().is_ident("service"))
        {
            let read = attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("was") {
                    return Err(meta.error("accepted is: was = \"the name before\""));
                }
                name = meta.value()?.parse::<LitStr>()?.value();
                Ok(())
            });
            if let Err(error) = read {
                errors.add(attribute, &error.to_string());
            }
        }
        let number = number_of(name.trim_start_matches("r#"));
        check_number(number, field, &mut numbers, &mut errors);
    }
    errors.finish()?;

    let service = &input.ident;
    let visibility = &input.vis;
    let text = service.to_string();
    let mut described = String::new();
    for (field, number) in fields.iter().zip(&numbers) {
        let of = field.ty.to_token_stream().to_string().replace(' ', "");
        described += &format!("{number}:{of};");
    }
    let described = number_of(&described);
    let names: Vec<_> = fields
        .iter()
        .filter_map(|field| field.ident.as_ref())
        .collect();
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let texts: Vec<String> = names
        .iter()
        .map(|name| name.to_string().trim_start_matches("r#").to_owned())
        .collect();
    let constants = texts
        .iter()
        .map(|name| format_ident!("{}", name.to_uppercase()));
    let docs = names
        .iter()
        .map(|name| format!("The field `{name}`, to ask for its history."));
    // Another name for one without versions is found by the assertion.
    let is_versioned = types.iter().all(|of| !names_volatile(of));
    let versioned = is_versioned.then(|| {
        quote! {
            #[automatically_derived]
            impl ::quintet::groups::Versioned for #service {}

            const _: () = assert!(
                <#service as ::quintet::groups::Service>::VERSIONED,
                "a field without versions is called by another name: use its own"
            );
        }
    });
    Ok(quote! {
        #versioned

        #[automatically_derived]
        impl ::quintet::groups::Service for #service {
            const NAME: &'static str = #text;
            const FIELDS: u32 = #described;
            const NAMED_FIELDS: &'static [::quintet::groups::macros::NamedField] = &[
                #(::quintet::groups::macros::NamedField {
                    name: #texts,
                    number: #numbers,
                    form: <#types as ::quintet::groups::Field>::FORM,
                }),*
            ];
            const VERSIONED: bool =
                true #(&& <#types as ::quintet::groups::Field>::VERSIONED)*;

            fn fork(&self) -> Self {
                Self { #(#names: ::quintet::groups::Field::fork(&self.#names)),* }
            }

            fn each(
                &self,
                visit: &mut dyn FnMut(u32, &dyn ::quintet::groups::macros::AnyField),
            ) {
                #(visit(#numbers, &self.#names);)*
            }

            fn each_mut(
                &mut self,
                visit: &mut dyn FnMut(u32, &mut dyn ::quintet::groups::macros::AnyField),
            ) {
                #(visit(#numbers, &mut self.#names);)*
            }
        }

        #[allow(dead_code, private_interfaces)]
        impl #service {
            #(
                #[doc = #docs]
                #visibility const #constants: ::quintet::groups::FieldOf<#service, #types> =
                    ::quintet::groups::FieldOf::new(#numbers);
            )*
        }
    })
}
